"""What a run will cost, foretold: steps, memory, bits. Where the data set is missing, what can be known without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.data.partition import partition
from fedmosaic_cli.data.sources import find_source, load_dataset
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.place import Place


def costs(config: RunConfig, place: Place) -> dict[str, Any]:
    """Rounds, steps of all clients together, megabytes, and bits that a client sends and receives in a round."""
    data = facts_of(config, place)
    with torch.device("meta"):
        module = build(config.model, data["input_shape"], data["classes"])
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    clients = config.data.clients or 1
    bits = config.method.traffic(8 * model_bytes, config.data.public_size or 0, data["classes"])
    return {
        "rounds": config.train.rounds,
        "steps": None if data["sizes"] is None else config.train.rounds * steps_a_round(config, data["sizes"]),
        "data_mb": data["megabytes"],
        "models_mb": (1 if config.method.pooled else clients) * copies(config) * model_bytes / 1e6,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "bits_up": bits.up,
        "bits_down": bits.down,
        "missing": data["missing"],
    }


def facts_of(config: RunConfig, place: Place) -> dict[str, Any]:
    """What of the data decides the price. A dry run fetches nothing."""
    source = find_source(config.data.dataset)
    path = source.find(place.data_dir)
    if path is not None:
        dataset = load_dataset(config.data, place)
        dealt = partition(dataset, config.data, config.partition_seed)
        return {
            "input_shape": dataset.input_shape,
            "classes": dataset.num_classes,
            "sizes": [len(shard.train) for shard in dealt.shards],
            "megabytes": dataset.images.nbytes / 1e6,
            "missing": None,
        }
    missing = f"data set '{config.data.dataset}' is not here ({place.data_dir}): {source.how_to_get}"
    facts = source.facts
    side = config.data.image_size or (facts.side if facts else None)
    if facts is None or side is None:
        raise RequestError(missing)
    count = None if facts.train is None else facts.train + (facts.test or 0)
    return {
        "input_shape": (facts.channels, side, side),
        "classes": facts.classes,
        "sizes": None,
        "megabytes": None if count is None else count * facts.channels * side * side / 1e6,
        "missing": missing,
    }


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
