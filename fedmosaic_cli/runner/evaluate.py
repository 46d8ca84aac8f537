"""Examining the saved personal models of finished runs, without training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedmosaic_cli.config.run_config import stored_run
from fedmosaic_cli.engine.evaluation import METRICS, averages, examine
from fedmosaic_cli.engine.execution.worker_pool import one_core
from fedmosaic_cli.errors import FailedRunError, RequestError
from fedmosaic_cli.machine import keep_freed_memory
from fedmosaic_cli.runner.build import Classroom, Table, as_trained_on, find_devices, pool
from fedmosaic_cli.runner.prepare import check_finished, deal, open_shards
from fedmosaic_cli.runner.run_state import to_tensors
from fedmosaic_cli.storage import shards as shard_records
from fedmosaic_cli.storage.run_summary import SCHEMA
from fedmosaic_cli.storage.runs import CONFIG, ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import Tensor

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.storage.runs import RunFiles

T = TypeVar("T")
Split = Literal["test", "train", "val"]
Shapes = dict[str, "torch.Size"]
# More numbers than this, in the matrices of all clients together, are no file that anybody would read.
MOST_COUNTS = 5_000_000
ABOUT_THE_RUN = ("preset", "dataset", "scheme", "method", "variant", "seed", "rounds")


@dataclass(frozen=True)
class Examined:
    """One more client of a run."""

    files: RunFiles
    client: int


@dataclass(frozen=True)
class Evaluated:
    """All clients of a run: what is written to evaluation.json."""

    files: RunFiles
    result: dict[str, Any]


Event = Examined | Evaluated


@dataclass(frozen=True)
class Finished:
    """A run that is there to be examined."""

    files: RunFiles
    config: RunConfig
    summary: dict[str, Any]

    @property
    def data(self) -> tuple[str, ...]:
        """Stands for the examples behind the run, and last for who holds which of them."""
        settings = self.config.data
        return settings.dataset, repr(settings.domains), repr(settings.image_size), self.summary["shards"]["digest"]


def evaluate(runs: Sequence[RunFiles], split: Split, device_name: str, place: Place) -> Iterator[Event]:
    """Every client's personal model on its own test, training or validation part, run by run.

    Runs on the same data follow each other, in whichever order they are named: it is read once.
    """
    opened = [open_run(files, place) for files in runs]
    yield from on_their_data(opened, find_devices(device_name)[0], place, partial(examine_run, split=split))


def on_their_data(
    runs: Sequence[Finished],
    device: torch.device,
    place: Place,
    look: Callable[[Finished, Table, Partition], Iterator[T]],
) -> Iterator[T]:
    """What `look` yields of each run and its data on the device. Whoever looks must not keep the data."""
    import torch

    one_core()
    keep_freed_memory()
    there: tuple[tuple[str, ...], Table, Partition] | None = None
    for run in sorted(runs, key=lambda run: run.data):
        if there is None or there[0] != run.data:
            there = None  # before the next one comes: two would not always fit
            dataset, dealt = data_of(run, place)
            there = run.data, Table(dataset, dealt, device, torch.float32, run.config.train.images), dealt
        yield from look(fit_for(run, device), there[1], as_trained_on(there[2], run.config))


def open_run(files: RunFiles, place: Place) -> Finished:
    """A run that is finished, and whole as far as it is read here."""
    check_finished(files)
    files.check(CONFIG, ENVIRONMENT)
    summary = files.summary()
    if "federation" in summary:
        raise RequestError(
            f"the models of this run stayed with its sites ({files.path}): each has its own, 'fedmosaic site status' "
            "there says where"
        )
    return Finished(files, stored_run(files.config, place), summary)


def fit_for(run: Finished, device: torch.device) -> Finished:
    """The run with what this device can compute in: half precision is for GPUs, and weights are kept in full."""
    if device.type != "cpu":
        return run
    full = {"precision": "float32"}
    trainings = {client: train.model_copy(update=full) for client, train in run.config.trainings.items()}
    config = replace(run.config, train=run.config.train.model_copy(update=full), trainings=trainings)
    return replace(run, config=config)


def examine_run(run: Finished, table: Table, dealt: Partition, split: Split) -> Iterator[Event]:
    """Each client of a run, and what they come to."""
    if split == "val" and not all("val" in shard.parts() for shard in dealt.shards):
        raise RequestError(f"nothing was set aside for validation ({run.files.path}): partition with --val-fraction")
    marks: list[dict[str, Any]] = []
    for shard, learner, model in saved_models(run, table, dealt):
        marks.append(examine_client(run, shard, learner, model, table, split))
        yield Examined(run.files, shard.client)
    sizes = [mark["examples"] for mark in marks]
    overview = {name: averages([mark[name] for mark in marks], sizes, worst) for name, worst in METRICS.items()}
    yield Evaluated(
        run.files,
        {
            "schema": SCHEMA,
            **{key: run.summary[key] for key in ABOUT_THE_RUN},
            "split": split,
            "device": str(table.device),
            "precision": run.config.train.precision,
            "class_names": list(table.dataset.class_names),
            **overview,
            "per_client": marks,
        },
    )


def saved_models(run: Finished, table: Table, dealt: Partition) -> Iterator[tuple[Shard, Learner, Parameters]]:
    """Each client's shard, its personal model, and what knows how to ask it."""
    classroom, shapes = Classroom(run.config), {}
    pooled = classroom.learner(0, pool(table, dealt.shards), table) if run.config.method.pooled else None
    for shard in dealt.shards:
        learner = pooled or classroom.learner(shard.client, table.examples(shard, "train"), table)
        if learner not in shapes:  # clients with the same network share a learner
            shapes[learner] = shapes_of(learner.initial_parameters(0))
        yield shard, learner, load_model(run, shard.client, shapes[learner], table.device)


