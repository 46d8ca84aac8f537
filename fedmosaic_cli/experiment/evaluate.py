"""Examining the saved personal models of a finished run, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedmosaic_cli.config.run import stored_run
from fedmosaic_cli.engine.evaluation import averages, score
from fedmosaic_cli.engine.workers import one_core
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.experiment.assemble import Classroom, Table, find_devices, pool
from fedmosaic_cli.experiment.plan import check_finished, deal, open_shards
from fedmosaic_cli.experiment.state import to_tensors
from fedmosaic_cli.machine import keep_freed_memory
from fedmosaic_cli.records import shards as shard_records
from fedmosaic_cli.records.runs import CONFIG, ENVIRONMENT, SCHEMA

if TYPE_CHECKING:
    import torch

    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partition import Partition
    from fedmosaic_cli.data.place import Place
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.records.runs import RunFiles

Split = Literal["test", "train", "val"]


def evaluate(files: RunFiles, split: Split, device_name: str, place: Place) -> dict[str, Any]:
    """Accuracy and loss of every client's personal model on its own test, training or validation part."""
    import torch

    check_finished(files)
    files.check(CONFIG, ENVIRONMENT)
    config, summary = stored_run(files.config, place), files.summary()
    dataset, dealt = data_of(files, config, summary["shards"]["digest"], place)
    if split == "val" and not all("val" in shard.parts() for shard in dealt.shards):
        raise RequestError(f"nothing was set aside for validation ({files.path}): partition with --val-fraction")
    one_core()
    keep_freed_memory()
    device = find_devices(device_name)[0]
    table = Table(dataset, dealt, device, torch.float32, config.train.images)
    classroom = Classroom(config)
    marks: list[dict[str, Any]] = []
    pooled = classroom.learner(0, pool(table, dealt), table) if config.method.pooled else None
    for shard in dealt.shards:
        examples = table.examples(shard, split)
        learner = pooled or classroom.learner(shard.client, table.examples(shard, "train"), table)
        model = load_model(files, shard.client, summary.get("models", {}), learner, device)
        mark = score(learner, model, examples)
        marks.append(
            {
                "client": shard.client,
                "domain": shard.domain,
                "examples": mark.count,
                "accuracy": mark.accuracy,
                "loss": mark.loss,
            }
        )
    return {
        "schema": SCHEMA,
        **{key: summary[key] for key in ("preset", "dataset", "scheme", "method", "variant", "seed", "rounds")},
        "split": split,
        "accuracy": averages([mark["accuracy"] for mark in marks], [mark["examples"] for mark in marks]),
        "per_client": marks,
    }


def data_of(files: RunFiles, config: RunConfig, digest: str, place: Place) -> tuple[Dataset, Partition]:
    """The data of a run: its shards, or, where they are gone, the same ones dealt again in memory."""
    path = Path(str(files.environment().get("shards", "")))
    if (path / shard_records.MANIFEST).is_file():
        shards = shard_records.load(path)
        if shards.digest == digest:
            return open_shards(shards, place)
    again = deal(config.data, config.partition_seed, path, place)
    if again.shards.digest != digest:
        raise RequestError(
            f"'{again.dataset.name}' here is not the data of this run ({files.path}): restore the data set or {path}"
        )
    return again.dataset, again.shards.partition


def load_model(
    files: RunFiles, client: int, digests: dict[str, str], learner: Learner, device: torch.device
) -> Parameters:
    """A saved model, if it fits the architecture of the run."""
    parameters = to_tensors(files.load_model(client, digests), device)
    expected = learner.initial_parameters(0)
    if {name: t.shape for name, t in parameters.items()} != {name: t.shape for name, t in expected.items()}:
        raise RequestError(
            f"the model of client {client} does not fit the run's architecture ({files.path}): it is damaged"
        )
    return parameters
