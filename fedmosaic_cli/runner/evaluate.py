"""Evaluate the saved personal models of finished runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedmosaic_cli.config.run_config import load_run_config
from fedmosaic_cli.engine.evaluation import EVAL_METRICS, classification_metrics, client_averages
from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
from fedmosaic_cli.engine.learner import ClientPredictor
from fedmosaic_cli.engine.method import has_prediction_rule
from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.machine import collect_as_usual, tune_malloc
from fedmosaic_cli.plugin_sources import plugin_failure
from fedmosaic_cli.runner.accelerator_options import accelerator_options
from fedmosaic_cli.runner.build import find_devices, pool_training_examples, with_poisoned_labels
from fedmosaic_cli.runner.checkpoint_state import to_tensors
from fedmosaic_cli.runner.device_dataset import DeviceDataset
from fedmosaic_cli.runner.learner_factory import LearnerFactory
from fedmosaic_cli.runner.prepare import load_shard_data, partition_resolved, require_finished_run
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
    from fedmosaic_cli.engine.context import Parameters, Predictor
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.storage.runs import RunDirectory

T = TypeVar("T")
Split = Literal["test", "train", "val"]
ParameterShapes = dict[str, "torch.Size"]
# Confusion matrices are omitted if those of all clients together have more entries.
MAX_CONFUSION_COUNTS = 5_000_000
COPIED_SUMMARY_KEYS = ("preset", "dataset", "scheme", "method", "variant", "seed", "rounds")


@dataclass(frozen=True)
class ClientEvaluated:
    """One client of a run is evaluated."""

    files: RunDirectory
    client: int


@dataclass(frozen=True)
class RunEvaluated:
    """All clients of a run are evaluated; `result` is the content of evaluation.json."""

    files: RunDirectory
    result: dict[str, Any]


EvaluationEvent = ClientEvaluated | RunEvaluated


@dataclass(frozen=True)
class FinishedRun:
    """A finished run with its configuration and summary."""

    files: RunDirectory
    config: RunConfig
    summary: dict[str, Any]

    @property
    def data_key(self) -> tuple[str, ...]:
        """Identifies the data set, and last the partition."""
        settings = self.config.data
        return settings.dataset, repr(settings.domains), repr(settings.image_size), self.summary["shards"]["digest"]


def evaluate_saved_models(
    runs: Sequence[RunDirectory], split: Split, device_name: str, data_dirs: DataDirs
) -> Iterator[EvaluationEvent]:
    """Evaluate each client's personal model on its own test, training or validation data.

    Args:
        runs: Directories of finished runs; runs on the same data are evaluated consecutively.
        split: The part of each client's data.
        device_name: auto, cpu, cuda or mps.
        data_dirs: Where the data sets are.

    Yields:
        One event per client and one per run.
    """
    opened = [load_finished_run(files, data_dirs) for files in runs]
    yield from process_runs(opened, find_devices(device_name)[0], data_dirs, partial(evaluate_run, split=split))


def process_runs(
    runs: Sequence[FinishedRun],
    device: torch.device,
    data_dirs: DataDirs,
    process: Callable[[FinishedRun, DeviceDataset, Partition], Iterator[T]],
) -> Iterator[T]:
    """Yield from `process(run, data on the device, partition)` for each run; `process` must not keep the data."""
    import torch

    use_single_thread()
    tune_malloc()
    collect_as_usual()
    loaded: tuple[tuple[str, ...], DeviceDataset, Partition] | None = None
    for run in sorted(runs, key=lambda run: run.data_key):
        if loaded is None or loaded[0] != run.data_key:
            loaded = None  # free the memory before the next data set is loaded
            dataset, partition = load_run_data(run, data_dirs)
            on_device = DeviceDataset(dataset, partition, device, torch.float32, run.config.train.images)
            loaded = run.data_key, on_device, partition
        with accelerator_options(run.config.train, device):
            yield from process(
                with_supported_precision(run, device), loaded[1], with_poisoned_labels(loaded[2], run.config)
            )


def load_finished_run(files: RunDirectory, data_dirs: DataDirs) -> FinishedRun:
    """Open a finished run and verify its configuration and environment files."""
    require_finished_run(files)
    files.verify_files(CONFIG_FILE, ENVIRONMENT_FILE)
    summary = files.read_summary()
    if "federation" in summary:
        raise RequestError(
            f"the models of this run are at its sites ({files.path}): 'fedmosaic site status' at a site shows its model"
        )
    config = load_run_config(files.config_path, data_dirs)
    recorded = files.read_environment().get("plugins", {})
    changed = sorted(name for name, source in config.plugins().items() if source != recorded.get(name))
    if changed:
        raise RequestError(
            f"the plug-in {changed[0]} is not that of the run ({files.path}): name the same file or package"
        )
    return FinishedRun(files, config, summary)


def with_supported_precision(run: FinishedRun, device: torch.device) -> FinishedRun:
    """Return the run with float32 on a CPU; saved weights are always float32."""
    if device.type != "cpu":
        return run
    float32 = {"precision": "float32"}
    trainings = {client: train.model_copy(update=float32) for client, train in run.config.client_train_settings.items()}
    config = replace(run.config, train=run.config.train.model_copy(update=float32), client_train_settings=trainings)
    return replace(run, config=config)


def evaluate_run(
    run: FinishedRun, device_dataset: DeviceDataset, partition: Partition, split: Split
) -> Iterator[EvaluationEvent]:
    """Evaluate all clients of a run and their averages."""
    if split == "val" and not all("val" in shard.splits() for shard in partition.shards):
        raise RequestError(f"the clients have no validation data ({run.files.path}): partition with --val-fraction")
    entries: list[dict[str, Any]] = []
    for shard, predictor, model in load_saved_models(run, device_dataset, partition):
        entries.append(evaluate_saved_client(run, shard, predictor, model, device_dataset, split))
        yield ClientEvaluated(run.files, shard.client)
    sizes = [entry["examples"] for entry in entries]
    averages = {
        name: client_averages([entry[name] for entry in entries], sizes, worst) for name, worst in EVAL_METRICS.items()
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
            **averages,
            "per_client": entries,
        },
    )


def load_saved_models(
    run: FinishedRun, device_dataset: DeviceDataset, partition: Partition
) -> Iterator[tuple[Shard, ClientPredictor, Parameters]]:
    """Yield each client's shard, what predicts with its networks, and its personal model."""
    learners, shapes = LearnerFactory(run.config), {}
    pooled = (
        learners.learner(0, pool_training_examples(device_dataset, partition.shards), device_dataset)
        if run.config.method.needs.pooled_data
        else None
    )
    for shard in partition.shards:
        learner = pooled or learners.learner(shard.client, device_dataset.examples(shard, "train"), device_dataset)
        if learner not in shapes:  # clients with the same network share a learner
            shapes[learner] = parameter_shapes(learner.initial_parameters(0))
        predictor = ClientPredictor(learner, learners.networks(shard.client, device_dataset))
        yield shard, predictor, load_saved_model(run, shard.client, shapes[learner], device_dataset.device)


