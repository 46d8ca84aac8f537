"""Example sets: indices into one shared array of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.augmentation import augment_images

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.batching import Batch


@dataclass(frozen=True)
class Examples:
    """A set of examples.

    Attributes:
        images: Images of all sets, uint8 [all, height, width, channels]; on the host if the device memory is too small.
        indices: Positions of these examples in `images`; on the same device as `images`.
        labels: Labels in the order of `indices`; None for the public set.
        dtype: Type of the network's inputs.
        device: Device of the network.
    """

    images: Tensor
    indices: Tensor
    labels: Tensor | None
    dtype: torch.dtype
    device: torch.device

    def __len__(self) -> int:
        return self.indices.shape[0]

    @property
    def targets(self) -> Tensor:
        """The labels of a private set."""
        if self.labels is None:
            raise ValueError("the public set has no labels")
        return self.labels

    def subset(self, indices: Tensor) -> Examples:
        """The examples at these positions of the set."""
        labels = None if self.labels is None else self.labels[indices.to(self.labels.device)]
        return replace(self, indices=self.indices[indices.to(self.indices.device)], labels=labels)

    def inputs(self, indices: Tensor | slice) -> Tensor:
        """Network inputs for some examples of the set: [batch, channels, height, width] in [-1, 1]."""
        return self.normalised_images(self.indices[indices])

    def batch_inputs(self, batch: Batch) -> Tensor:
        """Network inputs for a training batch, with its augmentation."""
        return self.normalised_images(batch.image_indices, batch.windows)

    def normalised_images(self, image_indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """Network inputs for positions in `images`: [..., channels, height, width] in [-1, 1], in channels-last memory
        order, which is the fastest for convolutions and pools. `windows` [...] are the flips and crops of training
        batches; see `engine.augmentation`."""
        # index_select is several times as fast as indexing, which checks every index twice.
        pixels = self.images.index_select(0, image_indices.flatten()).view(*image_indices.shape, *self.images.shape[1:])
        if pixels.device != self.device:
            # A copy from pinned memory overlaps with computation; torch keeps the memory until the copy is complete.
            pixels = copy_to_device(pixels.pin_memory() if self.device.type == "cuda" else pixels, self.device)
        if windows is not None:
            pixels = augment_images(pixels, windows)
        return pixels.movedim(-1, -3).to(self.dtype).div_(127.5).sub_(1.0)


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, asynchronously on CUDA only: elsewhere the source may be freed too early."""
    return tensor.to(device, non_blocking=device.type == "cuda")
