"""Everything a run plays with, made from its configuration and its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.engine.client import SimulatedClient
from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.engine.method import World
from fedmosaic_cli.engine.rounds import Exam, Federation, begin
from fedmosaic_cli.engine.workers import Workers
from fedmosaic_cli.engine.workspace import Workspace
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.machine import available_cores
from fedmosaic_cli.models.architectures import build
from fedmosaic_cli.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partition import Partition, Shard
    from fedmosaic_cli.models.settings import ModelSettings


def find_device(name: str) -> torch.device:
    """The device called `name`; `auto` is the first of cuda, mps and cpu that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, usable in there.items() if usable))
    if not there[name]:
        raise RequestError(f"no {name} device on this machine (--device): use --device auto")
    return torch.device(name)


def check_network(model: ModelSettings, image_shape: Sequence[int], num_classes: int) -> None:
    """Refuse a network that does not fit images of [height, width, channels]; nothing is allocated."""
    height, width, channels = image_shape
    with torch.device("meta"):
        build(model, (channels, height, width), num_classes)


def worker_count(asked: int, clients: int, device: torch.device) -> int:
    """As many as asked for, or one a core; a GPU is kept busy by one."""
    if asked:
        return asked
    return 1 if device.type != "cpu" else min(available_cores(), clients)


class Table:
    """The data set on the device: one array of images for everybody."""

    def __init__(self, dataset: Dataset, device: torch.device, dtype: torch.dtype) -> None:
        # One layout for all: networks compute differently, in the last bits, on planes that lie otherwise in memory.
        self.images = torch.as_tensor(np.ascontiguousarray(dataset.images), device=device)
        self.dataset = dataset
        self.dtype = dtype

    def examples(self, shard: Shard, part: str) -> Examples:
        """A part of a client's examples (train, test, val) with the labels that it has for them."""
        labels = shard.labels(part, self.dataset)
        return Examples(self.images, self._put(shard.parts()[part]), self._put(labels), self.dtype)

    def unlabelled(self, index: NDArray[np.int64]) -> Examples:
        return Examples(self.images, self._put(index), None, self.dtype)

    def _put(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.tensor(array, device=self.images.device)


def assemble(
    config: RunConfig, dataset: Dataset, partition: Partition, device: torch.device, dtype: torch.dtype = torch.float32
) -> Federation:
    """The federation at its start. Close its workers when done."""
    table = Table(dataset, device, dtype)
    workspace = Workspace(config.model, config.train, dataset.input_shape, dataset.num_classes, device, dtype)
    public = table.unlabelled(partition.public)
    pooled = config.method.pooled
    holdings = [pool(table, partition)] if pooled else [table.examples(s, "train") for s in partition.shards]
    clients = [
        SimulatedClient(number, config.seed, private, public, workspace, merged=len(partition.shards) if pooled else 1)
        for number, private in enumerate(holdings)
    ]
    world = World(
        num_classes=dataset.num_classes,
        init=workspace.initial_parameters(derive(config.seed, "init")),
        sizes={client.id: len(client.private) for client in clients},
    )
    exams = [examine(table, shard, owner=0 if pooled else shard.client) for shard in partition.shards]
    workers = Workers(worker_count(config.train.workers, len(clients), device))
    return Federation(config.method, world, exams, workspace, workers, begin(config.method, clients, world))


def examine(table: Table, shard: Shard, owner: int) -> Exam:
    validation = table.examples(shard, "val") if "val" in shard.parts() else None
    return Exam(shard.client, owner, table.examples(shard, "test"), validation)


def pool(table: Table, partition: Partition) -> Examples:
    """Everybody's training data in one place, under the labels that each client gives it."""
    parts = [table.examples(shard, "train") for shard in partition.shards]
    labels = [part.labels for part in parts if part.labels is not None]
    return Examples(table.images, torch.cat([part.index for part in parts]), torch.cat(labels), table.dtype)