def evaluate_saved_client(
    run: FinishedRun,
    shard: Shard,
    predictor: Predictor,
    model: Parameters,
    device_dataset: DeviceDataset,
    split: Split,
) -> dict[str, Any]:
    """Return the entry of one client in evaluation.json."""
    import torch

    logits = predict_logits(run, shard.client, predictor, model, device_dataset.examples(shard, split))
    labels = torch.as_tensor(shard.split_labels(split, device_dataset.dataset))
    with_confusion = device_dataset.dataset.num_classes**2 * run.summary["shards"]["clients"] <= MAX_CONFUSION_COUNTS
    entry = {"client": shard.client, "domain": shard.domain, "examples": len(labels)}
    return {**entry, **vars(classification_metrics(logits, labels, with_confusion=with_confusion))}


def predict_logits(
    run: FinishedRun, client: int, predictor: Predictor, model: Parameters, examples: Examples
) -> Tensor:
    """Return the logits of a client's model on the CPU; raise RunFailedError if they are not finite."""
    try:
        logits = run.config.method.predict(model, predictor, examples).cpu()
    except (KeyError, RuntimeError) as error:
        raise plugin_failure(error) or misfit_error(run, client) from None
    if not logits.isfinite().all():
        raise RunFailedError(
            f"the outputs of client {client}'s model are not finite ({run.files.path}): "
            "repeat the run with a lower learning rate"
        )
    return logits


def load_run_data(run: FinishedRun, data_dirs: DataDirs) -> tuple[Dataset, Partition]:
    """Load the data of a run from its shards, or partition the data set again if they are gone."""
    files, digest = run.files, run.summary["shards"]["digest"]
    path = Path(str(files.read_environment().get("shards", "")))
    if (path / shard_records.SHARD_MANIFEST_FILE).is_file():
        shards = shard_records.read_shards(path)
        if shards.digest == digest:
            return load_shard_data(shards, data_dirs)
    partitioned = partition_resolved(run.config.data, run.config.partition_seed, path, data_dirs)
    if partitioned.shards.digest != digest:
        raise RequestError(
            f"'{partitioned.dataset.name}' is not the data of this run ({files.path}): restore it or {path}"
        )
    return partitioned.dataset, partitioned.shards.partition


def parameter_shapes(parameters: Parameters) -> ParameterShapes:
    return {name: tensor.shape for name, tensor in parameters.items()}


def load_saved_model(
    run: FinishedRun, client: int, expected_shapes: ParameterShapes, device: torch.device
) -> Parameters:
    """Load a saved model and check that it fits the architecture of the run."""
    parameters = to_tensors(run.files.load_model(client, run.summary.get("models", {})), device)
    # A method with its own prediction rule may save more than the parameters of a network.
    if parameter_shapes(parameters) != expected_shapes and not has_prediction_rule(run.config.method):
        raise misfit_error(run, client)
    return parameters


def misfit_error(run: FinishedRun, client: int) -> RequestError:
    """Return the error for a saved model that does not fit the configuration of its run."""
    return RequestError(
        f"the model of client {client} does not fit the run's architecture ({run.files.path}): "
        "the file is damaged; repeat the run"
    )
