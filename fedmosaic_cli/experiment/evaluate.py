"""Examining the saved personal models of a finished run, without training."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Literal

from fedmosaic_cli.config.run import stored_run
from fedmosaic_cli.data.partition import partition
from fedmosaic_cli.data.sources import find_source
from fedmosaic_cli.engine.evaluation import score
from fedmosaic_cli.engine.workers import one_core
from fedmosaic_cli.engine.workspace import Workspace
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.experiment.assemble import Table, find_device
from fedmosaic_cli.experiment.state import to_tensors
from fedmosaic_cli.records import shards as shard_records
from fedmosaic_cli.records.runs import SCHEMA

if TYPE_CHECKING:
    import torch

    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.records.runs import RunFiles

Split = Literal["test", "train"]


def evaluate(files: RunFiles, split: Split, device_name: str) -> dict[str, Any]:
    """Accuracy and loss of every client's personal model on its own test or training part."""
    import torch

    if not files.config.is_file():
        raise RequestError(f"not a run directory ({files.path}): name one such as runs/quickstart/local/seed-0")
    if not files.finished():
        raise RequestError(f"the run is not finished ({files.path}): go on with --resume first")
    config, summary = stored_run(files.config), files.summary()
    dataset = find_source(config.data.dataset).load()
    # Shards are cheap to deal again, so a run can be examined without them; the digest says that they are the same.
    dealt = partition(dataset, config.data, config.partition_seed)
    if shard_records.describe(dataset, dealt)["digest"] != summary["shards"]["digest"]:
        raise RequestError(f"'{dataset.name}' here is not the data of this run ({files.path}): restore the data set")
    one_core()
    device = find_device(device_name)
    table, workspace = Table(dataset, device, torch.float32), workspace_of(config, dataset, device)
    marks = []
    for shard in dealt.shards:
        examples = table.examples(shard.test if split == "test" else shard.train, shard.flipped)
        mark = score(workspace, load_model(files, shard.client, workspace), examples)
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
        "accuracy": averages(marks),
        "per_client": marks,
    }


def averages(marks: list[dict[str, Any]]) -> dict[str, float]:
    accuracies = [mark["accuracy"] for mark in marks]
    examples = sum(mark["examples"] for mark in marks)
    return {
        "client_mean": fmean(accuracies),
        "sample_weighted": sum(mark["accuracy"] * mark["examples"] for mark in marks) / examples,
        "client_std": pstdev(accuracies),
        "worst": min(accuracies),
    }


def workspace_of(config: RunConfig, dataset: Dataset, device: torch.device) -> Workspace:
    _, height, width, channels = dataset.images.shape
    return Workspace(config.model, config.train, (channels, height, width), dataset.num_classes, device)


def load_model(files: RunFiles, client: int, workspace: Workspace) -> Parameters:
    """A saved model, if it fits the architecture of the run."""
    parameters = to_tensors(files.load_model(client), workspace.device)
    expected = workspace.initial_parameters(0)
    if {name: t.shape for name, t in parameters.items()} != {name: t.shape for name, t in expected.items()}:
        raise RequestError(
            f"the model of client {client} does not fit the run's architecture ({files.path}): it is damaged"
        )
    return parameters
