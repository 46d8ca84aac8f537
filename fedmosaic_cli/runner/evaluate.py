"""Examining the saved personal models of finished runs, without training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedmosaic_cli.config.run_config import load_run_config
from fedmosaic_cli.engine.evaluation import EVAL_METRICS, classification_metrics, client_averages
from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.machine import tune_malloc
from fedmosaic_cli.runner.build import (
    DeviceDataset,
    LearnerFactory,
    find_devices,
    pool_training_examples,
    with_poisoned_labels,
)
from fedmosaic_cli.runner.prepare import load_shard_data, partition_resolved, require_finished_run
from fedmosaic_cli.runner.run_state import to_tensors
from fedmosaic_cli.storage import shards as shard_records
from fedmosaic_cli.storage.run_summary import SUMMARY_SCHEMA
from fedmosaic_cli.storage.runs import CONFIG_FILE, ENVIRONMENT_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import Tensor

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.storage.runs import RunDirectory

T = TypeVar("T")
Split = Literal["test", "train", "val"]
ParameterShapes = dict[str, "torch.Size"]
# More numbers than this, in the matrices of all clients together, are no file that anybody would read.
MAX_CONFUSION_COUNTS = 5_000_000
COPIED_SUMMARY_KEYS = ("preset", "dataset", "scheme", "method", "variant", "seed", "rounds")


@dataclass(frozen=True)
class ClientEvaluated:
    """One more client of a run."""

    files: RunDirectory
    client: int


@dataclass(frozen=True)
class RunEvaluated:
    """All clients of a run: what is written to evaluation.json."""

    files: RunDirectory
    result: dict[str, Any]


EvaluationEvent = ClientEvaluated | RunEvaluated


@dataclass(frozen=True)
class FinishedRun:
    """A run that is there to be examined."""

    files: RunDirectory
    config: RunConfig
    summary: dict[str, Any]

    @property
    def data_key(self) -> tuple[str, ...]:
        """Stands for the examples behind the run, and last for who holds which of them."""
        settings = self.config.data
        return settings.dataset, repr(settings.domains), repr(settings.image_size), self.summary["shards"]["digest"]


def evaluate_saved_models(
    runs: Sequence[RunDirectory], split: Split, device_name: str, data_dirs: DataDirs
) -> Iterator[EvaluationEvent]:
    """Every client's personal model on its own test, training or validation part, run by run.

    Runs on the same data follow each other, in whichever order they are named: it is read once.
    """
    opened = [load_finished_run(files, data_dirs) for files in runs]
    yield from process_runs(opened, find_devices(device_name)[0], data_dirs, partial(evaluate_run, split=split))


def process_runs(
    runs: Sequence[FinishedRun],
    device: torch.device,
    data_dirs: DataDirs,
    process: Callable[[FinishedRun, DeviceDataset, Partition], Iterator[T]],
) -> Iterator[T]:
    """What `look` yields of each run and its data on the device. Whoever looks must not keep the data."""
    import torch

    use_single_thread()
    tune_malloc()
    there: tuple[tuple[str, ...], DeviceDataset, Partition] | None = None
    for run in sorted(runs, key=lambda run: run.data_key):
        if there is None or there[0] != run.data_key:
            there = None  # before the next one comes: two would not always fit
            dataset, dealt = load_run_data(run, data_dirs)
            there = run.data_key, DeviceDataset(dataset, dealt, device, torch.float32, run.config.train.images), dealt
        yield from process(with_supported_precision(run, device), there[1], with_poisoned_labels(there[2], run.config))


def load_finished_run(files: RunDirectory, data_dirs: DataDirs) -> FinishedRun:
    """A run that is finished, and whole as far as it is read here."""
    require_finished_run(files)
    files.verify_files(CONFIG_FILE, ENVIRONMENT_FILE)
    summary = files.read_summary()
    if "federation" in summary:
        raise RequestError(
            f"the models of this run stayed with its sites ({files.path}): each has its own, 'fedmosaic site status' "
            "there says where"
        )
    return FinishedRun(files, load_run_config(files.config_path, data_dirs), summary)


def with_supported_precision(run: FinishedRun, device: torch.device) -> FinishedRun:
    """The run with what this device can compute in: half precision is for GPUs, and weights are kept in full."""
    if device.type != "cpu":
        return run
    full = {"precision": "float32"}
    trainings = {client: train.model_copy(update=full) for client, train in run.config.client_train_settings.items()}
    config = replace(run.config, train=run.config.train.model_copy(update=full), client_train_settings=trainings)
    return replace(run, config=config)


def evaluate_run(
    run: FinishedRun, device_dataset: DeviceDataset, partition: Partition, split: Split
) -> Iterator[EvaluationEvent]:
    """Each client of a run, and what they come to."""
    if split == "val" and not all("val" in shard.splits() for shard in partition.shards):
        raise RequestError(f"nothing was set aside for validation ({run.files.path}): partition with --val-fraction")
    marks: list[dict[str, Any]] = []
    for shard, learner, model in load_saved_models(run, device_dataset, partition):
        marks.append(evaluate_saved_client(run, shard, learner, model, device_dataset, split))
        yield ClientEvaluated(run.files, shard.client)
    sizes = [mark["examples"] for mark in marks]
    overview = {
        name: client_averages([mark[name] for mark in marks], sizes, worst) for name, worst in EVAL_METRICS.items()
    }
    yield RunEvaluated(
        run.files,
        {
            "schema": SUMMARY_SCHEMA,
            **{key: run.summary[key] for key in COPIED_SUMMARY_KEYS},
            "split": split,
            "device": str(device_dataset.device),
            "precision": run.config.train.precision,
            "class_names": list(device_dataset.dataset.class_names),
            **overview,
            "per_client": marks,
        },
    )


def load_saved_models(
    run: FinishedRun, device_dataset: DeviceDataset, partition: Partition
) -> Iterator[tuple[Shard, Learner, Parameters]]:
    """Each client's shard, its personal model, and what knows how to ask it."""
    classroom, shapes = LearnerFactory(run.config), {}
    pooled = (
        classroom.learner(0, pool_training_examples(device_dataset, partition.shards), device_dataset)
        if run.config.method.is_centralized
        else None
    )
    for shard in partition.shards:
        learner = pooled or classroom.learner(shard.client, device_dataset.examples(shard, "train"), device_dataset)
        if learner not in shapes:  # clients with the same network share a learner
            shapes[learner] = parameter_shapes(learner.initial_parameters(0))
        yield shard, learner, load_saved_model(run, shard.client, shapes[learner], device_dataset.device)


