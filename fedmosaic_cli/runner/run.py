"""One run, recorded: from the first round, or from the last checkpoint, to the summary."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import recorded_run
from fedmosaic_cli.engine.execution.worker_pool import one_core
from fedmosaic_cli.engine.local_pool import servers_by_device
from fedmosaic_cli.engine.rounds import play
from fedmosaic_cli.errors import DivergenceError, FailedRunError, RunStateError
from fedmosaic_cli.federation.coordinator import (
    assemble_remote,
    check_engine,
    devices_of,
    final_models,
    joined,
    token_of,
    told_of_sites,
    where_clients_are,
)
from fedmosaic_cli.machine import keep_freed_memory
from fedmosaic_cli.runner.build import assemble, find_devices
from fedmosaic_cli.runner.environment import environment
from fedmosaic_cli.runner.prepare import configuration_of, open_shards
from fedmosaic_cli.runner.privacy_section import told_of_noise
from fedmosaic_cli.runner.resume_checks import check_departures, departures
from fedmosaic_cli.runner.run_state import capture, restore, to_arrays
from fedmosaic_cli.runner.summary import ledgers_of, left_out, summarise, told_of_trust
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.runs import DIGESTS, RunFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.engine.rounds import Federation, Round
    from fedmosaic_cli.federation.coordinator import Elsewhere
    from fedmosaic_cli.storage.runs import Arrays
    from fedmosaic_cli.storage.shards import Shards


@dataclass(frozen=True)
class Begun:
    """The run is about to play: on which devices, how its clients are run, by how many workers on each."""

    devices: list[torch.device]
    execution: str
    workers: int


@dataclass(frozen=True)
class Resumed:
    """The run goes on after this round; `warnings` tell of files that could not be used."""

    round: int
    warnings: list[str]


@dataclass(frozen=True)
class Waiting:
    """Some clients have not joined yet."""

    clients: set[int]


@dataclass(frozen=True)
class RoundDone:
    """A round is played and logged; `rows` are its lines in the log. `lost` are clients that were not heard of, and
    why."""

    round: int
    accuracy: float
    trust: float | None
    seconds: float
    left_out: list[int]
    lost: dict[int, str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Stopped:
    """The run was asked to stop and can be resumed after this round."""

    round: int


@dataclass(frozen=True)
class Finished:
    """The run is complete."""

    summary: dict[str, Any]


Event = Begun | Resumed | Waiting | RoundDone | Stopped | Finished


@dataclass(frozen=True)
class Terms:
    """Under what terms a run is made.

    `arguments` are recorded. Somebody may ask to stop, and then waits `grace` seconds for the round to end. With
    `nonidentical`, a run may go on to another result than it would have come to in one go.
    """

    device: str = "auto"
    arguments: tuple[str, ...] = ()
    asked_to_stop: Callable[[], bool] = lambda: False
    grace: float = 30.0
    nonidentical: bool = False
    elsewhere: Elsewhere | None = None
    """Where the clients are, if not in this process."""


USUAL = Terms()


def run(config: RunConfig, shards: Shards, files: RunFiles, place: Place, terms: Terms = USUAL) -> Iterator[Event]:
    """Play and record the run, from where it stands. Asked to stop, it does so after a round, with a checkpoint."""
    damaged = files.damage() if files.finished() else []
    if files.finished() and not damaged and files.summary()["rounds"] == config.train.rounds:
        yield Finished(files.summary())
        return
    one_core()
    keep_freed_memory()
    with federated(config, shards, files, place, terms) as federation:
        now = {**environment(federation, shards, terms.arguments), **where_clients_are(federation, terms.elsewhere)}
        resumed, origin = go_back(config, files, federation, now, shards.manifest, place, terms.nonidentical)
        yield Begun(federation.devices, federation.execution, federation.workers.count)
        if resumed is not None:
            mended = [f"the file is missing or damaged ({path}); made again" for path in damaged]
            yield Resumed(resumed.round, mended + resumed.warnings)
        for missing in joined(federation, config, shards):
            if terms.asked_to_stop():
                yield Stopped(federation.standing.finished)
                return
            yield Waiting(missing)
        for event in record_rounds(config, files, federation, origin, terms):
            yield event
            if isinstance(event, Stopped):
                return
        digests = save_models(files, federation) if terms.elsewhere is None else final_models(federation)
        rows = files.rounds()
        summary = {
            **summarise(config, shards, rows),
            **told_of_noise(config, shards, ledgers_of(federation), sites=terms.elsewhere is not None),
            **told_of_trust(config, rows),
            "device": ", ".join(devices_of(federation)),
            "execution": federation.execution,
            "nonidentical": origin["nonidentical"],
            "left_out": left_out(rows),
            "degraded": sorted({row["round"] for row in rows if "degraded" in row}),
            "models": digests,
            **told_of_sites(terms.elsewhere, rows),
        }
        files.finish(summary)
        yield Finished(summary)


@contextmanager
def federated(config: RunConfig, shards: Shards, files: RunFiles, place: Place, terms: Terms) -> Iterator[Federation]:
    """The federation at its start, with its clients here or elsewhere."""
    devices, how = find_devices(terms.device), terms.elsewhere
    if how is None:
        check_engine(files)
        federation = assemble(config, *open_shards(shards, place), devices, shards_digest=shards.digest)
        with federation.workers:
            yield federation
        return
    token = token_of(files)
    with how.open() as carrier:
        yield assemble_remote(config, shards, place, devices[0], carrier, how, token)


def record_rounds(
    config: RunConfig, files: RunFiles, federation: Federation, origin: dict[str, Any], terms: Terms
) -> Iterator[Event]:
    """Play the rounds that remain, each logged, some kept as checkpoints.

    A checkpoint is made every so many rounds, and before the last one is older than anybody waits for a round to end:
    so hardly more than a round is lost when one is dropped because time is up.
    """
    last, rounds = config.train.rounds, play(federation, config.train.rounds)
    started = saved = time.perf_counter()
    while (done := next_round(rounds, config, files)) is not None:
        seconds = time.perf_counter() - started
        files.append(done.rows, {"round": done.number, "seconds": round(seconds, 6)})
        stopping = terms.asked_to_stop() and done.number < last
        # As long as this round took, the next one may.
        late = time.perf_counter() - saved + seconds >= terms.grace
        # Sites cannot go back further than a round or two.
        due = done.number % config.train.checkpoint_every == 0 or late or federation.elsewhere is not None
        if stopping or due or done.number == last:
            save_checkpoint(files, federation, origin)
            saved = time.perf_counter()
        trusts = [row["lambda"] for row in done.rows if row["lambda"] is not None]
        accuracy = fmean(row["accuracy"] for row in done.rows)
        left_out = [row["client"] for row in done.rows if "left_out" in row]
        lost = {row["client"]: row["lost"] for row in done.rows if "lost" in row}
        yield RoundDone(done.number, accuracy, fmean(trusts) if trusts else None, seconds, left_out, lost, done.rows)
        if stopping:
            yield Stopped(done.number)
            return
        started = time.perf_counter()


def next_round(rounds: Iterator[Round], config: RunConfig, files: RunFiles) -> Round | None:
    """The next round, if there is one. A client that diverges is the end of the run, not of what was kept."""
    try:
        return next(rounds, None)
    except DivergenceError as error:
        rates = {"train.lr": config.train_of(error.client).lr, **numbers_of(config)}
        values = ", ".join(f"{key} {value:g}" for key, value in rates.items())
        kept = checkpoints.all_in(files.checkpoints)
        raise FailedRunError(
            f"client {error.client} diverged in round {error.round} of {config.method.variant}, seed {config.seed}, "
            f"{error.what} is not finite ({values}): lower the learning rate"
            f"{', or leave such clients out with --on-nan skip' if config.train.on_nan == 'stop' else ''}; "
            f"{f'{kept[-1]} is kept' if kept else 'there is no checkpoint yet'}"
        ) from None


def numbers_of(config: RunConfig) -> dict[str, float]:
    """The method's own hyper-parameters, as far as they are numbers."""
    name = config.method.name
    own = config.to_dict()["methods"][name].items()
    return {f"methods.{name}.{key}": value for key, value in own if isinstance(value, float)}


