"""Which examples make up each step of a round: drawn all at once from a named stream, so no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.examples import copy_to_device

if TYPE_CHECKING:
    from collections.abc import Sized

    from torch import Generator, Tensor

    from fedmosaic_cli.engine.examples import Examples


@dataclass(frozen=True)
class Batch:
    """What a step looks at: `positions` among a set's examples, and their `places` in everybody's array of images."""

    local_indices: Tensor
    image_indices: Tensor

    def __len__(self) -> int:
        return len(self.local_indices)


def epoch_batches(num_examples: int, batch_size: int, num_epochs: int, generator: Generator) -> list[Tensor]:
    """`passes` times through `count` examples in new orders. The last batch of a pass may be short; none is dropped."""
    return [
        batch
        for _ in range(num_epochs)
        for batch in torch.randperm(num_examples, generator=generator).split(batch_size)
    ]


def step_batches(num_examples: int, batch_size: int, num_steps: int, generator: Generator) -> list[Tensor]:
    """`number` full batches, cycling through `count` examples in new orders."""
    batch_size = min(batch_size, num_examples)
    passes = -(-num_steps * batch_size // num_examples)
    order = torch.cat([torch.randperm(num_examples, generator=generator) for _ in range(passes)])
    return list(order[: num_steps * batch_size].split(batch_size))


def resolve_indices(examples: Examples, local_batches: list[Tensor]) -> list[Batch]:
    """A round's batches, each part moved in one piece to where it is needed."""
    if not local_batches:
        return []
    sizes = [len(positions) for positions in local_batches]
    joined = torch.cat(local_batches)
    places = examples.indices[copy_to_device(joined, examples.indices.device)].split(sizes)
    positions = copy_to_device(joined, examples.device).split(sizes)
    return [Batch(*parts) for parts in zip(positions, places, strict=True)]


def has_singleton_batch(private: Sized, public: Sized | None) -> bool:
    """Whether a step has a batch of one example, for which there are no batch statistics."""
    return len(private) == 1 or (public is not None and len(public) == 1)
