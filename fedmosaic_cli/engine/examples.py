"""Examples as the trainer and the evaluator see them: one shared array of bytes, and who holds which part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """`images` is everybody's uint8 [all, height, width, channels]; `index` says which of them these are.

    `labels` go with `index`; the public set has none. Networks see the images on `device`. The images, and `index` with
    them, may lie elsewhere: in the memory of the host, where the device's is too small.
    """

    images: Tensor
    indices: Tensor
    labels: Tensor | None
    dtype: torch.dtype
    device: torch.device

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def targets(self) -> Tensor:
        """The labels of a private set, which has them by construction."""
        if self.labels is None:
            raise ValueError("the public set has no labels")
        return self.labels

    def subset(self, indices: Tensor) -> Examples:
        """Some of these examples."""
        labels = None if self.labels is None else self.labels[indices.to(self.labels.device)]
        return replace(self, indices=self.indices[indices.to(self.indices.device)], labels=labels)

    def inputs(self, indices: Tensor | slice) -> Tensor:
        """[batch, channels, height, width], scaled to [-1, 1] as in the paper."""
        return self.normalised_images(self.indices[indices])

    def normalised_images(self, image_indices: Tensor) -> Tensor:
        """The images at `places` of the shared array, as networks see them: [..., channels, height, width].

        In memory the channels of a pixel stay together, which is how convolutions and pools are fastest.
        """
        # Several times as fast as indexing, which looks at every index twice.
        pixels = self.images.index_select(0, image_indices.flatten()).view(*image_indices.shape, *self.images.shape[1:])
        if pixels.device != self.device:
            # From pinned memory the copy runs beside the computation; torch keeps the memory until it has arrived.
            pixels = copy_to_device(pixels.pin_memory() if self.device.type == "cuda" else pixels, self.device)
        return pixels.movedim(-1, -3).to(self.dtype).div_(127.5).sub_(1.0)


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`. Only CUDA may be left alone with a copy whose source goes away."""
    return tensor.to(device, non_blocking=device.type == "cuda")
