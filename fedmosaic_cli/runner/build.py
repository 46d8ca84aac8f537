"""Build devices, data, learners, clients and the federation of a run from its configuration and shards."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.data.partitioning.partition import poison_clients
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.estimator_learner import EstimatorLearner
from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.engine.execution.modes import NETWORK_LEARNERS, choose_execution, num_workers
from fedmosaic_cli.engine.execution.stacked.stacked_layers import is_stackable
from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
from fedmosaic_cli.engine.federation import EvalTask, Federation, init_state
from fedmosaic_cli.engine.network_learner import NetworkLearner
from fedmosaic_cli.engine.server import PUBLIC_STREAM, SERVER_STREAM, InProcessServer, PublicTrainer
from fedmosaic_cli.engine.upload_filters import QuorumFilter
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.attacks import LabelAttack, least_similar_classes
from fedmosaic_cli.labels.label_upload_filter import LabelUploadFilter
from fedmosaic_cli.labels.sharing import EXTENSION_KEY, LabelSharing, SharesLabels, reporting_rates
from fedmosaic_cli.machine import PAGE_BYTES, physical_memory_bytes
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard
    from fedmosaic_cli.engine.context import Parameters
    from fedmosaic_cli.engine.execution.modes import ExecutionMode
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import NetworkFactory
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.model_settings import ModelSettings

HASH_BATCH_SIZE = 1000


def find_devices(name: str) -> list[torch.device]:
    """Return all devices of a type; `auto` is the first available type of cuda, mps and cpu."""
    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    if not counts[name]:
        raise RequestError(f"no {name} device on this machine (--device): use --device auto")
    return [torch.device("cpu")] if name == "cpu" else [torch.device(name, number) for number in range(counts[name])]


def check_networks(config: RunConfig, image_shape: Sequence[int], num_classes: int, device: torch.device) -> None:
    """Refuse a run if a client's network does not fit; see `check_network`."""
    height, width, channels = image_shape
    for model in {model for model, _ in config.client_groups}:
        check_network(model, config.train, image_shape, device)
        if model.name in MODELS:
            with torch.random.fork_rng(devices=[]):
                build_network(model, (channels, height, width), num_classes)


def check_network(model: ModelSettings, train: TrainSettings, image_shape: Sequence[int], device: torch.device) -> None:
    """Refuse a network that does not fit the images (height, width, channels) or `train`. Allocates nothing."""
    if not model.is_network:
        return
    height, width, channels = image_shape
    choose_execution(train, model, (channels, height, width), 1, device)
    if train.precision != "float32" and device.type == "cpu":
        # Half precision is slower on most CPUs and crashes on some.
        raise RequestError(f"{train.precision} is for GPUs (train.precision): use float32 on a CPU")


class DeviceDataset:
    """The data set on a device: one array of images for all clients of that device.

    Images that need more than half of a GPU's free memory stay on the host (`train.image_device`).
    """

    def __init__(
        self, dataset: Dataset, partition: Partition, device: torch.device, dtype: torch.dtype, image_device: str
    ) -> None:
        preload_images(dataset.images)
        # The memory layout of images affects the last bits of a result.
        images = torch.as_tensor(np.ascontiguousarray(dataset.images))
        self.images = images if should_stay_on_host(image_device, images.nbytes, device) else images.to(device)
        self.dataset = dataset
        self.dtype = dtype
        self.device = device
        self.public_examples = self._examples(partition.public, None)

    def examples(self, shard: Shard, split: str) -> Examples:
        """Return one split (train, test, val) of a client's examples with the client's labels."""
        labels = torch.tensor(shard.split_labels(split, self.dataset), device=self.device)
        return self._examples(shard.splits()[split], labels)

    def _examples(self, index: NDArray[np.int64], labels: torch.Tensor | None) -> Examples:
        indices = torch.tensor(index, device=self.images.device)
        return Examples(self.images, indices, labels, self.dtype, self.device)


def preload_images(images: NDArray[np.uint8]) -> None:
    """Read memory-mapped images into memory if they fit, so that rounds do not wait for the disk."""
    if isinstance(images, np.memmap) and images.nbytes < physical_memory_bytes() / 2:
        images.reshape(-1)[::PAGE_BYTES].max(initial=0)


def should_stay_on_host(image_device: str, num_bytes: int, device: torch.device) -> bool:
    """Whether images stay on the host: on request, or because a GPU has too little free memory."""
    if device.type != "cuda" or image_device != "auto":
        return image_device == "host"
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes > free / 2


