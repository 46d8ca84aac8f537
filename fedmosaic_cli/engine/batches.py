"""Which examples make up each step of a round: drawn all at once from a named stream, so no step waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor


def epochs(count: int, batch_size: int, passes: int, generator: Generator) -> list[Tensor]:
    """`passes` times through `count` examples in new orders. The last batch of a pass may be short; none is dropped."""
    return [batch for _ in range(passes) for batch in torch.randperm(count, generator=generator).split(batch_size)]


def steps(count: int, batch_size: int, number: int, generator: Generator) -> list[Tensor]:
    """`number` full batches, cycling through `count` examples in new orders."""
    batch_size = min(batch_size, count)
    passes = -(-number * batch_size // count)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(passes)])
    return list(order[: number * batch_size].split(batch_size))


def on_device(batches: list[Tensor], device: torch.device) -> list[Tensor]:
    """The same batches on `device`, moved in one piece."""
    if device.type == "cpu":
        return batches
    moved = torch.cat(batches).to(device, non_blocking=True)
    return list(moved.split([len(batch) for batch in batches]))
