"""Everything a run plays with, made from its configuration and its shards."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.data.partitioning.partition import poisoned
from fedmosaic_cli.engine.client import SimulatedClient
from fedmosaic_cli.engine.estimator_learner import EstimatorLearner
from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.engine.execution.modes import WORKSPACES, choose, worker_count
from fedmosaic_cli.engine.execution.worker_pool import Workers
from fedmosaic_cli.engine.method import World
from fedmosaic_cli.engine.network_runner import Workspace
from fedmosaic_cli.engine.rounds import Exam, Federation, begin
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.attacks import Attack, unlike_classes
from fedmosaic_cli.labels.privacy.privatize import rates_of
from fedmosaic_cli.machine import PAGE, physical_memory
from fedmosaic_cli.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.federation.site_shards import SiteShard
    from fedmosaic_cli.models.model_settings import ModelSettings

# So many images at a time go through a hash function.
DIGESTED = 1000


def find_devices(name: str) -> list[torch.device]:
    """The devices called `name`, all that can be seen; `auto` is the first of cuda, mps and cpu that is there."""
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = next(kind for kind, count in there.items() if count)
    if not there[name]:
        raise RequestError(f"no {name} device on this machine (--device): use --device auto")
    return [torch.device("cpu")] if name == "cpu" else [torch.device(name, number) for number in range(there[name])]


def check_networks(config: RunConfig, image_shape: Sequence[int], device: torch.device) -> None:
    """Refuse a run in which some client's network does not fit; see `check_network`."""
    for model in {model for model, _ in config.kinds}:
        check_network(model, config.train, image_shape, device)


def check_network(model: ModelSettings, train: TrainSettings, image_shape: Sequence[int], device: torch.device) -> None:
    """Refuse a network that does not fit images of [height, width, channels] or `train`; nothing is allocated."""
    if not model.is_network:
        return
    height, width, channels = image_shape
    choose(train, model, (channels, height, width), 1, device)
    if train.precision != "float32" and device.type == "cpu":
        # Several times slower on most CPUs; and on some that claim to know it, the end of the process.
        raise RequestError(f"{train.precision} is for GPUs (train.precision): use float32 on a CPU")


class Table:
    """The data set on a device: one array of images for all clients that compute there.

    Where the images would take more than half of a GPU's free memory, or are asked to (`train.images`), they stay with
    the host.
    """

    def __init__(
        self, dataset: Dataset, partition: Partition, device: torch.device, dtype: torch.dtype, place: str
    ) -> None:
        read_ahead(dataset.images)
        # One layout for all: networks compute differently, in the last bits, on planes that lie otherwise in memory.
        images = torch.as_tensor(np.ascontiguousarray(dataset.images))
        self.images = images if stays_with_host(place, images.nbytes, device) else images.to(device)
        self.dataset = dataset
        self.dtype = dtype
        self.device = device
        self.public = self._examples(partition.public, None)

    def examples(self, shard: Shard, part: str) -> Examples:
        """A part of a client's examples (train, test, val) with the labels that it has for them."""
        labels = torch.tensor(shard.labels(part, self.dataset), device=self.device)
        return self._examples(shard.parts()[part], labels)

    def _examples(self, index: NDArray[np.int64], labels: torch.Tensor | None) -> Examples:
        places = torch.tensor(index, device=self.images.device)
        return Examples(self.images, places, labels, self.dtype, self.device)


def read_ahead(images: NDArray[np.uint8]) -> None:
    """Bring images that are mapped from a file into memory, if they fit: no round is to wait for a disk."""
    if isinstance(images, np.memmap) and images.nbytes < physical_memory() / 2:
        images.reshape(-1)[::PAGE].max(initial=0)


def stays_with_host(place: str, size: int, device: torch.device) -> bool:
    """Whether `size` bytes of images are better not copied to the device."""
    if device.type != "cuda" or place != "auto":
        return place == "host"
    free, _ = torch.cuda.mem_get_info(device)
    return size > free / 2


