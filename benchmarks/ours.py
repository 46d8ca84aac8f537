"""Access to fedmosaic: federations, rounds and evaluations. The other modules do not depend on its structure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from workload import CLASSES, LR

from fedmosaic_cli.config.run_config import RunConfig
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.partitioning.partition import Partition, Shard
from fedmosaic_cli.engine.evaluation import Score, evaluate_model, score_logits
from fedmosaic_cli.engine.execution.worker_pool import ClientJob, use_single_thread
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.rounds import run_rounds as rounds_until
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

    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.examples import Examples
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
# With this rule lambda stays above 0, so that every round trains on the public set.
# With this gate clients train all models of the gate's test.
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "fedmosaic": {"trust": "stabilised"},
    "gated": {"warmup_share": 0.0, "gate_budget": 1.0},
}


def federation(
    method: str,
    task: Task,
    model: dict[str, Any] = CNN,
    state_dir: Path | None = None,
    settings: dict[str, Any] | None = None,
    **train: Any,
) -> Federation:
    """Build a federation. `train` overrides `ONE_EPOCH`; the states of clients are in `state_dir` if it is given.

    `settings` replaces `METHOD_SETTINGS`. A method that needs validation data gets the test data.
    """
    configured = METHODS[method](**(METHOD_SETTINGS.get(method, {}) if settings is None else settings))
    validated = configured.needs.validation
    partition = Partition(
        DataSettings(dataset="synthetic", clients=len(task.shares), public_size=len(task.public)),
        seed=0,
        shards=tuple(
            Shard(number, share.train, share.test, share.test if validated else share.test[:0])
            for number, share in enumerate(task.shares)
        ),
        public=task.public,
    )
    config = RunConfig(
        experiment_name="benchmark",
        seed=0,
        data=partition.settings,
        model=ModelSettings(**model),
        train=TrainSettings(**{**ONE_EPOCH, **train}),
        method=configured,
        partition_seed=0,
    )
    dataset = Dataset("synthetic", task.images, task.labels, tuple(map(str, range(CLASSES))))
    store = None if state_dir is None else ClientStateFiles(state_dir)
    return build_federation(config, dataset, partition, [torch.device("cpu")], state_store=store)


@cache
def prepare_process() -> None:
    """Configure the process as a run does. Not for processes in which other variants are measured."""
    use_single_thread()
    tune_malloc()


def run_rounds(federation: Federation, number: int = 1) -> list[dict[str, Any]]:
    """Run further rounds with their evaluations and return the log rows of the last one, one per client."""
    prepare_process()
    rounds = list(rounds_until(federation, federation.state.finished + number))
    return rounds[-1].rows


def run_trusting_round(federation: Federation) -> None:
    """Run a round and require lambda above 0: otherwise clients skip the public set, which is cheaper."""
    if any(row["round"] != 1 and row["lambda"] == 0.0 for row in run_rounds(federation)):
        raise ValueError("lambda is 0: the round did not train on the public set")


def evaluate_like_pfllib(federation: Federation) -> dict[str, float]:
    """Evaluate all clients in parallel and return the numbers that PFLlib reports, averaged over examples.

    These are the accuracy and the micro-averaged AUC on the test sets and the mean loss on the training sets, both
    computed with the new global model.
    """
    # Imported here because it would count in the measurements of memory.
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import label_binarize

    received, clients = ServerView(federation), federation.state.clients
    tests = {task.owner_id: task.test for task in federation.eval_tasks}

    def evaluate(job: tuple[InProcessClient, Examples, bool]) -> dict[str, float]:
        client, examples, is_test = job
        model = federation.method.personal_model(client, received.for_client(client))
        logits = client.learner.predict(model, examples)
        score = score_logits(logits, examples)
        if not is_test:
            return {"train_loss": score.loss}
        labels = label_binarize(examples.targets.numpy(), classes=range(CLASSES))
        return {"accuracy": score.accuracy, "auc": float(roc_auc_score(labels, logits.numpy(), average="micro"))}

    items = [(client, tests[client.id], True) for client in clients]
    items += [(client, client.private, False) for client in clients]
    jobs = [ClientJob(item, len(item[1]), None, item[0].device, client=item[0].id) for item in items]
    sums = dict.fromkeys(("accuracy", "auc", "train_loss"), 0.0)
    sizes = dict.fromkeys(sums, 0)
    for (_, examples, _), numbers in zip(items, federation.worker_pool.map(evaluate, jobs), strict=True):
        for name, value in numbers.items():
            sums[name] += value * len(examples)
            sizes[name] += len(examples)
    return {name: total / sizes[name] for name, total in sums.items()}


def train_client(federation: Federation, number: int = 0) -> None:
    """Run one client's local training of a new round in this thread."""
    prepare_process()
    client = federation.state.clients[number]
    client.begin_round(client.round + 1)
    client.train("model")
    client.finish_round()


def evaluate_client(federation: Federation, number: int = 0) -> Score:
    """Evaluate one client's model on its test set in this thread."""
    prepare_process()
    client = federation.state.clients[number]
    return evaluate_model(client.learner, client.state["model"], federation.eval_tasks[number].test)


def recorder(federation: Federation, folder: Path) -> Callable[[], None]:
    """Return a function that logs a round and saves a checkpoint, as a run does after each round."""
    files = RunDirectory(folder)
    row = {"lambda": 0.123456789, "loss_private": 0.123456789, "accuracy": 0.123456789, "bits_up": 12000}
    logs = files.initialize({}, {}, {}, {})

    def record() -> None:
        logs.append_round([row] * len(federation.state.clients), {"seconds": 1.0})
        save_checkpoint(files, logs, federation, {"config": {}, "environment": {"versions": {}}, "nonidentical": []})

    return record


def weight_count(federation: Federation) -> int:
    """The number of weights of one model."""
    return sum(tensor.numel() for tensor in federation.ctx.initial_model.values())
