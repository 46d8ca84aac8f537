"""Sites in this process that receive requests and return responses as bytes, as remote sites do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.federation.transport import ClientResponse
from fedmosaic_cli.storage.shards import client_file_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.transport import ClientFailure, Transport
    from fedmosaic_cli.storage.shards import ShardSet


class InProcessSites:
    """Implements `federation.transport.Transport`. Every message is encoded and decoded.

    Args:
        shards: Shards with their examples.
        folder: Where the sites keep their files.
        data_dirs: Where data sets are.
    """

    def __init__(self, shards: ShardSet, folder: Path, data_dirs: DataDirs) -> None:
        self._sites = {
            client: Site(
                load_site_shard(shards.path / client_file_name(client)),
                folder / f"site-{client}",
                torch.device("cpu"),
                data_dirs,
                SitePolicy("models", metrics="exact-unprotected"),
                anchor_dir=folder / "ledgers",
            )
            for client in range(len(shards.manifest["clients"]))
        }
        self.failures: list[str] = []
        """The errors at sites, with their reasons."""
        for site in self._sites.values():
            site.on_request = lambda handled: self.failures.append(handled.error) if handled.error else None

    def reachable_clients(self) -> set[int]:
        return set(self._sites)

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        for client, request in requests.items():
            yield ClientResponse(client, self._sites[client].handle_request(request))

    def close(self) -> None:
        """Do nothing: there is no connection."""

    @contextmanager
    def opened(self) -> Iterator[Transport]:
        """Return the sites as a context, as the coordinator expects."""
        yield self
