"""Which examples make up each step of a round: drawn all at once from a named stream, so no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.examples import on_device

if TYPE_CHECKING:
    from collections.abc import Sized

    from torch import Generator, Tensor

    from fedmosaic_cli.engine.examples import Examples


@dataclass(frozen=True)
class Batch:
    """What a step looks at: `positions` among a set's examples, and their `places` in everybody's array of images."""

    positions: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.positions)


def epochs(count: int, batch_size: int, passes: int, generator: Generator) -> list[Tensor]:
    """`passes` times through `count` examples in new orders. The last batch of a pass may be short; none is dropped."""
    return [batch for _ in range(passes) for batch in torch.randperm(count, generator=generator).split(batch_size)]


def steps(count: int, batch_size: int, number: int, generator: Generator) -> list[Tensor]:
    """`number` full batches, cycling through `count` examples in new orders."""
    batch_size = min(batch_size, count)
    passes = -(-number * batch_size // count)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(passes)])
    return list(order[: number * batch_size].split(batch_size))


def located(examples: Examples, drawn: list[Tensor]) -> list[Batch]:
    """A round's batches, each part moved in one piece to where it is needed."""
    if not drawn:
        return []
    sizes = [len(positions) for positions in drawn]
    joined = torch.cat(drawn)
    places = examples.index[on_device(joined, examples.index.device)].split(sizes)
    positions = on_device(joined, examples.device).split(sizes)
    return [Batch(*parts) for parts in zip(positions, places, strict=True)]


def too_short(private: Sized, public: Sized | None) -> bool:
    """Whether a step has a batch of one example, for which there are no batch statistics."""
    return len(private) == 1 or (public is not None and len(public) == 1)
