"""One client's epoch against a bare loop and with augmentation, and evaluation against a data loader's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import naive
import ours
import torch
from measuring import measure_forked
from results import Result, at_most
from torch import nn
from torch.nn.functional import cross_entropy
from workload import LR, cifar_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from workload import Plan, Task

MICROSECONDS = 1e6


class BareLoop:
    """A training loop with tensors, a model and torch's SGD only."""

    def __init__(self, task: Task, batch: int, memory_format: torch.memory_format) -> None:
        share = task.shares[0]
        self.images: Tensor = naive.to_tensor(task, share.train).to(memory_format=memory_format)
        self.labels = torch.tensor(task.labels[share.train])
        self.model: nn.Module = naive.network().to(memory_format=memory_format)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.batch = batch

    def epoch(self) -> None:
        order = torch.randperm(len(self.labels))
        for start in range(0, len(order), self.batch):
            positions = order[start : start + self.batch]
            loss = cross_entropy(self.model(self.images[positions]), self.labels[positions])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def training(plan: Plan) -> Result:
    """Compare a client's epoch with a bare loop on one thread."""
    result = Result(
        "Training: one client's epoch",
        [
            f"{plan.sizes.train} images, 1 thread, {plan.repetitions} interleaved repetitions. The bare loop indexes a "
            "float32 tensor and calls torch.optim.SGD; its duplicate shows the size of random differences. 'Channels "
            "last' is the memory layout that we compute in; 'memory kept' is the same loop with the allocator "
            "configured to keep freed memory, as we configure it."
        ],
    )
    task = cifar_task(plan.sizes, clients=1)
    for batch in plan.batches:
        measure_training(result, task, batch, plan)
    return result


def measure_training(result: Result, task: Task, batch: int, plan: Plan) -> None:
    federation = ours.federation("local", task, batch_size=batch)
    plain, duplicate = (BareLoop(task, batch, torch.contiguous_format) for _ in range(2))
    last, kept = (BareLoop(task, batch, torch.channels_last) for _ in range(2))
    if (count := sum(p.numel() for p in plain.model.parameters())) != ours.weight_count(federation):
        raise ValueError(f"the bare loop has {count} weights, our network has {ours.weight_count(federation)}")
    bare, duplicate_name = f"bare loop, batch {batch}", f"bare loop again, batch {batch}"
    bare_last, mine = f"bare loop, channels last, batch {batch}", f"ours, batch {batch}"
    bare_kept = f"bare loop, channels last, memory kept, batch {batch}"

    def epoch_in_kept_memory() -> None:
        ours.prepare_process()
        kept.epoch()

    variants: dict[str, Callable[[], object]] = {
        bare: plain.epoch,
        bare_last: last.epoch,
        bare_kept: epoch_in_kept_memory,
        mine: partial(ours.train_client, federation),
        duplicate_name: duplicate.epoch,
    }
    samples = measure_forked(variants, plan.repetitions, per=plan.sizes.train)
    result.add(samples, "us per image", MICROSECONDS)
    result.compare(mine, bare_last, at_most(1.05))
    result.compare(mine, bare_kept, at_most(1.05))
    result.compare(mine, bare, at_most(0.90))
    result.compare(duplicate_name, bare)


def augmentation(plan: Plan) -> Result:
    """Compare a client's epoch with and without augmentation on one thread."""
    result = Result(
        "Augmentation: one client's epoch",
        [
            f"{plan.sizes.train} images of 32x32 pixels, 1 thread, {plan.repetitions} interleaved repetitions; "
            "`cnn`, and a quarter of its width. The duplicate shows the size of random differences."
        ],
    )
    task = cifar_task(plan.sizes, clients=1)
    for title, model in (("cnn", ours.CNN), ("small cnn", ours.SMALL_CNN)):
        for batch in plan.batches:
            measure_augmentation(result, task, f"{title}, batch {batch}", model, batch, plan)
    return result


def measure_augmentation(result: Result, task: Task, title: str, model: dict[str, Any], batch: int, plan: Plan) -> None:
    modes = {"none": "none", "crop-flip": "crop-flip", "none again": "none"}
    variants: dict[str, Callable[[], object]] = {
        f"{name}, {title}": partial(
            ours.train_client, ours.federation("local", task, model, batch_size=batch, augment=mode)
        )
        for name, mode in modes.items()
    }
    plain, augmented, duplicate = variants
    samples = measure_forked(variants, plan.repetitions, per=plan.sizes.train)
    result.add(samples, "us per image", MICROSECONDS)
    result.compare(augmented, plain, at_most(1.15))
    result.compare(duplicate, plain)


def evaluation(plan: Plan) -> Result:
    """Compare the evaluation of a model on a test set with that of the naive simulator on one thread."""
    result = Result(
        "Evaluation: a model on a client's test set",
        [
            f"{plan.sizes.test} images, 1 thread, {plan.repetitions} interleaved repetitions; accuracy and mean loss. "
            "The naive simulator evaluates with a DataLoader at the training batch size, ours in batches of 128."
        ],
    )
    task = cifar_task(plan.sizes, clients=1)
    federation = ours.federation("local", task)
    mine = "ours"
    variants: dict[str, Callable[[], object]] = {mine: partial(ours.evaluate_client, federation)}
    for batch in plan.batches:
        client = naive.FedAvg(task, batch).clients[0]
        variants[f"naive, batch {batch}"] = client.test
    samples = measure_forked(variants, plan.repetitions, per=plan.sizes.test)
    result.add(samples, "us per image", MICROSECONDS)
    for batch in plan.batches:
        result.compare(mine, f"naive, batch {batch}", at_most(0.55))
    return result
