"""The coordinator's side of a run whose clients are at remote sites."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli import __version__
from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
from fedmosaic_cli.engine.federation import Federation, RunState, first_round
from fedmosaic_cli.engine.upload_filters import QuorumFilter
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.protocol import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES
from fedmosaic_cli.federation.remote_pool import AdaptiveTimeout, RemoteClient, RemoteClientPool
from fedmosaic_cli.runner.build import (
    build_federation_info,
    build_server,
    label_filters,
    num_clients_per_round,
    true_public_labels,
)
from fedmosaic_cli.runner.device_dataset import DeviceDataset
from fedmosaic_cli.runner.environment import FEDERATION_KEY
from fedmosaic_cli.runner.learner_factory import build_reference_network
from fedmosaic_cli.runner.prepare import load_shard_data
from fedmosaic_cli.storage.checkpoints import read_newest_manifest
from fedmosaic_cli.storage.runs import model_file_name
from fedmosaic_cli.storage.shard_manifest import train_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.context import FederationInfo
    from fedmosaic_cli.federation.transport import Transport
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet

TOKEN_BYTES = 8
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteCoordinator:
    """Implements `runner.run_options.RemoteBackend`: clients at sites that a transport reaches.

    Attributes:
        engine: Recorded in env.json and summary.json.
        open_transport: Connects to the sites.
        quorum: How many clients a round needs; None is all but one.
        round_timeout_seconds: Limit for a round; None adapts to the duration of earlier rounds.
        join_timeout_seconds: Limit for all sites to join.
    """

    engine: str
    open_transport: Callable[[], AbstractContextManager[Transport]]
    quorum: int | None = None
    round_timeout_seconds: float | None = None
    join_timeout_seconds: float = 600.0

    @contextmanager
    def open(
        self, config: RunConfig, shards: ShardSet, files: RunDirectory, data_dirs: DataDirs, device: torch.device
    ) -> Iterator[Federation]:
        token = load_or_create_token(files)
        with self.open_transport() as transport:
            yield build_remote_federation(config, shards, data_dirs, device, transport, self, token)

    def environment(self, federation: Federation) -> dict[str, Any]:
        """Return the entry of env.json, with the token that identifies the run at the sites."""
        pool = require_remote_pool(federation)
        entry = {"engine": self.engine, "sites": len(pool.clients), "token": pool.run_id.rpartition("/")[2]}
        return {FEDERATION_KEY: entry}

    def device_types(self, federation: Federation) -> list[str]:
        return sorted({name.partition(":")[0] for name in require_remote_pool(federation).client_devices.values()})

    def join(self, federation: Federation, config: RunConfig, shards: ShardSet) -> Iterator[set[int]]:
        """Send the plan to all sites; see `RemoteClientPool.join`."""
        plugins = config.plugins()
        plan = {"version": __version__, "config": config.to_dict(), "shards": shards.digest}
        plan |= {"plugins": plugins} if plugins else {}
        yield from require_remote_pool(federation).join(plan, federation.state.server, federation.state.finished)

    def finish(self, federation: Federation) -> dict[str, str]:
        """Let the sites save their final models, and return the digests that they report."""
        headers = require_remote_pool(federation).finish(federation.state.server, federation.state.finished)
        digests = {client: str(header.get("model")) for client, header in sorted(headers.items())}
        return {model_file_name(c): digest for c, digest in digests.items() if SHA256_PATTERN.fullmatch(digest)}

    def summary(self, log_rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the entries of summary.json: the engine, and how many rounds each client missed."""
        lost = Counter(str(row["client"]) for row in log_rows if "lost" in row)
        sites = len({row["client"] for row in log_rows})
        entry = {"engine": self.engine, "sites": sites, "models": "at the sites"}
        return {FEDERATION_KEY: entry, "lost": dict(lost)}


def load_or_create_token(files: RunDirectory) -> str:
    """Return the token that identifies this run at the sites; it is kept in the checkpoints.

    Raises:
        RequestError: The run was started with all clients in one process.
    """
    manifest = read_newest_manifest(files.checkpoints_dir)
    section = manifest and manifest["environment"].get(FEDERATION_KEY)
    if manifest and not isinstance(section, dict):
        raise RequestError(
            f"the run was started in one process (--engine, {files.path}): continue it with --engine local"
        )
    return str(section["token"]) if section else secrets.token_hex(TOKEN_BYTES)


def build_remote_federation(
    config: RunConfig,
    shards: ShardSet,
    data_dirs: DataDirs,
    device: torch.device,
    transport: Transport,
    options: RemoteCoordinator,
    token: str,
) -> Federation:
    """Build the server's side of a federation: server state and the ids of the remote clients."""
    dataset, partition = load_shard_data(shards, data_dirs)
    network = build_reference_network(config, dataset, device) if config.model_settings_for(0).is_network else None
    ctx = build_federation_info(config, dataset, partition, train_sizes(shards.manifest), network, shards.digest)
    server = build_server(
        config, device, lambda: DeviceDataset(dataset, partition, device, torch.float32, config.train.images)
    )
    config.method.init_server(server, ctx)
    clients = [RemoteClient(number) for number in ctx.client_sizes]
    require_message_size(config, ctx)
    quorum = options.quorum if options.quorum is not None else max(1, num_clients_per_round(config) - 1)
    run_id = f"{config.experiment_name}/{config.method.variant}/seed-{config.seed}/{token}"
    pool = RemoteClientPool(
        transport,
        config.method,
        ctx,
        run_id,
        clients,
        quorum,
        device,
        AdaptiveTimeout(options.round_timeout_seconds),
        options.join_timeout_seconds,
        skip_diverged=config.train.on_nan == "skip",
    )
    return Federation(
        config.method,
        ctx,
        [],
        WorkerPool(1),
        RunState(clients, server, finished=first_round(config.method) - 1),
        config.seed,
        num_clients_per_round(config),
        device,
        "threads",
        filters=(QuorumFilter(quorum), *label_filters(config, None, true_public_labels(dataset, partition, device))),
        remote_pool=pool,
    )


def require_message_size(config: RunConfig, ctx: FederationInfo) -> None:
    """Raise `RequestError` if a message of the method would be larger than receivers accept."""
    for parts in (config.method.uploads, config.method.downloads):
        num_bytes = sum(part.planned_bits(ctx) for part in parts.values()) // 8 + MAX_HEADER_BYTES
        if num_bytes > MAX_MESSAGE_BYTES:
            raise RequestError(
                f"a message of {config.method.info.title} has {num_bytes / 1e6:,.0f} MB, and sites accept at most "
                f"{MAX_MESSAGE_BYTES / 1e6:,.0f} MB (model): use a smaller network, or a method that sends labels"
            )


def require_remote_pool(federation: Federation) -> RemoteClientPool:
    """Return the pool of remote clients."""
    if not isinstance(federation.remote_pool, RemoteClientPool):
        raise TypeError("the clients of this federation are in this process")
    return federation.remote_pool
