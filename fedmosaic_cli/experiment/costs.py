"""What a run will cost, foretold: steps, memory, bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.data.partition import partition
from fedmosaic_cli.data.sources import find_source
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from fedmosaic_cli.config.run import RunConfig


def costs(config: RunConfig) -> dict[str, Any]:
    """Rounds, steps of all clients together, megabytes, and bits that a client sends and receives in a round."""
    dataset = find_source(config.data.dataset).load()
    dealt = partition(dataset, config.data, config.partition_seed)
    with torch.device("meta"):
        module = build(config.model, dataset.input_shape, dataset.num_classes)
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    sizes = [len(shard.train) for shard in dealt.shards]
    bits = config.method.traffic(8 * model_bytes, len(dealt.public), dataset.num_classes)
    return {
        "rounds": config.train.rounds,
        "steps": config.train.rounds * steps_a_round(config, sizes),
        "data_mb": dataset.images.nbytes / 1e6,
        "models_mb": (1 if config.method.pooled else len(sizes)) * copies(config) * model_bytes / 1e6,
        "bits_up": bits.up,
        "bits_down": bits.down,
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
