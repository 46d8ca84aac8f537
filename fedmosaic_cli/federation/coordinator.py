"""A run whose clients are at sites of their own: what the coordinator has of it."""

from __future__ import annotations

import math
import re
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__
from fedmosaic_cli.engine.execution.worker_pool import Workers
from fedmosaic_cli.engine.rounds import Federation, Standing
from fedmosaic_cli.errors import FailedRunError, RequestError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.deadline import Patience
from fedmosaic_cli.federation.remote_pool import Remote, RemoteClient
from fedmosaic_cli.federation.site_shards import train_sizes
from fedmosaic_cli.labels.privacy.privacy_report import read_ledger
from fedmosaic_cli.labels.privacy.privatize import LEDGER
from fedmosaic_cli.runner.build import network_of, public_truth, round_size, world_of
from fedmosaic_cli.runner.prepare import open_shards
from fedmosaic_cli.storage.checkpoints import newest_manifest
from fedmosaic_cli.storage.runs import model_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.federation.transport import Carrier
    from fedmosaic_cli.storage.runs import RunFiles
    from fedmosaic_cli.storage.shards import Shards

KEY = "federation"
"""Where environment and summary tell of the sites."""
TOKEN_BYTES = 8
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Elsewhere:
    """How the sites are reached, and how long they are waited for. `quorum`: None is all but one."""

    engine: str
    open: Callable[[], AbstractContextManager[Carrier]]
    quorum: int | None = None
    deadline: float | None = None
    wait: float = 600.0


def token_of(files: RunFiles) -> str:
    """What tells this run, on the sites' disks, from others of the same name: it stays the same as long as there is a
    checkpoint to go on from."""
    manifest = newest_manifest(files.checkpoints)
    known = manifest and manifest["environment"].get(KEY)
    if manifest and not isinstance(known, dict):
        raise RequestError(f"the run was begun in one process (--engine, {files.path}): go on with --engine local")
    return str(known["token"]) if known else secrets.token_hex(TOKEN_BYTES)


def check_engine(files: RunFiles) -> None:
    """Refuse to go on in one process with what sites have begun: their clients' memories are not here."""
    manifest = newest_manifest(files.checkpoints)
    if manifest and KEY in manifest["environment"]:
        raise RequestError(
            f"the run was begun with clients at sites (--engine, {files.path}): go on with --engine flower"
        )


def assemble_remote(
    config: RunConfig, shards: Shards, place: Place, device: torch.device, carrier: Carrier, how: Elsewhere, token: str
) -> Federation:
    """The federation as the coordinator has it: a server, and the numbers of its clients."""
    dataset, partition = open_shards(shards, place)
    network = network_of(config, dataset, device) if config.model_of(0).is_network else None
    world = world_of(config, dataset, partition, train_sizes(shards.manifest), network, shards.digest)
    clients = [RemoteClient(number) for number in world.sizes]
    quorum = how.quorum if how.quorum is not None else max(1, round_size(config) - 1)
    run = f"{config.setting}/{config.method.variant}/seed-{config.seed}/{token}"
    patience = Patience(how.deadline)
    skips = config.train.on_nan == "skip"
    remote = Remote(carrier, config.method, world, run, clients, quorum, device, patience, how.wait, skips)
    return Federation(
        config.method,
        world,
        [],
        Workers(1),
        Standing(clients, config.method.open(world)),
        config.seed,
        round_size(config),
        device,
        "threads",
        public_truth=public_truth(dataset, partition, device),
        elsewhere=remote,
        quorum=quorum,
    )


def remote_of(federation: Federation) -> Remote:
    """The clients of a federation that are elsewhere."""
    if not isinstance(federation.elsewhere, Remote):
        raise TypeError("these clients are in this process")
    return federation.elsewhere


def where_clients_are(federation: Federation, how: Elsewhere | None) -> dict[str, Any]:
    """What env.json says of the sites; nothing where there are none."""
    if how is None:
        return {}
    remote = remote_of(federation)
    return {KEY: {"engine": how.engine, "sites": len(remote.clients), "token": remote.run.rpartition("/")[2]}}


def devices_of(federation: Federation) -> list[str]:
    """The kinds of devices that clients compute on."""
    if federation.elsewhere is None:
        return sorted({device.type for device in federation.devices})
    return sorted({device.partition(":")[0] for device in remote_of(federation).devices.values()})


def joined(federation: Federation, config: RunConfig, shards: Shards) -> Iterator[set[int]]:
    """Tell the sites what is planned; who is missing, until nobody is. Clients in this process are there."""
    if federation.elsewhere is not None:
        plan = {"version": __version__, "config": config.to_dict(), "shards": shards.digest}
        standing = federation.standing
        yield from remote_of(federation).join(plan, standing.server, standing.finished)


def final_models(federation: Federation) -> dict[str, str]:
    """Have the sites keep their final models: the digests of the files. What noise they drew is put to their names."""
    told = remote_of(federation).finish(federation.standing.server, federation.standing.finished)
    for client in federation.standing.clients:
        answer = told[client.id]
        try:
            if not SHA256.fullmatch(str(answer.get("model"))):
                raise ValueError("no digest")
            if answer.get("ledger") is not None:
                check_ledger(answer["ledger"])
                client.state[LEDGER] = answer["ledger"]
        except (AttributeError, TypeError, ValueError):
            raise FailedRunError(f"client {client.id} answers nonsense (finish): look at its site") from None
    return {model_name(client): told[client]["model"] for client in sorted(told)}


def check_ledger(entries: Any) -> None:
    """Refuse what is no ledger. Raises AttributeError, TypeError or ValueError."""
    for release in read_ledger(entries):
        told = [value for value in (release.epsilon, release.mu, release.sigma) if value is not None]
        whole = type(release.count) is int and type(release.round) is int
        if not whole or not isinstance(release.mechanism, str) or not release.mechanism.isprintable():
            raise TypeError("no release")
        if not all(value == math.inf or protocol.is_number(value) for value in (*told, release.count, release.round)):
            raise TypeError("no numbers")
        if min(told, default=-1) < 0 or release.count < 0:
            raise ValueError("a release that costs nothing")


def told_of_sites(how: Elsewhere | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the summary says of sites: the models are with them, and who was lost in how many rounds."""
    if how is None:
        return {}
    lost = Counter(str(row["client"]) for row in rows if "lost" in row)
    sites = len({row["client"] for row in rows})
    return {KEY: {"engine": how.engine, "sites": sites, "models": "at the sites"}, "lost": dict(lost)}
