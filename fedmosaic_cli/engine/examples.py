"""Examples as the trainer and the evaluator see them: one shared array of bytes, and who holds which part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """`images` is everybody's uint8 [all, height, width, channels]; `index` says which of them these are.

    `labels` go with `index`; the public set has none.
    """

    images: Tensor
    index: Tensor
    labels: Tensor | None
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.index)

    @property
    def targets(self) -> Tensor:
        """The labels of a private set, which has them by construction."""
        if self.labels is None:
            raise ValueError("the public set has no labels")
        return self.labels

    def inputs(self, positions: Tensor | slice) -> Tensor:
        """[batch, channels, height, width], scaled to [-1, 1] as in the paper."""
        pixels = self.images[self.index[positions]].permute(0, 3, 1, 2)
        return pixels.to(self.dtype).div_(127.5).sub_(1.0)
