"""The batches of a round, drawn at once from a named random stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.augmentation import has_windows
from fedmosaic_cli.engine.execution.transfers import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from torch import Generator, Tensor

    from fedmosaic_cli.engine.examples import Examples


@dataclass(frozen=True)
class Batch:
    """A batch of an example set.

    Attributes:
        local_indices: Positions in the example set.
        image_indices: Positions in the shared array of images.
        windows: Flips and crops; None without augmentation.
        pixels: The images on the device, if they are there already.
        joint_pixels: The same, followed by those of the other batch of the step.
    """

    local_indices: Tensor
    image_indices: Tensor
    windows: Tensor | None = None
    pixels: Tensor | None = None
    joint_pixels: Tensor | None = None

    def __len__(self) -> int:
        return num_rows(self.local_indices)


def epoch_batches(num_examples: int, batch_size: int, num_epochs: int, generator: Generator) -> list[Tensor]:
    """The batches of some epochs, each in a new order. The last batch of an epoch may be smaller."""
    return [
        batch
        for _ in range(num_epochs)
        for batch in torch.randperm(num_examples, generator=generator).split(batch_size)
    ]


def step_batches(num_examples: int, batch_size: int, num_steps: int, generator: Generator) -> list[Tensor]:
    """A fixed number of full batches that cycle through all examples in new orders."""
    if not num_steps:
        return []
    batch_size = min(batch_size, num_examples)
    num_epochs = -(-num_steps * batch_size // num_examples)
    order = torch.cat([torch.randperm(num_examples, generator=generator) for _ in range(num_epochs)])
    return list(order[: num_steps * batch_size].split(batch_size))


def resolve_indices(examples: Examples, local_batches: list[Tensor]) -> list[Batch]:
    """Add image indices to the batches of a round and copy them to the devices in one piece."""
    if not local_batches:
        return []
    sizes = list(map(num_rows, local_batches))
    joined = torch.cat(local_batches)
    on_device = to_device(joined, examples.device)
    at_images = on_device if examples.indices.device == on_device.device else joined  # images may be on the host
    windows: Sequence[Tensor | None] = [None] * len(sizes)
    if has_windows(joined):
        at_images, on_device, windows = at_images[:, 0], on_device[:, 0], on_device[:, 1].split(sizes)
    image_indices = examples.indices[at_images].split(sizes)
    return [Batch(*parts) for parts in zip(on_device.split(sizes), image_indices, windows, strict=True)]


def num_rows(tensor: Tensor) -> int:
    """The length of a tensor. It is several times as fast as `len`, which torch checks in Python."""
    return tensor.shape[0]


def has_singleton_batch(private: Sized, public: Sized | None) -> bool:
    """True if a batch of the step has one example, for which batch statistics are undefined."""
    return len(private) == 1 or (public is not None and len(public) == 1)
