"""Build clients, the server and the federation of a run from its configuration and shards."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.data.partitioning.partition import poison_clients
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.execution.modes import choose_execution, num_workers
from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
from fedmosaic_cli.engine.federation import EvalTask, Federation, init_state
from fedmosaic_cli.engine.network_learner import NetworkLearner, parameter_groups
from fedmosaic_cli.engine.server import SERVER_STREAM, InProcessServer
from fedmosaic_cli.engine.upload_filters import QuorumFilter
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.attacks import LabelAttack, least_similar_classes
from fedmosaic_cli.labels.label_upload_filter import LabelUploadFilter
from fedmosaic_cli.labels.sharing import EXTENSION_KEY, LabelSharing, SharesLabels, reporting_rates
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.runner.device_dataset import DeviceDataset
from fedmosaic_cli.runner.learner_factory import LearnerFactory, build_public_worker, build_reference_network
from fedmosaic_cli.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard
    from fedmosaic_cli.engine.client import StateStore
    from fedmosaic_cli.engine.context import Parameters
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.classifier import Classifier
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


def count_weights(config: RunConfig, dataset: Dataset, client: int) -> int:
    """Return the number of weights that the site of a client stores: all copies and optimizer states of its network.

    The network that computes, the reference network and additional networks of the method count once. Nothing is
    allocated.
    """

    def meta_network(model: ModelSettings) -> Classifier | None:
        if not model.is_network:
            return None
        with torch.device("meta"):
            return build_network(model, dataset.input_shape, dataset.num_classes)

    def num_weights(network: Classifier | None) -> int:
        return 0 if network is None else sum(tensor.numel() for tensor in network.state_dict().values())

    reference, own = (meta_network(config.model_settings_for(number)) for number in (0, client))
    info = FederationInfo(
        dataset.num_classes,
        {} if reference is None else reference.state_dict(),
        {},
        config.train.rounds,
        groups={} if reference is None else parameter_groups(reference),
    )
    costs, train = config.method.costs(info), config.train_settings_for(client)
    num_copies = 1 + costs.state_models + costs.trained_models * train.num_optimizer_copies
    extended = num_weights(meta_network(config.network_settings_for(client))) * len(config.method.needs.networks)
    return math.ceil(num_copies * num_weights(own)) + num_weights(reference) + extended


def build_federation(
    config: RunConfig,
    dataset: Dataset,
    partition: Partition,
    devices: Sequence[torch.device],
    dtype: torch.dtype = torch.float32,
    shards_digest: str = "",
    state_store: StateStore | None = None,
) -> Federation:
    """Build the federation in its initial state, with clients distributed over the devices.

    The caller closes `worker_pool`. `shards_digest` identifies the shards in messages. `state_store` keeps the states
    of clients that do not compute; a client with pooled data is never idle.
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
    for client in clients:
        client.state_store = None if pooled else state_store
    workers = WorkerPool(num_workers(config.train.workers, len(clients), devices[0]), config.train.cuda_streams)
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
        eval_every=config.train.eval_every,
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
