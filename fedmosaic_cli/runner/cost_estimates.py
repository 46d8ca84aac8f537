"""What a run will cost, foretold: steps, memory, bits. Where the data set is missing, what can be known without it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.data.datasets import count_dataset, find_source
from fedmosaic_cli.data.partitioning.partition import partition
from fedmosaic_cli.engine.execution.modes import choose, worker_count
from fedmosaic_cli.engine.execution.worker_pool import STACK
from fedmosaic_cli.engine.method import World
from fedmosaic_cli.engine.network_runner import batch_norm_names, buffer_names
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.architectures import build
from fedmosaic_cli.storage.checkpoints import KEPT

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings
    from fedmosaic_cli.storage.shards import Shards


@dataclass(frozen=True)
class DataFacts:
    """What of the data decides the price. `sizes` and `megabytes` are None where only the data could tell."""

    input_shape: tuple[int, int, int]
    classes: int
    sizes: list[int] | None
    megabytes: float | None
    missing: str | None = None


def costs(config: RunConfig, data: DataFacts, device: torch.device) -> dict[str, Any]:
    """Rounds, steps of all clients together, megabytes, and bits that a client sends and receives in a round."""
    bits = config.method.traffic(world_of(config, data), config.data.public_size or 0)
    ways = {clients[0]: execution_of(config, clients[0], data, device) for clients in config.kinds.values()}
    return {
        "rounds": config.train.rounds,
        "steps": None
        if data.sizes is None
        else config.method.passes(config.train.rounds) * steps_a_round(config, data.sizes),
        "device": str(device),
        "workers": worker_count(config.train.workers, sum(map(len, config.kinds.values())), device),
        "execution": " and ".join(sorted(set(ways.values()))),
        "data_mb": data.megabytes,
        "models_mb": states_bytes(config, data) / 1e6,
        "step_mb": max(step_bytes(config, client, data, device, way) for client, way in ways.items()) / 1e6,
        "parameters": model_size(config.model_of(0), data).parameters,
        "bits_up": bits.up,
        "bits_down": bits.down,
        "missing": data.missing,
    }


def disk_bytes(config: RunConfig, data: DataFacts) -> int:
    """What a run takes on the disk at most: checkpoints, room for two more while one is written, personal models."""
    weights = sum(len(clients) * model_size(model, data).bytes for (model, _), clients in config.kinds.items())
    return (KEPT + 2) * states_bytes(config, data) + weights


def states_bytes(config: RunConfig, data: DataFacts) -> int:
    """What all clients remember."""
    return sum(
        len(clients) * copies(config, clients[0]) * model_size(model, data).bytes
        for (model, _), clients in config.kinds.items()
    )


@dataclass(frozen=True)
class ModelSize:
    """How large a network is; what is none has no weights."""

    bytes: int = 0
    parameters: int = 0


def execution_of(config: RunConfig, client: int, data: DataFacts, device: torch.device) -> str:
    """How a client will be trained."""
    model, train = config.model_of(client), config.train_of(client)
    if not model.is_network:
        return "threads"
    return choose(train, model, data.input_shape, config.how_many_like(client), device)


def step_bytes(config: RunConfig, client: int, data: DataFacts, device: torch.device, execution: str) -> int:
    """What a step of a client, and of those who take theirs at the same time, needs beside data and models.

    Activations and their gradients, and those of the weights; where clients are stacked, their models and what
    optimizers remember are there once more.
    """
    model, train, alike = config.model_of(client), config.train_of(client), config.how_many_like(client)
    if not model.is_network:
        return 0
    batch = train.batch_size * (2 if config.method.needs_public else 1)
    weights = model_size(model, data).bytes
    one = 2 * activation_bytes(model, data.input_shape, data.classes, batch) + weights
    at_once, workers = min(alike, train.clients_per_round or alike), worker_count(train.workers, alike, device)
    if execution == "stacked":
        return min(at_once, workers * STACK) * (one + weights * (1 + remembered(train)))
    return min(at_once, workers) * one


@lru_cache
def activation_bytes(model: ModelSettings, input_shape: tuple[int, int, int], classes: int, batch: int) -> int:
    """What the forward pass of a batch keeps for the backward pass, beside the weights."""
    module = on_paper(model, input_shape, classes)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        source = tensor if tensor._base is None else tensor._base
        kept.append(0 if isinstance(source, torch.nn.Parameter) else tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(torch.empty(batch, *input_shape, device="meta"))
    return sum(kept)


def model_size(model: ModelSettings, data: DataFacts) -> ModelSize:
    return network_size(model, data.input_shape, data.classes) if model.is_network else ModelSize()


@lru_cache
def network_size(model: ModelSettings, input_shape: tuple[int, int, int], classes: int) -> ModelSize:
    module = on_paper(model, input_shape, classes)
    tensors = module.state_dict().values()
    return ModelSize(sum(t.numel() * t.element_size() for t in tensors), sum(p.numel() for p in module.parameters()))


def on_paper(model: ModelSettings, input_shape: tuple[int, int, int], classes: int) -> Classifier:
    """The network without its numbers."""
    with torch.device("meta"):
        return build(model, input_shape, classes)


def world_of(config: RunConfig, data: DataFacts) -> World:
    """What everybody would know, without a single number."""
    first = config.model_of(0)
    module = on_paper(first, data.input_shape, data.classes) if first.is_network else None
    return World(
        num_classes=data.classes,
        init=dict(module.state_dict()) if module else {},
        sizes={},
        rounds=config.train.rounds,
        bn_buffers=config.train.bn_buffers,
        buffers=buffer_names(module) if module else frozenset(),
        batch_norm=batch_norm_names(module) if module else frozenset(),
        noise=config.noise,
    )


def facts_of_shards(shards: Shards) -> DataFacts:
    """From what the manifest tells."""
    manifest = shards.manifest
    height, width, channels = manifest["image_shape"]
    sizes = [client["train"]["size"] for client in manifest["clients"]]
    # Shards that carry their examples carry no others.
    examples = manifest["examples"] - (manifest["left_out"] if shards.exported else 0)
    megabytes = examples * height * width * channels / 1e6
    return DataFacts((channels, height, width), len(manifest["class_names"]), sizes, megabytes)


def facts_of_data(settings: DataSettings, seed: int, place: Place) -> DataFacts:
    """From the data set, without its pixels; where it is missing, what its description tells."""
    try:
        dataset = count_dataset(settings, place)
    except RequestError as error:
        return facts_without_data(settings, error)
    sizes = [len(shard.train) for shard in partition(dataset, settings, seed).shards]
    return DataFacts(dataset.input_shape, dataset.num_classes, sizes, dataset.images.nbytes / 1e6)


def facts_without_data(settings: DataSettings, missing: RequestError) -> DataFacts:
    facts = find_source(settings.dataset).facts
    side = settings.image_size or (facts.side if facts else None)
    if facts is None or side is None:
        raise missing
    pixels = facts.channels * side * side
    megabytes = None if facts.train is None else settings.share * (facts.train + (facts.test or 0)) * pixels / 1e6
    return DataFacts((facts.channels, side, side), facts.classes, None, megabytes, str(missing))


def steps_a_round(config: RunConfig, sizes: list[int]) -> int:
    """The steps of all who take part in a round together; on average, where they are drawn."""
    train = config.train
    taking_part = train.clients_per_round or len(sizes)
    if train.local_steps is not None:
        return train.local_steps * taking_part
    held = [sum(sizes)] if config.method.pooled else sizes
    steps = train.local_epochs * sum(-(-size // train.batch_size) for size in held)
    return -(-taking_part * steps // len(sizes))


def copies(config: RunConfig, client: int) -> int:
    """How many tensors of a model's size a client keeps: its models, and what their optimizers remember."""
    train, (held, trained) = config.train_of(client), config.method.most_models
    return held + (0 if train.optimizer_state == "reset" else trained * remembered(train))


def remembered(train: TrainSettings) -> int:
    """How many tensors of a model's size an optimizer remembers."""
    return 2 if train.optimizer == "adam" else int(train.momentum > 0)
