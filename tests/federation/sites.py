"""Sites in this process that receive requests and return responses as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedmosaic_cli import __version__
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.run_config import RunConfig, resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.coordinator import RemoteCoordinator
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.protocol import EncodedParts, Request, Response
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from fedmosaic_cli.federation.usage_limits import UsageLimits
from fedmosaic_cli.runner.events import RunFinished
from fedmosaic_cli.runner.experiment import run_experiment
from fedmosaic_cli.runner.prepare import load_and_partition
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.storage.shards import ShardSet

CPU = torch.device("cpu")
NOISY_LABELS = ("train.rounds=2", "privacy.labels=krr", "privacy.epsilon=6")
NUM_CLIENTS = 3
NO_LIMITS = UsageLimits(max_runs=10**6, max_steps=10**9)
ALLOW_MODELS = SitePolicy("models", metrics="exact-unprotected")


def export_shards(folder: Path, clients: int = NUM_CLIENTS, **settings) -> ShardSet:
    """Partition digits and write the shards with their examples."""
    data = DataSettings(scheme="dirichlet", alpha=0.5, clients=clients, public_size=60, **settings)
    return load_and_partition(data, 0, folder / "shards", DataDirs(folder)).save(export=True)


def make_config(shards: ShardSet, method: str, folder: Path, *assignments: str, seed: int = 0) -> RunConfig:
    """Return the configuration of a short run on these shards."""
    layers = ConfigLayers()
    layers.add("shards", {"data": shards.partition.settings.model_dump(mode="json")})
    short = ("train.rounds=4", "train.local_steps=3", "train.execution=threads", "model.name=mlp", "train.workers=1")
    for assignment in (*short, *assignments):
        layers.add_assignment(assignment)
    return resolve_run_config("toy", layers, method, seed, DataDirs(folder), shards.partition.seed)


def keep_response(client: int, request: bytes, response: bytes) -> bytes:
    return response


class Sites:
    """Implements `federation.transport.Transport`. `change_response(client, request, response)` may replace a response,
    or return None for a timeout."""

    def __init__(
        self, shards: ShardSet, folder: Path, policy: SitePolicy = ALLOW_MODELS, limits: UsageLimits = NO_LIMITS
    ) -> None:
        self.limits = limits
        self.shards = shards
        self.folder = folder
        self.policy = policy
        self.change_response: Callable[[int, bytes, bytes], bytes | None] = keep_response
        self.sites = {client: self.site(client) for client in range(len(shards.manifest["clients"]))}
        self.exchanges: list[tuple[int, bytes, bytes]] = []

    def site(self, client: int) -> Site:
        shard = load_site_shard(self.shards.path / f"client-{client:03d}.npz")
        return Site(
            shard,
            self.folder / f"site-{client}",
            CPU,
            DataDirs(self.folder),
            self.policy,
            limits=self.limits,
            anchor_dir=self.folder / "anchors",
        )

    def restart(self, client: int) -> None:
        """Restart a site as after a crash: only its disk remains."""
        self.sites[client] = self.site(client)

    def reachable_clients(self) -> set[int]:
        return set(self.sites)

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        for client, request in reversed(requests.items()):
            response = self.change_response(client, request, self.sites[client].handle_request(request))
            if response is None:
                yield ClientFailure(client, "deadline")
            else:
                self.exchanges.append((client, request, response))
                yield ClientResponse(client, response)

    def close(self) -> None:
        pass

    @contextmanager
    def opened(self) -> Iterator[Sites]:
        yield self


def run(config: RunConfig, shards: ShardSet, folder: Path, sites: Sites | None = None, **options) -> RunDirectory:
    """Make a run with clients in this process or at sites, and return its directory."""
    folder.mkdir(exist_ok=True)
    files = RunDirectory(folder)
    remote = None if sites is None else RemoteCoordinator("test", sites.opened, join_timeout_seconds=5.0, **options)
    run_options = RunOptions(device="cpu", remote=remote)
    events = list(run_experiment(config, shards, files, DataDirs(folder), run_options))
    assert isinstance(events[-1], RunFinished)
    return files


def is_request(request: bytes, kind: str, number: int) -> bool:
    """Return whether an encoded request is of this kind and round."""
    header = Request.decode(request).header
    return (header["kind"], header.get("round")) == (kind, number)


def rows_of_round(files: RunDirectory, number: int) -> list[dict[str, Any]]:
    return [row for row in files.read_rounds() if row["round"] == number]


def run_id(config: RunConfig) -> str:
    """Return the ID of a run that no coordinator started."""
    return f"toy/{config.method.variant}/seed-{config.seed}/0123456789abcdef"


def request_site(site: Site, header: dict[str, Any], parts: EncodedParts | None = None) -> dict[str, Any]:
    """Return the header of a site's response."""
    return Response.decode(site.handle_request(Request(header, parts or {}).encode())).header


def join_request(site: Site, config: RunConfig, /, **changes: Any) -> Request:
    """Return the request to join a run, with changed header fields."""
    plan = {"version": __version__, "config": config.to_dict(), "shards": site.shard.shard_set.digest}
    return Request({"kind": protocol.JOIN, "run": run_id(config), **plan, **changes})


def join(site: Site, config: RunConfig, /, **changes: Any) -> dict[str, Any]:
    """Return the header of a site's response to the plan of a run."""
    return request_site(site, join_request(site, config, **changes).header)


def local_round(site: Site, config: RunConfig, number: int = 1) -> dict[str, Any]:
    """Return the header of a site's response to the request for a local round."""
    return request_site(site, {"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": number})