class Classroom:
    """What learns behind each client. Clients with the same network, optimizer and device share it."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._shared: dict[tuple[ModelSettings, TrainSettings, torch.device], Workspace] = {}

    def learner(self, client: int, private: Examples, table: Table) -> Learner:
        model, train = self._config.model_of(client), self._config.train_of(client)
        shape, classes = table.dataset.input_shape, table.dataset.num_classes
        if not model.is_network:
            return EstimatorLearner(model, private, table.public, classes)
        key = (model, train, table.device)
        if key not in self._shared:
            how = choose(train, model, shape, self._config.how_many_like(client), table.device)
            self._shared[key] = WORKSPACES[how](model, train, shape, classes, table.device, table.dtype)
        return self._shared[key]

    @property
    def execution(self) -> str:
        """How networks are trained here; a client that is none is fitted alone in any case."""
        kinds = {how for how, kind in WORKSPACES.items() for each in self._shared.values() if type(each) is kind}
        return " and ".join(sorted(kinds)) or "threads"


def assemble(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    devices: Sequence[torch.device],
    dtype: torch.dtype = torch.float32,
    shards_digest: str = "",
) -> Federation:
    """The federation at its start, its clients dealt over the devices. Close its workers when done.

    What the clients hold is told from what others could, by `shards_digest`.
    """
    pooled, everybody = config.method.pooled, len(partition.shards)
    in_a_round = round_size(config)
    devices = devices[: 1 if pooled else everybody]
    tables = [Table(dataset, partition, device, dtype, config.train.images) for device in devices]
    classroom = Classroom(config)

    def table_of(client: int) -> Table:
        return tables[client % len(tables)]

    shards = as_trained_on(partition, config).shards
    holdings = [pool(tables[0], shards)] if pooled else [table_of(s.client).examples(s, "train") for s in shards]
    clients = []
    for number, private in enumerate(holdings):
        table = table_of(number)
        clients.append(
            SimulatedClient(
                number,
                config.seed,
                private,
                table.public,
                classroom.learner(number, private, table),
                config.train_of(number),
                dataset.num_classes,
                stands_for=in_a_round if pooled else 1,
                of_clients=everybody if pooled else 1,
            )
        )
    network = clients[0].learner if isinstance(clients[0].learner, Workspace) else None
    sizes = {client.id: len(client.private) for client in clients}
    world = world_of(config, dataset, partition, sizes, network, shards_digest, dtype)
    exams = [exam_of(table_of(s.client), s, owner=0 if pooled else s.client) for s in partition.shards]
    workers = Workers(worker_count(config.train.workers, len(clients), devices[0]))
    standing = begin(config.method, clients, world)
    return Federation(
        config.method,
        world,
        exams,
        workers,
        standing,
        config.seed,
        in_a_round,
        devices[0],
        classroom.execution,
        skips=config.train.on_nan == "skip",
        attack=attack_of(config, world, dataset, partition),
        public_truth=public_truth(dataset, partition, devices[0]),
    )


def assemble_site(config: RunConfig, shard: SiteShard, device: torch.device) -> Federation:
    """A federation in which one client is present, with its own data, and knows of the others what everybody does."""
    alone = {"execution": "threads"}
    trainings = {client: train.model_copy(update=alone) for client, train in config.trainings.items()}
    config = replace(config, train=config.train.model_copy(update=alone), trainings=trainings)
    dataset, partition, number = shard.dataset, shard.partition, shard.client
    table = Table(dataset, partition, device, torch.float32, config.train.images)
    classroom, [own] = Classroom(config), partition.shards
    private = table.examples(own, "train")
    learner, train = classroom.learner(number, private, table), config.train_of(number)
    client = SimulatedClient(
        number, config.seed, private, table.public, learner, train, dataset.num_classes, hides=True
    )
    network = network_of(config, dataset, device) if config.model_of(0).is_network else None
    world = world_of(config, dataset, partition, shard.sizes, network, shard.shards.digest)
    return Federation(
        config.method,
        world,
        [exam_of(table, own, owner=number)],
        Workers(1),
        begin(config.method, [client], world),
        config.seed,
        1,
        device,
        "threads",
        skips=config.train.on_nan == "skip",
    )


def network_of(config: RunConfig, dataset: Dataset, device: torch.device) -> Workspace:
    """The network of the first client, which models that are averaged are like."""
    model, train = config.model_of(0), config.train_of(0)
    return WORKSPACES["threads"](model, train, dataset.input_shape, dataset.num_classes, device, torch.float32)


def world_of(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    sizes: dict[int, int],
    network: Workspace | None,
    shards_digest: str,
    dtype: torch.dtype = torch.float32,
) -> World:
    """What everybody may know. `network` is that of the first client, if it has one."""
    return World(
        num_classes=dataset.num_classes,
        init=network.initial_parameters(derive(config.seed, "init")) if network else {},
        sizes=sizes,
        rounds=config.train.rounds,
        participation=round_size(config) / (config.data.clients or 1),
        aggregation=config.train.aggregation,
        bn_buffers=config.train.bn_buffers,
        buffers=network.buffers if network else frozenset(),
        batch_norm=network.batch_norm if network else frozenset(),
        number_bits=8 * dtype.itemsize,
        public_size=len(partition.public),
        run=run_id(config, shards_digest),
        public=public_digest(dataset, partition),
        defence=config.defence,
        noise=config.noise,
    )


def round_size(config: RunConfig) -> int:
    """How many clients take part in a round."""
    everybody = config.data.clients or 1
    return min(config.train.clients_per_round or everybody, everybody)


def as_trained_on(partition: Partition, config: RunConfig) -> Partition:
    """Who holds what, with the labels that attackers give the examples that they train on."""
    return poisoned(partition, config.attack.clients if config.attack.kind == "poison_data" else ())


def run_id(config: RunConfig, shards_digest: str) -> bytes:
    """What stands for a run in its messages: one that goes on for more rounds is the same run."""
    names = (config.setting, config.method.variant, config.seed, shards_digest, config.partition_seed)
    return hashlib.blake2b(repr((names, config.data)).encode(), digest_size=16).digest()


def public_digest(dataset: Dataset, partition: Partition) -> bytes:
    """What stands for the public set in messages: its images, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(partition.public), DIGESTED):
        digest.update(dataset.images[partition.public[start : start + DIGESTED]].tobytes())
    return digest.digest()


