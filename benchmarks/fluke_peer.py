"""FedAvg rounds of fluke. A process of `peers.py`: prints the [CPU, wall] seconds of every round as JSON."""

from __future__ import annotations

import json
import sys
import time

import naive
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from torchmetrics import Accuracy
from workload import CLASSES, LR, Job, stored_task


class Dealt:
    """The task in the place of fluke's own splitter."""

    def __init__(self, job: Job) -> None:
        task = stored_task(job)
        self.train = [naive.examples(task, share.train).tensors for share in task.shares]
        tests = [naive.examples(task, share.test).tensors for share in task.shares]
        self.test = [torch.cat(parts) for parts in zip(*tests, strict=True)]

    def assign(self, clients: int, batch: int) -> tuple[tuple[list[FastDataLoader], list[None]], FastDataLoader]:
        """Training loaders and no test loaders for clients, one test loader for the server."""
        given = {"num_labels": CLASSES, "batch_size": batch, "skip_singleton": False}
        loaders = [FastDataLoader(*tensors, shuffle=True, **given) for tensors in self.train]
        return (loaders, [None] * clients), FastDataLoader(*self.test, shuffle=False, **given)


class Stopwatch(FederationObserver):
    """The CPU and wall time of every round."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float]] = []

    def start_round(self, round: int, global_model: object) -> None:
        self.started = time.process_time(), time.perf_counter()

    def end_round(self, round: int) -> None:
        cpu, wall = self.started
        self.rounds.append((time.process_time() - cpu, time.perf_counter() - wall))


def play(job: Job) -> list[tuple[float, float]]:
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
    algorithm = FedAVG(job.clients, Dealt(job), settings)
    stopwatch = Stopwatch()
    algorithm.set_callbacks(stopwatch)
    algorithm.run(job.rounds, 1.0)
    return stopwatch.rounds


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("\n" + json.dumps(play(Job(**json.loads(sys.argv[1])))))
