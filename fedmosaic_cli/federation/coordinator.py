"""A run whose clients are at sites of their own: what the coordinator has of it."""

from __future__ import annotations

import math
import re
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__
from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
from fedmosaic_cli.engine.federation import Federation, RunState
from fedmosaic_cli.engine.upload_filters import QuorumFilter
from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.deadline import AdaptiveDeadline
from fedmosaic_cli.federation.remote_pool import RemoteClient, RemoteClientPool
from fedmosaic_cli.federation.site_shards import train_sizes
from fedmosaic_cli.labels.privacy.privacy_report import read_ledger
from fedmosaic_cli.labels.privacy.privatize import LEDGER_KEY
from fedmosaic_cli.runner.build import (
    build_federation_info,
    build_reference_network,
    label_filters,
    num_clients_per_round,
    true_public_labels,
)
from fedmosaic_cli.runner.prepare import load_shard_data
from fedmosaic_cli.storage.checkpoints import read_newest_manifest
from fedmosaic_cli.storage.runs import model_file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.transport import Transport
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet

FEDERATION_KEY = "federation"
"""Where environment and summary tell of the sites."""
TOKEN_BYTES = 8
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteOptions:
    """How the sites are reached, and how long they are waited for. `quorum`: None is all but one."""

    engine: str
    open_transport: Callable[[], AbstractContextManager[Transport]]
    quorum: int | None = None
    round_timeout_seconds: float | None = None
    join_timeout_seconds: float = 600.0


def load_or_create_token(files: RunDirectory) -> str:
    """What tells this run, on the sites' disks, from others of the same name: it stays the same as long as there is a
    checkpoint to go on from."""
    manifest = read_newest_manifest(files.checkpoints_dir)
    known = manifest and manifest["environment"].get(FEDERATION_KEY)
    if manifest and not isinstance(known, dict):
        raise RequestError(f"the run was begun in one process (--engine, {files.path}): go on with --engine local")
    return str(known["token"]) if known else secrets.token_hex(TOKEN_BYTES)


def require_local_run(files: RunDirectory) -> None:
    """Refuse to go on in one process with what sites have begun: their clients' memories are not here."""
    manifest = read_newest_manifest(files.checkpoints_dir)
    if manifest and FEDERATION_KEY in manifest["environment"]:
        raise RequestError(
            f"the run was begun with clients at sites (--engine, {files.path}): go on with --engine flower"
        )


def build_remote_federation(
    config: RunConfig,
    shards: ShardSet,
    data_dirs: DataDirs,
    device: torch.device,
    transport: Transport,
    options: RemoteOptions,
    token: str,
) -> Federation:
    """The federation as the coordinator has it: a server, and the numbers of its clients."""
    dataset, partition = load_shard_data(shards, data_dirs)
    network = build_reference_network(config, dataset, device) if config.model_settings_for(0).is_network else None
    world = build_federation_info(config, dataset, partition, train_sizes(shards.manifest), network, shards.digest)
    clients = [RemoteClient(number) for number in world.client_sizes]
    quorum = options.quorum if options.quorum is not None else max(1, num_clients_per_round(config) - 1)
    run = f"{config.experiment_name}/{config.method.variant}/seed-{config.seed}/{token}"
    patience = AdaptiveDeadline(options.round_timeout_seconds)
    skips = config.train.on_nan == "skip"
    remote = RemoteClientPool(
        transport, config.method, world, run, clients, quorum, device, patience, options.join_timeout_seconds, skips
    )
    return Federation(
        config.method,
        world,
        [],
        WorkerPool(1),
        RunState(clients, config.method.init_server(world)),
        config.seed,
        num_clients_per_round(config),
        device,
        "threads",
        filters=(QuorumFilter(quorum), *label_filters(config, None, true_public_labels(dataset, partition, device))),
        remote_pool=remote,
    )


def require_remote_pool(federation: Federation) -> RemoteClientPool:
    """The clients of a federation that are elsewhere."""
    if not isinstance(federation.remote_pool, RemoteClientPool):
        raise TypeError("these clients are in this process")
    return federation.remote_pool


def sites_environment(federation: Federation, options: RemoteOptions | None) -> dict[str, Any]:
    """What env.json says of the sites; nothing where there are none."""
    if options is None:
        return {}
    remote = require_remote_pool(federation)
    return {
        FEDERATION_KEY: {
            "engine": options.engine,
            "sites": len(remote.clients),
            "token": remote.run_id.rpartition("/")[2],
        }
    }


def client_device_types(federation: Federation) -> list[str]:
    """The kinds of devices that clients compute on."""
    if federation.remote_pool is None:
        return sorted({device.type for device in federation.client_devices})
    return sorted({device.partition(":")[0] for device in require_remote_pool(federation).client_devices.values()})


def join_sites(federation: Federation, config: RunConfig, shards: ShardSet) -> Iterator[set[int]]:
    """Tell the sites what is planned; who is missing, until nobody is. Clients in this process are there."""
    if federation.remote_pool is not None:
        plan = {"version": __version__, "config": config.to_dict(), "shards": shards.digest}
        standing = federation.state
        yield from require_remote_pool(federation).join(plan, standing.server, standing.finished)


def finish_sites(federation: Federation) -> dict[str, str]:
    """Have the sites keep their final models: the digests of the files. What noise they drew is put to their names."""
    told = require_remote_pool(federation).finish(federation.state.server, federation.state.finished)
    for client in federation.state.clients:
        answer = told[client.id]
        try:
            if not SHA256_PATTERN.fullmatch(str(answer.get("model"))):
                raise ValueError("no digest")
            if answer.get("ledger") is not None:
                validate_ledger(answer["ledger"])
                client.state[LEDGER_KEY] = answer["ledger"]
        except (AttributeError, TypeError, ValueError):
            raise RunFailedError(f"client {client.id} answers nonsense (finish): look at its site") from None
    return {model_file_name(client): told[client]["model"] for client in sorted(told)}


def validate_ledger(entries: Any) -> None:
    """Refuse what is no ledger. Raises AttributeError, TypeError or ValueError."""
    for release in read_ledger(entries):
        told = [value for value in (release.epsilon, release.mu, release.sigma) if value is not None]
        whole = type(release.count) is int and type(release.round) is int
        if not whole or not isinstance(release.mechanism, str) or not release.mechanism.isprintable():
            raise TypeError("no release")
        if not all(
            value == math.inf or protocol.is_bounded_number(value) for value in (*told, release.count, release.round)
        ):
            raise TypeError("no numbers")
        if min(told, default=-1) < 0 or release.count < 0:
            raise ValueError("a release that costs nothing")


def sites_summary(options: RemoteOptions | None, log_rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the summary says of sites: the models are with them, and who was lost in how many rounds."""
    if options is None:
        return {}
    lost = Counter(str(row["client"]) for row in log_rows if "lost" in row)
    sites = len({row["client"] for row in log_rows})
    return {FEDERATION_KEY: {"engine": options.engine, "sites": sites, "models": "at the sites"}, "lost": dict(lost)}
