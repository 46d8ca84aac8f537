"""Example sets: indices into one shared array of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.augmentation import augment_images, join_windows
from fedmosaic_cli.engine.execution.transfers import copy_to_device, to_device

if TYPE_CHECKING:
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

    @cached_property
    def host_targets(self) -> Tensor:
        """The labels of a private set on the CPU. They are copied once, because a copy waits for the device."""
        return self.targets.cpu()

    def subset(self, indices: Tensor) -> Examples:
        """The examples at these positions of the set."""
        at_images = to_device(indices, self.indices.device)
        labels = None
        if self.labels is not None:
            at_labels = at_images if self.labels.device == at_images.device else to_device(indices, self.labels.device)
            labels = self.labels[at_labels]
        return replace(self, indices=self.indices[at_images], labels=labels)

    def inputs(self, indices: Tensor | slice) -> Tensor:
        """Network inputs for some examples of the set: [batch, channels, height, width] in [-1, 1]."""
        return self.normalised_images(self.indices[indices])

    def batch_inputs(self, batch: Batch, following: Batch | None = None) -> Tensor:
        """Network inputs for a training batch, with its augmentation, or for two batches in one tensor."""
        image_indices, windows, pixels = batch.image_indices, batch.windows, batch.pixels
        if following is not None:
            image_indices = torch.cat([image_indices, following.image_indices])
            windows = join_windows(windows, following.windows)
            pixels = batch.joint_pixels
        return self.normalised_images(image_indices, windows) if pixels is None else self._normalised(pixels, windows)

    def normalised_images(self, image_indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """Network inputs for positions in `images`: [..., channels, height, width] in [-1, 1], in channels-last memory
        order, which is the fastest for convolutions and pools. `windows` [...] are the flips and crops of training
        batches; see `engine.augmentation`."""
        return self._normalised(self.to_network_device(self.gather_pixels(image_indices)), windows)

    def gather_pixels(self, image_indices: Tensor) -> Tensor:
        """Return the images at positions in `images` [..., height, width, channels], where `images` are."""
        # index_select is several times as fast as indexing, which checks every index twice.
        pixels = self.images.index_select(0, image_indices.flatten()).view(*image_indices.shape, *self.images.shape[1:])
        is_copied = self.device.type == "cuda" and self.images.device.type == "cpu"
        # A copy from pinned memory overlaps with computation; torch keeps the memory until the copy is complete.
        return pixels.pin_memory() if is_copied else pixels

    def to_network_device(self, pixels: Tensor) -> Tensor:
        """Return the images on the device of the network."""
        return pixels if pixels.device == self.device else copy_to_device(pixels, self.device)

    def _normalised(self, pixels: Tensor, windows: Tensor | None) -> Tensor:
        if windows is not None:
            pixels = augment_images(pixels, windows)
        return pixels.movedim(-1, -3).to(self.dtype).div_(127.5).sub_(1.0)
