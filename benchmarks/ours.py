"""fedmosaic as the benchmarks see it: the one module here that knows how the package is put together."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from workload import CLASSES, LR

from fedmosaic_cli.config.run_config import RunConfig
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.partitioning.partition import Partition, Shard
from fedmosaic_cli.engine.evaluation import Score, evaluate_model
from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.machine import tune_malloc
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.build import build_federation
from fedmosaic_cli.runner.client_state_files import ClientStateFiles
from fedmosaic_cli.runner.experiment import save_checkpoint
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workload import Task

    from fedmosaic_cli.engine.federation import Federation

CNN: dict[str, Any] = {"name": "cnn"}
SMALL_CNN: dict[str, Any] = {"name": "cnn", "width": 0.25}
TINY_MLP: dict[str, Any] = {"name": "mlp", "hidden": (64,)}

# One epoch of plain SGD, one client after the other.
ONE_EPOCH: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "local_epochs": 1, "rounds": 1_000_000, "workers": 1}
# The settings of the preset `quickstart-label-skew`.
QUICKSTART: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 3e-3,
    "local_steps": 10,
    "batch_size": 32,
    "rounds": 1_000_000,
    "workers": 1,
}
# With this rule lambda stays above 0, so that no round gets around the public half of its work.
# The gate stays open, so that clients train all models of the test.
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "fedmosaic": {"trust": "stabilised"},
    "gated": {"warmup_share": 0.0, "gate_budget": 1.0},
}


def federation(
    method: str, task: Task, model: dict[str, Any] = CNN, state_dir: Path | None = None, **train: Any
) -> Federation:
    """A federation at its start. `train` adds to the settings of one epoch; states are in `state_dir` if given."""
    partition = Partition(
        DataSettings(dataset="synthetic", clients=len(task.shares), public_size=len(task.public)),
        seed=0,
        shards=tuple(Shard(number, share.train, share.test) for number, share in enumerate(task.shares)),
        public=task.public,
    )
    config = RunConfig(
        experiment_name="benchmark",
        seed=0,
        data=partition.settings,
        model=ModelSettings(**model),
        train=TrainSettings(**{**ONE_EPOCH, **train}),
        method=METHODS[method](**METHOD_SETTINGS.get(method, {})),
        partition_seed=0,
    )
    dataset = Dataset("synthetic", task.images, task.labels, tuple(map(str, range(CLASSES))))
    store = None if state_dir is None else ClientStateFiles(state_dir)
    return build_federation(config, dataset, partition, [torch.device("cpu")], state_store=store)


@cache
def prepare_process() -> None:
    """What a run does to its process before it begins. Never done to a process in which somebody else is measured."""
    use_single_thread()
    tune_malloc()


def play_rounds(federation: Federation, number: int = 1) -> list[dict[str, Any]]:
    """Play so many rounds more, exams included. The log of the last one, a line a client."""
    prepare_process()
    rounds = list(run_rounds(federation, federation.state.finished + number))
    return rounds[-1].rows


def play_checked(federation: Federation) -> None:
    """A round; without trust a client would leave the public set alone, which is cheaper than what is claimed."""
    if any(row["round"] != 1 and row["lambda"] == 0.0 for row in play_rounds(federation)):
        raise ValueError("lambda is 0: the round had no public half")


def train_client(federation: Federation, number: int = 0) -> None:
    """One client's local training, in this thread, on the batches of a new round."""
    prepare_process()
    client = federation.state.clients[number]
    client.begin_round(client.round + 1)
    client.train("model")
    client.finish_round()


def examine_client(federation: Federation, number: int = 0) -> Score:
    """One client's model on its test part, in this thread."""
    prepare_process()
    client = federation.state.clients[number]
    return evaluate_model(client.learner, client.state["model"], federation.eval_tasks[number].test)


def recorder(federation: Federation, folder: Path) -> Callable[[], None]:
    """A function that logs a round and saves a checkpoint, as a run does after it."""
    files = RunDirectory(folder)
    row = {"lambda": 0.123456789, "loss_private": 0.123456789, "accuracy": 0.123456789, "bits_up": 12000}
    logs = files.initialize({}, {}, {}, {})

    def record() -> None:
        logs.append_round([row] * len(federation.state.clients), {"seconds": 1.0})
        save_checkpoint(files, logs, federation, {"config": {}, "environment": {"versions": {}}, "nonidentical": []})

    return record


def weight_count(federation: Federation) -> int:
    """The numbers in one model."""
    return sum(tensor.numel() for tensor in federation.ctx.initial_model.values())
