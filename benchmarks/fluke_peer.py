"""FedAvg rounds of fluke. A process of `peers.py`; see `round_clock.py`."""

from __future__ import annotations

import json
import sys

import naive
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from round_clock import RoundClock
from torchmetrics import Accuracy
from workload import CLASSES, LR, Job, stored_task


class StoredSplit:
    """Replaces fluke's data splitter by the split of the job."""

    def __init__(self, job: Job) -> None:
        task = stored_task(job)
        self.train = [naive.examples(task, share.train).tensors for share in task.shares]
        tests = [naive.examples(task, share.test).tensors for share in task.shares]
        self.test = [torch.cat(parts) for parts in zip(*tests, strict=True)]

    def assign(self, clients: int, batch: int) -> tuple[tuple[list[FastDataLoader], list[None]], FastDataLoader]:
        """Return training loaders and no test loaders for clients, and one test loader for the server."""
        options = {"num_labels": CLASSES, "batch_size": batch, "skip_singleton": False}
        loaders = [FastDataLoader(*tensors, shuffle=True, **options) for tensors in self.train]
        return (loaders, [None] * clients), FastDataLoader(*self.test, shuffle=False, **options)


class TimedRounds(FederationObserver):
    """Starts and stops the clock in every round."""

    def __init__(self, clock: RoundClock) -> None:
        self._clock = clock

    def start_round(self, round: int, global_model: object) -> None:
        self._clock.start()

    def end_round(self, round: int) -> None:
        self._clock.stop()


def run(job: Job) -> None:
    """Run the rounds. The server tests the global model on the test sets of all clients."""
    clock = RoundClock()
    accuracy = Accuracy(task="multiclass", num_classes=CLASSES)
    FlukeENV().set_evaluator(ClassificationEval(eval_every=1, n_classes=CLASSES, accuracy=accuracy))
    settings = DDict(
        model=naive.network(),
        client=DDict(
            batch_size=job.batch,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=LR),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )
    algorithm = FedAVG(job.clients, StoredSplit(job), settings)
    algorithm.set_callbacks(TimedRounds(clock))
    algorithm.run(job.rounds, 1.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Job(**json.loads(sys.argv[1])))