def examine_client(
    run: Finished, shard: Shard, learner: Learner, model: Parameters, table: Table, split: Split
) -> dict[str, Any]:
    """The entry of one client. Its answers leave the device once, all together."""
    import torch

    logits = answers(run, shard.client, learner, model, table.examples(shard, split))
    labels = torch.as_tensor(shard.labels(split, table.dataset))
    few = table.dataset.num_classes**2 * run.summary["shards"]["clients"] <= MOST_COUNTS
    entry = {"client": shard.client, "domain": shard.domain, "examples": len(labels)}
    return {**entry, **vars(examine(logits, labels, with_confusion=few))}


def answers(run: Finished, client: int, learner: Learner, model: Parameters, examples: Examples) -> Tensor:
    """The logits of a client's model, with the host; refused where they are no numbers."""
    logits = learner.predict(model, examples).cpu()
    if not logits.isfinite().all():
        raise FailedRunError(
            f"the model of client {client} gives numbers that are none ({run.files.path}): "
            "make the run anew with a lower learning rate"
        )
    return logits


def data_of(run: Finished, place: Place) -> tuple[Dataset, Partition]:
    """The data of a run: its shards, or, where they are gone, the same ones dealt again in memory."""
    files, digest = run.files, run.summary["shards"]["digest"]
    path = Path(str(files.environment().get("shards", "")))
    if (path / shard_records.MANIFEST).is_file():
        shards = shard_records.load(path)
        if shards.digest == digest:
            return open_shards(shards, place)
    again = deal(run.config.data, run.config.partition_seed, path, place)
    if again.shards.digest != digest:
        raise RequestError(
            f"'{again.dataset.name}' here is not the data of this run ({files.path}): restore the data set or {path}"
        )
    return again.dataset, again.shards.partition


def shapes_of(parameters: Parameters) -> Shapes:
    return {name: tensor.shape for name, tensor in parameters.items()}


def load_model(run: Finished, client: int, expected: Shapes, device: torch.device) -> Parameters:
    """A saved model, if it fits the architecture of the run."""
    parameters = to_tensors(run.files.load_model(client, run.summary.get("models", {})), device)
    if shapes_of(parameters) != expected:
        raise RequestError(
            f"the model of client {client} does not fit the run's architecture ({run.files.path}): it is damaged"
        )
    return parameters