def go_back(
    config: RunConfig,
    files: RunFiles,
    federation: Federation,
    now: dict[str, Any],
    manifest: dict[str, Any],
    place: Place,
    nonidentical: bool,
) -> tuple[Resumed | None, dict[str, Any]]:
    """Bring federation and files to the newest checkpoint, or to the start; where the run comes from.

    Until it is clear that the run can go on, nothing is changed.
    """
    begun = files.exists()
    checkpoint, damaged = checkpoints.load_newest(files.checkpoints)
    origin: dict[str, Any] = {"config": config.to_dict(), "environment": now, "nonidentical": []}
    if checkpoint is None:
        check_nothing_lost(files, config, place)
        files.open(origin["config"], now, manifest, {})
        return Resumed(0, []) if begun else None, origin
    was = checkpoint.origin
    found = departures(recorded_run(was["config"], str(files.checkpoints), place), config, was["environment"], now)
    check_departures(found, nonidentical, str(files.path))
    restore(federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
    if not found:
        origin["environment"] = was["environment"]  # the record of how the run began
    origin["nonidentical"] = was["nonidentical"] + [f"after round {checkpoint.round}: {text}" for text in found]
    warnings = [f"{reason}; using the checkpoint of round {checkpoint.round}" for reason in damaged.values()]
    warnings += changed_logs(files, checkpoint.logs)
    for path in damaged:
        checkpoints.set_aside(path)
    files.open(origin["config"], origin["environment"], manifest, checkpoint.logs)
    return Resumed(checkpoint.round, warnings), origin


def check_nothing_lost(files: RunFiles, config: RunConfig, place: Place) -> None:
    """Refuse to begin again what had come so far that there must have been checkpoints.

    The round after which the first is made may be logged before it is there.
    """
    if not files.exists():
        return
    every = max(config.train.checkpoint_every, configuration_of(files, place).train.checkpoint_every)
    if files.finished() or (files.path / DIGESTS).exists() or files.rounds_logged() > every:
        raise RunStateError(
            f"its checkpoints are gone ({files.checkpoints}): put them back, or start the run anew in another place"
        )


def changed_logs(files: RunFiles, before: dict[str, bytes]) -> list[str]:
    """A warning for each log that does not begin as it did when the checkpoint was made; the checkpoint knows it."""
    warnings = []
    for name, content in before.items():
        path = files.path / name
        if not path.is_file() or path.read_bytes()[: len(content)] != content:
            warnings.append(f"the log is missing or damaged ({path}); taken from the checkpoint")
    return warnings


def save_checkpoint(files: RunFiles, federation: Federation, origin: dict[str, Any]) -> None:
    arrays, values = capture(federation.standing)
    state = checkpoints.Checkpoint(federation.standing.finished, arrays, values, files.logs(), origin)
    checkpoints.save(files.checkpoints, state)


def save_models(files: RunFiles, federation: Federation) -> dict[str, str]:
    """Write the final personal models, one at a time, as some are made for the occasion. Their digests."""
    client_of = {client.id: client for client in federation.standing.clients}
    seen_from = servers_by_device(federation)

    def models() -> Iterator[tuple[int, Arrays]]:
        last: tuple[Parameters, Arrays] | None = None
        for exam in federation.exams:
            client = client_of[exam.owner]
            model = federation.method.personal(seen_from[client.device], client)
            if last is None or model is not last[0]:
                last = model, to_arrays(model)
            yield exam.client, last[1]

    return files.save_models(models())
