"""Everything a run plays with, made from its configuration and its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.engine.client import SimulatedClient
from fedmosaic_cli.engine.estimators import EstimatorLearner
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
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.settings import TrainSettings
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
    if not model.is_network:
        return
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


class Classroom:
    """What learns behind each client. Clients with the same network and optimizer share it."""

    def __init__(self, config: RunConfig, table: Table, public: Examples) -> None:
        self.public = public
        self._config = config
        self._table = table
        self._shared: dict[tuple[ModelSettings, TrainSettings], Workspace] = {}

    def learner(self, client: int, private: Examples) -> Learner:
        model, train = self._config.model_of(client), self._config.train_of(client)
        dataset, images = self._table.dataset, self._table.images
        if not model.is_network:
            return EstimatorLearner(model, private, self.public, dataset.num_classes)
        if (model, train) not in self._shared:
            self._shared[model, train] = Workspace(
                model, train, dataset.input_shape, dataset.num_classes, images.device, self._table.dtype
            )
        return self._shared[model, train]


def assemble(
    config: RunConfig, dataset: Dataset, partition: Partition, device: torch.device, dtype: torch.dtype = torch.float32
) -> Federation:
    """The federation at its start. Close its workers when done."""
    table = Table(dataset, device, dtype)
    classroom = Classroom(config, table, table.unlabelled(partition.public))
    pooled, everybody = config.method.pooled, len(partition.shards)
    in_a_round = min(config.train.clients_per_round or everybody, everybody)
    holdings = [pool(table, partition)] if pooled else [table.examples(s, "train") for s in partition.shards]
    clients = [
        SimulatedClient(
            number,
            config.seed,
            private,
            classroom.public,
            classroom.learner(number, private),
            config.train_of(number),
            dataset.num_classes,
            stands_for=in_a_round if pooled else 1,
            of_clients=everybody if pooled else 1,
        )
        for number, private in enumerate(holdings)
    ]
    network = clients[0].learner if isinstance(clients[0].learner, Workspace) else None
    world = World(
        num_classes=dataset.num_classes,
        init=network.initial_parameters(derive(config.seed, "init")) if network else {},
        sizes={client.id: len(client.private) for client in clients},
        rounds=config.train.rounds,
        participation=in_a_round / everybody,
        aggregation=config.train.aggregation,
        bn_buffers=config.train.bn_buffers,
        buffers=network.buffers if network else frozenset(),
        batch_norm=network.batch_norm if network else frozenset(),
        number_bits=8 * dtype.itemsize,
    )
    exams = [exam_of(table, shard, owner=0 if pooled else shard.client) for shard in partition.shards]
    workers = Workers(worker_count(config.train.workers, len(clients), device))
    standing = begin(config.method, clients, world)
    return Federation(config.method, world, exams, workers, standing, config.seed, in_a_round)


def exam_of(table: Table, shard: Shard, owner: int) -> Exam:
    validation = table.examples(shard, "val") if "val" in shard.parts() else None
    return Exam(shard.client, owner, table.examples(shard, "test"), validation)


def pool(table: Table, partition: Partition) -> Examples:
    """Everybody's training data in one place, under the labels that each client gives it."""
    parts = [table.examples(shard, "train") for shard in partition.shards]
    labels = [part.labels for part in parts if part.labels is not None]
    return Examples(table.images, torch.cat([part.index for part in parts]), torch.cat(labels), table.dtype)