def attack_of(config: RunConfig, world: World, dataset: Dataset, partition: Partition) -> Attack | None:
    """Those who attack by what they send, if anybody does."""
    form, kind = config.method.opinion_form(world), config.attack.kind
    if form is None or kind in ("none", "poison_data"):
        return None
    unlike = None
    if kind == "class_prior":
        labels = dataset.labels[partition.public]
        if labels.min(initial=0) < 0:
            raise RequestError(
                "nobody knows the classes of the public set, so not which are alike (attack.kind class_prior): "
                "use shards that were not exported"
            )
        unlike = unlike_classes(dataset.images[partition.public], labels, dataset.num_classes)
    return Attack(config.attack, form, config.seed, rates_of(world), unlike)


def public_truth(dataset: Dataset, partition: Partition, device: torch.device) -> torch.Tensor | None:
    """The labels of the public set, where the data set knows all of them; exported shards do not carry them."""
    labels = dataset.labels[partition.public]
    return torch.tensor(labels, device=device) if len(labels) and labels.min() >= 0 else None


def exam_of(table: Table, shard: Shard, owner: int) -> Exam:
    validation = table.examples(shard, "val") if "val" in shard.parts() else None
    return Exam(shard.client, owner, table.examples(shard, "test"), validation)


def pool(table: Table, shards: Sequence[Shard]) -> Examples:
    """Everybody's training data in one place, under the labels that each client gives it."""
    parts = [table.examples(shard, "train") for shard in shards]
    return replace(
        parts[0], index=torch.cat([part.index for part in parts]), labels=torch.cat([part.targets for part in parts])
    )
