"""What a run will cost, foretold: steps, memory, bits. Where the data set is missing, what can be known without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.data.partition import partition
from fedmosaic_cli.data.sources import count_dataset, find_source
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.place import Place
    from fedmosaic_cli.data.settings import DataSettings
    from fedmosaic_cli.records.shards import Shards


@dataclass(frozen=True)
class DataFacts:
    """What of the data decides the price. `sizes` and `megabytes` are None where only the data could tell."""

    input_shape: tuple[int, int, int]
    classes: int
    sizes: list[int] | None
    megabytes: float | None
    missing: str | None = None


def costs(config: RunConfig, data: DataFacts) -> dict[str, Any]:
    """Rounds, steps of all clients together, megabytes, and bits that a client sends and receives in a round."""
    with torch.device("meta"):
        module = build(config.model, data.input_shape, data.classes)
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    clients = config.data.clients or 1
    bits = config.method.traffic(8 * model_bytes, config.data.public_size or 0, data.classes)
    return {
        "rounds": config.train.rounds,
        "steps": None if data.sizes is None else config.train.rounds * steps_a_round(config, data.sizes),
        "data_mb": data.megabytes,
        "models_mb": (1 if config.method.pooled else clients) * copies(config) * model_bytes / 1e6,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "bits_up": bits.up,
        "bits_down": bits.down,
        "missing": data.missing,
    }


def facts_of_shards(shards: Shards) -> DataFacts:
    """From what the manifest tells."""
    manifest = shards.manifest
    height, width, channels = manifest["image_shape"]
    sizes = [client["train"]["size"] for client in manifest["clients"]]
    megabytes = manifest["examples"] * height * width * channels / 1e6
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
    megabytes = None if facts.train is None else (facts.train + (facts.test or 0)) * pixels / 1e6
    return DataFacts((facts.channels, side, side), facts.classes, None, megabytes, str(missing))


def steps_a_round(config: RunConfig, sizes: list[int]) -> int:
    """The steps of all clients together."""
    train = config.train
    if train.local_steps is not None:
        return train.local_steps * len(sizes)
    held = [sum(sizes)] if config.method.pooled else sizes
    return train.local_epochs * sum(-(-size // train.batch_size) for size in held)


def copies(config: RunConfig) -> int:
    """How many tensors of a model's size a client keeps: the model, and what its optimizer remembers."""
    train = config.train
    if train.optimizer_state == "reset":
        return 1
    return 3 if train.optimizer == "adam" else 1 + bool(train.momentum)
