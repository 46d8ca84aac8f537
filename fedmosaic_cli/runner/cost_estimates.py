"""Estimate steps, memory and traffic of a run, from shards, the data set, or its description if it is missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.data.datasets import find_dataset_source, load_dataset_without_pixels
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.resolve_settings import known_image_shape
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.execution.modes import choose_execution, num_workers
from fedmosaic_cli.engine.network_learner import parameter_groups
from fedmosaic_cli.engine.traffic import planned_once_traffic, planned_traffic, upload_bits
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.sharing import EXTENSION_KEY, LabelSharing
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.runner.memory_estimates import NetworkShape, base_bytes, concurrent_bytes, step_bytes
from fedmosaic_cli.storage.checkpoints import NUM_KEPT_CHECKPOINTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.engine.context import Parameters
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings
    from fedmosaic_cli.storage.shards import ShardSet


@dataclass(frozen=True)
class DataDimensions:
    """The dimensions of the data. `train_sizes` and `data_mb` are None if only the missing data set defines them."""

    input_shape: tuple[int, int, int]
    num_classes: int
    train_sizes: list[int] | None
    data_mb: float | None
    missing_reason: str | None = None


def estimate_costs(config: RunConfig, data: DataDimensions, device: torch.device) -> dict[str, Any]:
    """Estimate rounds, steps of all clients, memory, and the bits that a client sends and receives per round."""
    process_mb = base_bytes() / 1e6
    info = estimated_federation_info(config, data)
    bits, once = planned_traffic(config.method, info), planned_once_traffic(config.method, info)
    modes = {clients[0]: execution_mode(config, clients[0], data, device) for clients in config.client_groups.values()}
    models_mb = (resident_state_bytes(config, data, device, modes) + shared_network_bytes(config, data)) / 1e6
    step_mb = all_step_bytes(config, data, device, modes) / 1e6
    is_known = data.data_mb is not None and device.type == "cpu"
    return {
        "rounds": config.train.rounds,
        "steps": None
        if data.train_sizes is None
        else num_local_rounds(config, info) * steps_per_round(config, data.train_sizes),
        "device": str(device),
        "workers": num_workers(config.train.workers, sum(map(len, config.client_groups.values())), device),
        "execution": " and ".join(sorted(set(modes.values()))),
        "data_mb": data.data_mb,
        "models_mb": models_mb,
        "step_mb": step_mb,
        "process_mb": process_mb,
        "memory_mb": process_mb + (data.data_mb or 0.0) + models_mb + step_mb if is_known else None,
        "parameters": model_size(config.model_settings_for(0), data).num_parameters,
        "bits_up": bits.uplink_bits,
        "bits_down": bits.downlink_bits,
        "bits_once": {"up": once.uplink_bits, "down": once.downlink_bits},
        "missing": data.missing_reason,
    }


def disk_bytes(config: RunConfig, data: DataDimensions) -> int:
    """Return an upper bound of disk space: checkpoints, two more while one is written, models, and states on disk."""
    groups, info = config.client_groups, estimated_federation_info(config, data)
    weights = sum(len(clients) * model_size(model, data).num_bytes for (model, _), clients in groups.items())
    states = all_state_bytes(config, data)
    uploads = sum(map(len, groups.values())) * upload_bits(config.method, info) // 8  # the server may keep them
    return (NUM_KEPT_CHECKPOINTS + 2) * (states + uploads) + weights + (states if has_stored_states(config) else 0)


def all_state_bytes(config: RunConfig, data: DataDimensions) -> int:
    """Return the size of the states of all clients at the end of a round: models and optimizer states."""
    info = estimated_federation_info(config, data)
    return sum(len(clients) * state_bytes(config, clients[0], data, info) for clients in config.client_groups.values())


def state_bytes(config: RunConfig, client: int, data: DataDimensions, info: FederationInfo) -> int:
    """Return the size of the state of a client at the end of a round."""
    num_bytes = model_size(config.model_settings_for(client), data).num_bytes
    return int(num_model_copies(config, client, info) * num_bytes)


def has_stored_states(config: RunConfig) -> bool:
    """Whether the states of idle clients are on disk. A client with pooled data is never idle."""
    return config.train.client_state == "disk" and not config.method.needs.pooled_data


def resident_state_bytes(
    config: RunConfig, data: DataDimensions, device: torch.device, modes: Mapping[int, str]
) -> int:
    """Return the size of the states in memory, and of the uploads of a round.

    With states on disk, those of the clients that compute at the same time are in memory.

    Args:
        config: The run.
        data: The dimensions of its data.
        device: Where the clients compute.
        modes: How the clients of each group are executed, by the first client of the group.
    """
    info = estimated_federation_info(config, data)
    num_clients = sum(map(len, config.client_groups.values()))
    num_participants = min(config.train.clients_per_round or num_clients, num_clients)
    uploads = num_participants * upload_bits(config.method, info) // 8
    if not has_stored_states(config):
        return all_state_bytes(config, data) + uploads
    return uploads + concurrent_bytes(
        config, device, modes, lambda client, group_size: group_size * state_bytes(config, client, data, info)
    )


def shared_network_bytes(config: RunConfig, data: DataDimensions) -> int:
    """Return the size of what belongs to no client: the common initial model, and a network per learner."""
    groups = len(config.client_groups) * (1 + len(config.method.needs.networks))
    initial = model_size(config.model_settings_for(0), data).num_bytes
    return initial + groups * max(model_size(model, data).num_bytes for model, _ in config.client_groups)


def all_step_bytes(config: RunConfig, data: DataDimensions, device: torch.device, modes: Mapping[int, str]) -> int:
    """Return what workers need at a time to train and predict; for `modes` see `resident_state_bytes`."""

    def group_bytes(client: int, group_size: int) -> int:
        model = config.model_settings_for(client)
        if not model.is_network:
            return 0
        shape = NetworkShape(model, data.input_shape, data.num_classes)
        num_bytes = model_size(model, data).num_bytes
        return step_bytes(config, client, shape, num_bytes, device, modes[client], group_size)

    return concurrent_bytes(config, device, modes, group_bytes)


@dataclass(frozen=True)
class ModelSize:
    """The size of a network; 0 for other models."""

    num_bytes: int = 0
    num_parameters: int = 0


def execution_mode(config: RunConfig, client: int, data: DataDimensions, device: torch.device) -> str:
    """How a client will be trained."""
    model, train = config.model_settings_for(client), config.train_settings_for(client)
    if not model.is_network:
        return "threads"
    return choose_execution(train, model, data.input_shape, config.group_size(client), device)


def model_size(model: ModelSettings, data: DataDimensions) -> ModelSize:
    return network_size(model, data.input_shape, data.num_classes) if model.is_network else ModelSize()


@lru_cache
def network_size(model: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> ModelSize:
    module = build_on_meta_device(model, input_shape, num_classes)
    tensors = module.state_dict().values()
    return ModelSize(sum(t.numel() * t.element_size() for t in tensors), sum(p.numel() for p in module.parameters()))


def build_on_meta_device(model: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> Classifier:
    with torch.device("meta"):
        return build_network(model, input_shape, num_classes)


def estimated_federation_info(config: RunConfig, data: DataDimensions) -> FederationInfo:
    """Return the public facts about the federation without allocating weights."""
    first = config.model_settings_for(0)
    module = build_on_meta_device(first, data.input_shape, data.num_classes) if first.is_network else None
    return FederationInfo(
        num_classes=data.num_classes,
        initial_model=dict(module.state_dict()) if module else {},
        client_sizes=dict.fromkeys(range(config.data.clients or 1), 1),
        num_rounds=config.train.rounds,
        bn_buffers=config.train.bn_buffers,
        groups=parameter_groups(module) if module else {},
        feature_dim=module.head.in_features if module else 0,
        networks={name: additional_network(config, data, name) for name in config.method.needs.networks}
        if module
        else {},
        public_size=config.data.public_size or 0,
        extensions={EXTENSION_KEY: LabelSharing(config.defence, config.noise)},
    )


def additional_network(config: RunConfig, data: DataDimensions, name: str) -> Parameters:
    """Return the parameters of an additional network of the method, without values."""
    with torch.device("meta"):
        module = build_network(config.model_settings_for(0), data.input_shape, data.num_classes)
        return dict(config.method.needs.networks[name](module, data.num_classes).state_dict())


def dimensions_from_shards(shards: ShardSet) -> DataDimensions:
    manifest = shards.manifest
    sizes = [client["train"]["size"] for client in manifest["clients"]]
    # Exported shards contain only the examples that are in use.
    examples = manifest["examples"] - (manifest["left_out"] if shards.has_examples else 0)
    megabytes = examples * prod(shards.image_shape) / 1e6
    return DataDimensions(shards.image_shape, len(manifest["class_names"]), sizes, megabytes)


def dimensions_from_dataset(settings: DataSettings, seed: int, data_dirs: DataDirs) -> DataDimensions:
    """Read the dimensions from the data set without pixels, or from its description if it is missing."""
    try:
        dataset = load_dataset_without_pixels(settings, data_dirs)
    except RequestError as error:
        return dimensions_from_dataset_info(settings, error)
    sizes = [len(shard.train) for shard in partition_dataset(dataset, settings, seed).shards]
    return DataDimensions(dataset.input_shape, dataset.num_classes, sizes, dataset.images.nbytes / 1e6)


def dimensions_from_dataset_info(settings: DataSettings, load_error: RequestError) -> DataDimensions:
    info, shape = find_dataset_source(settings.dataset).info, known_image_shape(settings)
    if info is None or shape is None:
        raise load_error
    megabytes = (
        None if info.num_train is None else settings.share * (info.num_train + (info.num_test or 0)) * prod(shape) / 1e6
    )
    return DataDimensions(shape, info.num_classes, None, megabytes, str(load_error))


def steps_per_round(config: RunConfig, train_sizes: list[int]) -> int:
    """Return the steps of all participants of a round; the average if clients are sampled."""
    train = config.train
    num_participants = train.clients_per_round or len(train_sizes)
    if train.local_steps is not None:
        return train.local_steps * num_participants
    sizes = [sum(train_sizes)] if config.method.needs.pooled_data else train_sizes
    steps = train.local_epochs * sum(-(-size // train.batch_size) for size in sizes)
    return -(-num_participants * steps // len(train_sizes))


def num_model_copies(config: RunConfig, client: int, info: FederationInfo) -> float:
    """Return how many tensors of a model's size a client keeps: models and optimizer state."""
    train, costs = config.train_settings_for(client), config.method.costs(info)
    trained = 0 if train.optimizer_state == "reset" else costs.trained_models
    return costs.state_models + trained * train.num_optimizer_copies


def num_local_rounds(config: RunConfig, info: FederationInfo) -> int:
    """Return how many rounds of local steps a client computes in the whole run."""
    local_rounds = config.method.costs(info).local_rounds
    return config.train.rounds if local_rounds is None else local_rounds