def evaluate_saved_client(
    run: FinishedRun, shard: Shard, learner: Learner, model: Parameters, device_dataset: DeviceDataset, split: Split
) -> dict[str, Any]:
    """The entry of one client. Its answers leave the device once, all together."""
    import torch

    logits = predict_logits(run, shard.client, learner, model, device_dataset.examples(shard, split))
    labels = torch.as_tensor(shard.split_labels(split, device_dataset.dataset))
    few = device_dataset.dataset.num_classes**2 * run.summary["shards"]["clients"] <= MAX_CONFUSION_COUNTS
    entry = {"client": shard.client, "domain": shard.domain, "examples": len(labels)}
    return {**entry, **vars(classification_metrics(logits, labels, with_confusion=few))}


def predict_logits(run: FinishedRun, client: int, learner: Learner, model: Parameters, examples: Examples) -> Tensor:
    """The logits of a client's model, with the host; refused where they are no numbers."""
    logits = learner.predict(model, examples).cpu()
    if not logits.isfinite().all():
        raise RunFailedError(
            f"the model of client {client} gives numbers that are none ({run.files.path}): "
            "make the run anew with a lower learning rate"
        )
    return logits


def load_run_data(run: FinishedRun, data_dirs: DataDirs) -> tuple[Dataset, Partition]:
    """The data of a run: its shards, or, where they are gone, the same ones dealt again in memory."""
    files, digest = run.files, run.summary["shards"]["digest"]
    path = Path(str(files.read_environment().get("shards", "")))
    if (path / shard_records.SHARD_MANIFEST_FILE).is_file():
        shards = shard_records.read_shards(path)
        if shards.digest == digest:
            return load_shard_data(shards, data_dirs)
    again = partition_resolved(run.config.data, run.config.partition_seed, path, data_dirs)
    if again.shards.digest != digest:
        raise RequestError(
            f"'{again.dataset.name}' here is not the data of this run ({files.path}): restore the data set or {path}"
        )
    return again.dataset, again.shards.partition


def parameter_shapes(parameters: Parameters) -> ParameterShapes:
    return {name: tensor.shape for name, tensor in parameters.items()}


def load_saved_model(
    run: FinishedRun, client: int, expected_shapes: ParameterShapes, device: torch.device
) -> Parameters:
    """A saved model, if it fits the architecture of the run."""
    parameters = to_tensors(run.files.load_model(client, run.summary.get("models", {})), device)
    if parameter_shapes(parameters) != expected_shapes:
        raise RequestError(
            f"the model of client {client} does not fit the run's architecture ({run.files.path}): it is damaged"
        )
    return parameters