class LearnerFactory:
    """Creates learners. Clients with equal network, training settings and device share one."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._learners: dict[tuple[ModelSettings, TrainSettings, torch.device], NetworkLearner] = {}
        self._networks: dict[tuple[ModelSettings, TrainSettings, torch.device, str], NetworkLearner] = {}
        self._public_trainers: dict[tuple[ModelSettings, TrainSettings, torch.device], PublicTrainer] = {}
        self._modes: set[str] = set()

    def networks(self, client: int, device_dataset: DeviceDataset) -> dict[str, NetworkLearner]:
        """Return the learners of the additional networks that the method needs, by name."""
        model, train = self._config.network_settings_for(client), self._config.train_settings_for(client)
        dataset, device, networks = device_dataset.dataset, device_dataset.device, self._config.method.needs.networks
        for name in networks:
            if (model, train, device, name) not in self._networks:
                mode = choose_execution(train, model, dataset.input_shape, self._config.group_size(client), device)
                learner = build_network_learner(model, train, device_dataset, "threads", networks[name])
                if mode == "stacked" and is_stackable(learner.template):
                    learner = build_network_learner(model, train, device_dataset, mode, networks[name])
                self._networks[model, train, device, name] = learner
        return {name: self._networks[model, train, device, name] for name in networks}

    def public_trainer(self, client: int, device_dataset: DeviceDataset) -> PublicTrainer | None:
        """Return what trains on the public set for this client, if the method needs it."""
        if not self._config.method.needs.public_training:
            return None
        config, train = self._config, self._config.train_settings_for(client)
        key = (config.network_settings_for(client), train, device_dataset.device)
        if key not in self._public_trainers:
            worker = build_public_worker(config, PUBLIC_STREAM, key[0], train, device_dataset)
            self._public_trainers[key] = PublicTrainer(config.seed, worker)
        return self._public_trainers[key]

    def learner(self, client: int, private: Examples, device_dataset: DeviceDataset) -> Learner:
        model, train = self._config.model_settings_for(client), self._config.train_settings_for(client)
        shape, classes = device_dataset.dataset.input_shape, device_dataset.dataset.num_classes
        if not model.is_network:
            return EstimatorLearner(model, private, device_dataset.public_examples, classes)
        key = (model, train, device_dataset.device)
        if key not in self._learners:
            mode = choose_execution(train, model, shape, self._config.group_size(client), device_dataset.device)
            self._modes.add(mode)
            self._learners[key] = build_network_learner(model, train, device_dataset, mode)
        return self._learners[key]

    @property
    def execution(self) -> str:
        """The execution modes in use, e.g. `stacked` or `stacked and threads`."""
        return " and ".join(sorted(self._modes)) or "threads"


def build_federation(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    devices: Sequence[torch.device],
    dtype: torch.dtype = torch.float32,
    shards_digest: str = "",
) -> Federation:
    """Build the federation in its initial state, with clients distributed over the devices.

    The caller closes `worker_pool`. `shards_digest` identifies the shards in messages.
    """
    pooled, num_clients = config.method.needs.pooled_data, len(partition.shards)
    num_round_clients = num_clients_per_round(config)
    devices = devices[: 1 if pooled else num_clients]
    datasets = [DeviceDataset(dataset, partition, device, dtype, config.train.images) for device in devices]
    learners = LearnerFactory(config)

    def data_for(client: int) -> DeviceDataset:
        return datasets[client % len(datasets)]

    shards = with_poisoned_labels(partition, config).shards
    training_sets = (
        [pool_training_examples(datasets[0], shards)]
        if pooled
        else [data_for(s.client).examples(s, "train") for s in shards]
    )
    clients = []
    for number, private in enumerate(training_sets):
        data = data_for(number)
        clients.append(
            InProcessClient(
                number,
                config.seed,
                private,
                data.public_examples,
                learners.learner(number, private, data),
                config.train_settings_for(number),
                dataset.num_classes,
                num_round_clients=num_round_clients if pooled else 1,
                num_total_clients=num_clients if pooled else 1,
                validation=None if pooled else validation_examples(data, shards[number]),
                networks=learners.networks(number, data),
                public_trainer=learners.public_trainer(number, data),
            )
        )
    network = clients[0].learner if isinstance(clients[0].learner, NetworkLearner) else None
    sizes = {client.id: len(client.private) for client in clients}
    info = build_federation_info(config, dataset, partition, sizes, network, shards_digest, dtype)
    eval_tasks = [build_eval_task(data_for(s.client), s, owner=0 if pooled else s.client) for s in partition.shards]
    workers = WorkerPool(num_workers(config.train.workers, len(clients), devices[0]))
    state = init_state(config.method, clients, build_server(config, devices[0], lambda: datasets[0]), info)
    attack = build_attack(config, info, dataset, partition)
    return Federation(
        config.method,
        info,
        eval_tasks,
        workers,
        state,
        config.seed,
        num_round_clients,
        devices[0],
        learners.execution,
        skip_diverged=config.train.on_nan == "skip",
        filters=(QuorumFilter(), *label_filters(config, attack, true_public_labels(dataset, partition, devices[0]))),
        client_context=(lambda client: attack.context_for_client(client, info)) if attack else None,
    )


def build_site_federation(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    train_sizes: dict[int, int],
    shards_digest: str,
    device: torch.device,
) -> Federation:
    """Build the federation of a remote site: one client with its data, and the public facts about the others.

    Args:
        partition: The public set and the shard of the one client.
        train_sizes: The number of training examples of each client in the whole federation.
    """
    threads = {"execution": "threads"}
    trainings = {client: train.model_copy(update=threads) for client, train in config.client_train_settings.items()}
    config = replace(config, train=config.train.model_copy(update=threads), client_train_settings=trainings)
    data = DeviceDataset(dataset, partition, device, torch.float32, config.train.images)
    learners, [own] = LearnerFactory(config), partition.shards
    number = own.client
    private = data.examples(own, "train")
    learner, train = learners.learner(number, private, data), config.train_settings_for(number)
    client = InProcessClient(
        number,
        config.seed,
        private,
        data.public_examples,
        learner,
        train,
        dataset.num_classes,
        use_system_rng=True,
        validation=validation_examples(data, own),
        networks=learners.networks(number, data),
        public_trainer=learners.public_trainer(number, data),
    )
    network = build_reference_network(config, dataset, device) if config.model_settings_for(0).is_network else None
    info = build_federation_info(config, dataset, partition, train_sizes, network, shards_digest)
    return Federation(
        config.method,
        info,
        [build_eval_task(data, own, owner=number)],
        WorkerPool(1),
        init_state(config.method, [client], InProcessServer(config.seed, device), info, with_server=False),
        config.seed,
        1,
        device,
        "threads",
        skip_diverged=config.train.on_nan == "skip",
    )


def build_server(config: RunConfig, device: torch.device, load_data: Callable[[], DeviceDataset]) -> InProcessServer:
    """Build the server, with a worker that computes on the public set if the method needs one."""
    if not config.method.needs.server_compute:
        return InProcessServer(config.seed, device)
    worker = build_public_worker(
        config, SERVER_STREAM, config.model_settings_for(0), config.train_settings_for(0), load_data()
    )
    return InProcessServer(config.seed, device, worker)


def build_public_worker(
    config: RunConfig, name: str, model: ModelSettings, train: TrainSettings, data: DeviceDataset
) -> InProcessClient:
    """Build a client whose training data is the public set without its labels; `name` is used in random streams."""
    labels = torch.zeros(len(data.public_examples), dtype=torch.int64).to(data.device)
    networks = config.method.needs.networks
    return InProcessClient(
        name,
        config.seed,
        replace(data.public_examples, labels=labels),
        data.public_examples,
        build_network_learner(model, train, data),
        train,
        data.dataset.num_classes,
        networks={name: build_network_learner(model, train, data, extend=extend) for name, extend in networks.items()},
    )


def build_network_learner(
    model: ModelSettings,
    train: TrainSettings,
    data: DeviceDataset,
    mode: ExecutionMode = "threads",
    extend: NetworkFactory | None = None,
) -> NetworkLearner:
    """Build the learner of a network or, with `extend`, of an additional network of the method."""
    dataset = data.dataset
    return NETWORK_LEARNERS[mode](
        model, train, dataset.input_shape, dataset.num_classes, data.device, data.dtype, extend=extend
    )


def build_reference_network(
    config: RunConfig, dataset: Dataset, device: torch.device, dtype: torch.dtype = torch.float32
) -> NetworkLearner:
    """Build the network of the first client, which defines the shapes of averaged models."""
    model, train = config.model_settings_for(0), config.train_settings_for(0)
    return NETWORK_LEARNERS["threads"](model, train, dataset.input_shape, dataset.num_classes, device, dtype)


def build_federation_info(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    sizes: dict[int, int],
    network: NetworkLearner | None,
    shards_digest: str,
    dtype: torch.dtype = torch.float32,
) -> FederationInfo:
    """Return the public facts about the federation; `network` is that of the first client, if it has one."""
    extra = config.method.needs.networks if network else {}
    return FederationInfo(
        num_classes=dataset.num_classes,
        initial_model=network.initial_parameters(derive_seed(config.seed, "init")) if network else {},
        client_sizes=sizes,
        num_rounds=config.train.rounds,
        participation_rate=num_clients_per_round(config) / (config.data.clients or 1),
        aggregation=config.train.aggregation,
        bn_buffers=config.train.bn_buffers,
        groups=network.groups if network else {},
        feature_dim=network.template.head.in_features if network else 0,
        networks={name: initial_network(config, dataset, network, name, dtype) for name in extra} if network else {},
        float_bits=8 * dtype.itemsize,
        public_size=len(partition.public),
        public_labels=required_public_labels(dataset, partition) if config.method.needs.public_labels else None,
        run_id=run_id(config, shards_digest),
        public_set_id=public_set_digest(dataset, partition),
        extensions={EXTENSION_KEY: LabelSharing(config.defence, config.noise)},
    )


def initial_network(
    config: RunConfig, dataset: Dataset, network: NetworkLearner, name: str, dtype: torch.dtype
) -> Parameters:
    """Return the common initial parameters of an additional network of the method."""
    shape, extend = dataset.input_shape, config.method.needs.networks[name]
    model, train = config.model_settings_for(0), config.train_settings_for(0)
    learner = NetworkLearner(model, train, shape, dataset.num_classes, network.device, dtype, extend=extend)
    return learner.initial_parameters(derive_seed(config.seed, "init", name))


def num_clients_per_round(config: RunConfig) -> int:
    """Return the number of clients that take part in a round."""
    num_clients = config.data.clients or 1
    return min(config.train.clients_per_round or num_clients, num_clients)


def with_poisoned_labels(partition: Partition, config: RunConfig) -> Partition:
    """Return the partition with flipped training labels for clients that poison their data."""
    return poison_clients(partition, config.attack.clients if config.attack.kind == "poison_data" else ())


def run_id(config: RunConfig, shards_digest: str) -> bytes:
    """Return the id of a run in messages; it does not depend on the number of rounds."""
    names = (config.experiment_name, config.method.variant, config.seed, shards_digest, config.partition_seed)
    return hashlib.blake2b(repr((names, config.data)).encode(), digest_size=16).digest()


def public_set_digest(dataset: Dataset, partition: Partition) -> bytes:
    """Return the id of the public set in messages: a digest of its images in order."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(partition.public), HASH_BATCH_SIZE):
        digest.update(dataset.images[partition.public[start : start + HASH_BATCH_SIZE]].tobytes())
    return digest.digest()


