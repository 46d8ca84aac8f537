"""One run, recorded: from the first round, or from the last checkpoint, to the summary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run import BESIDE_THE_RESULT
from fedmosaic_cli.engine.evaluation import averages
from fedmosaic_cli.engine.rounds import play, servers_by_device
from fedmosaic_cli.engine.workers import one_core
from fedmosaic_cli.experiment.assemble import assemble, find_devices
from fedmosaic_cli.experiment.environment import environment
from fedmosaic_cli.experiment.plan import open_shards
from fedmosaic_cli.experiment.state import capture, restore, to_arrays
from fedmosaic_cli.machine import keep_freed_memory
from fedmosaic_cli.records import checkpoints
from fedmosaic_cli.records.runs import SCHEMA, RunFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.place import Place
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.engine.rounds import Federation
    from fedmosaic_cli.records.runs import Arrays
    from fedmosaic_cli.records.shards import Shards


@dataclass(frozen=True)
class Begun:
    """The run is about to play: on which devices, how its clients are run, by how many workers on each."""

    devices: list[torch.device]
    execution: str
    workers: int


@dataclass(frozen=True)
class Resumed:
    """The run goes on after this round; `warnings` tell of checkpoints that could not be used."""

    round: int
    warnings: list[str]


@dataclass(frozen=True)
class RoundDone:
    """A round is played and logged."""

    round: int
    accuracy: float
    trust: float | None
    seconds: float


@dataclass(frozen=True)
class Stopped:
    """The run was asked to stop and can be resumed after this round."""

    round: int


@dataclass(frozen=True)
class Finished:
    """The run is complete."""

    summary: dict[str, Any]


Event = Begun | Resumed | RoundDone | Stopped | Finished


def run(
    config: RunConfig,
    shards: Shards,
    files: RunFiles,
    device_name: str,
    place: Place,
    arguments: Sequence[str] = (),
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Play and record the run, from where it stands. Asked to stop, it does so after a round, with a checkpoint."""
    if files.finished() and files.summary()["rounds"] == config.train.rounds:
        yield Finished(files.summary())
        return
    one_core()
    keep_freed_memory()
    federation = assemble(config, *open_shards(shards, place), find_devices(device_name))
    with files.locked(), federation.workers:
        resumed = go_back(files, federation)
        yield Begun(federation.devices, federation.execution, federation.workers.count)
        yield from resumed
        files.create(config.to_dict(), environment(federation, shards.path, arguments))
        for event in record_rounds(config, files, federation, asked_to_stop):
            yield event
            if isinstance(event, Stopped):
                return
        digests = save_models(files, federation)
        summary = {**summarise(config, shards, files.rounds()), "execution": federation.execution, "models": digests}
        files.save_summary(summary)
        yield Finished(summary)


def record_rounds(
    config: RunConfig, files: RunFiles, federation: Federation, asked_to_stop: Callable[[], bool]
) -> Iterator[Event]:
    """Play the rounds that remain, each logged, some kept as checkpoints."""
    last = config.train.rounds
    started = time.perf_counter()
    for done in play(federation, last):
        seconds = time.perf_counter() - started
        files.append(done.rows, {"round": done.number, "seconds": round(seconds, 6)})
        stopping = asked_to_stop() and done.number < last
        if stopping or done.number == last or done.number % config.train.checkpoint_every == 0:
            save_checkpoint(files, federation)
        trusts = [row["lambda"] for row in done.rows if row["lambda"] is not None]
        accuracy = fmean(row["accuracy"] for row in done.rows)
        yield RoundDone(done.number, accuracy, fmean(trusts) if trusts else None, seconds)
        if stopping:
            yield Stopped(done.number)
            return
        started = time.perf_counter()


def go_back(files: RunFiles, federation: Federation) -> list[Event]:
    """Bring the federation to the newest checkpoint, and the logs with it."""
    if not files.exists():
        return []
    checkpoint, warnings = checkpoints.load_newest(files.checkpoints)
    if checkpoint is None:
        files.reopen()
        return [Resumed(0, [])]
    restore(federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
    files.reopen(checkpoint.logs)
    return [Resumed(checkpoint.round, warnings)]


def save_checkpoint(files: RunFiles, federation: Federation) -> None:
    arrays, values = capture(federation.standing)
    checkpoint = checkpoints.Checkpoint(federation.standing.finished, arrays, values, files.log_lengths())
    checkpoints.save(files.checkpoints, checkpoint)


def save_models(files: RunFiles, federation: Federation) -> dict[str, str]:
    """Write the final personal models, one at a time, as some are made for the occasion. Their digests."""
    client_of = {client.id: client for client in federation.standing.clients}
    seen_from = servers_by_device(federation)

    def models() -> Iterator[tuple[int, Arrays]]:
        last: tuple[Parameters, Arrays] | None = None
        for exam in federation.exams:
            client = client_of[exam.owner]
            model = federation.method.personal(seen_from[client.private.device], client)
            if last is None or model is not last[0]:
                last = model, to_arrays(model)
            yield exam.client, last[1]

    return files.save_models(models())


def summarise(config: RunConfig, shards: Shards, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary of a finished run. The number is the last round's.

    The best round is there for information: chosen on validation data, where clients set some aside, it may be used;
    chosen on test data it flatters.
    """
    by_round: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row)
    means = {number: fmean(row["accuracy"] for row in played) for number, played in by_round.items()}
    chosen_by = "val_accuracy" if all("val_accuracy" in row for row in rows) else "accuracy"
    marks = {number: fmean(row[chosen_by] for row in played) for number, played in by_round.items()}
    best = max(marks, key=lambda number: (marks[number], -number))
    last = [row["accuracy"] for row in by_round[config.train.rounds]]
    sizes = shards.test_sizes()
    method, content = config.method, config.to_dict()
    return {
        "schema": SCHEMA,
        "preset": config.setting,
        "dataset": config.data.dataset,
        "scheme": config.data.scheme,
        "method": method.name,
        "variant": method.variant,
        "expertise": getattr(method, "expertise", None),
        "hyperparameters": content["methods"][method.name],
        "seed": config.seed,
        "rounds": config.train.rounds,
        "model": content["model"],
        "train": {key: value for key, value in content["train"].items() if f"train.{key}" not in BESIDE_THE_RESULT},
        "clients": content["clients"],
        "shards": {"digest": shards.digest, "parameters": shards.manifest["parameters"], "clients": len(sizes)},
        "accuracy": {**averages(last, sizes), "per_client": last},
        "global_accuracy": global_accuracy(by_round[config.train.rounds], sizes),
        "best_round": {
            "round": best,
            "client_mean": means[best],
            "chosen_on": "validation" if chosen_by == "val_accuracy" else "test",
        },
        "bits": {way: None if method.pooled else sum(row[f"bits_{way}"] for row in rows) for way in ("up", "down")},
        "evaluation": {"model": method.evaluated, "clients": "each on its own test part", "round": "last"},
    }


def global_accuracy(rows: list[dict[str, Any]], sizes: list[int]) -> dict[str, Any] | None:
    """The same averages for the global model, where the method has one."""
    marks = [row["global_accuracy"] for row in rows if "global_accuracy" in row]
    return {**averages(marks, sizes), "per_client": marks} if marks else None