def build_attack(config: RunConfig, ctx: FederationInfo, dataset: Dataset, partition: Partition) -> LabelAttack | None:
    """Return the configured attack on label uploads, or None."""
    kind = config.attack.kind
    if not isinstance(config.method, SharesLabels) or kind in ("none", "poison_data"):
        return None
    spec = config.method.message_spec(ctx)
    dissimilar = None
    if kind == "class_prior":
        labels = dataset.labels[partition.public]
        if labels.min(initial=0) < 0:
            raise RequestError(
                "the labels of the public set are unknown, but attack.kind class_prior needs them (attack.kind): "
                "use shards that were not exported"
            )
        dissimilar = least_similar_classes(dataset.images[partition.public], labels, dataset.num_classes)
    return LabelAttack(config.attack, spec, config.seed, reporting_rates(ctx), dissimilar)


def label_filters(
    config: RunConfig, attack: LabelAttack | None, true_labels: torch.Tensor | None
) -> list[LabelUploadFilter]:
    """Return the upload filter of methods that share labels; none for other methods."""
    return [LabelUploadFilter(config.method, attack, true_labels)] if isinstance(config.method, SharesLabels) else []


def true_public_labels(dataset: Dataset, partition: Partition, device: torch.device) -> torch.Tensor | None:
    """Return the labels of the public set if all are known; exported shards do not contain them."""
    labels = dataset.labels[partition.public]
    return torch.tensor(labels, device=device) if len(labels) and labels.min() >= 0 else None


def required_public_labels(dataset: Dataset, partition: Partition) -> torch.Tensor:
    """Return the labels of the public set on the CPU. Raise RequestError if they are not known."""
    labels = true_public_labels(dataset, partition, torch.device("cpu"))
    if labels is None:
        raise RequestError(
            "the labels of the public set are unknown, but the method needs them (METHOD): use shards that were not "
            "exported"
        )
    return labels


def build_eval_task(device_dataset: DeviceDataset, shard: Shard, owner: int) -> EvalTask:
    test = device_dataset.examples(shard, "test")
    return EvalTask(shard.client, owner, test, validation_examples(device_dataset, shard))


def validation_examples(device_dataset: DeviceDataset, shard: Shard) -> Examples | None:
    """Return the validation data of a client, if it has any."""
    return device_dataset.examples(shard, "val") if "val" in shard.splits() else None


def pool_training_examples(device_dataset: DeviceDataset, shards: Sequence[Shard]) -> Examples:
    """Return the training examples of all clients, with the labels that each client has."""
    parts = [device_dataset.examples(shard, "train") for shard in shards]
    return replace(
        parts[0],
        indices=torch.cat([part.indices for part in parts]),
        labels=torch.cat([part.targets for part in parts]),
    )
