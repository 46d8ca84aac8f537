"""Data augmentation: random flips and crops of the images of training batches.

A training draws the flips and crops of all its batches at once, on the CPU, from a named random stream. They are
columns beside the positions of the examples in a batch, so that they are copied to the device together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedmosaic_cli.engine.train_settings import AugmentMode

MAX_PADDING = 4
"""The padding of images with sides of at least 32 pixels."""


def crop_padding(size: int) -> int:
    """Return the number of black pixels on both sides of an image with this height or width."""
    return max(1, min(MAX_PADDING, round(size / 8)))


def draw_augmentation(mode: AugmentMode, num_images: int, image_shape: tuple[int, int], generator: Generator) -> Tensor:
    """Draw flips and crops.

    The draws of an image do not depend on the number of images after it, nor its crop on whether images are flipped.

    Args:
        mode: The configured augmentation, other than `none`.
        num_images: Number of images.
        image_shape: Their height and width.
        generator: The random stream, on the CPU.

    Returns:
        For each image whether it is flipped, and the first row and column of its crop in the padded image:
        int64 [images, 3].
    """
    padding = torch.tensor([crop_padding(size) for size in image_shape])
    bounds = torch.cat([torch.tensor([2]), 2 * padding + 1])
    draws = (torch.rand(num_images, 3, dtype=torch.float64, generator=generator) * bounds).long()
    if "flip" not in mode:
        draws[:, 0] = 0
    if "crop" not in mode:
        draws[:, 1:] = padding
    return draws


def add_augmentation(batches: list[Tensor], draws: Tensor) -> list[Tensor]:
    """Add the columns of `draws` to batches of positions: [batch] becomes [batch, 4]."""
    sizes = [len(batch) for batch in batches]
    return list(torch.cat([torch.cat(batches)[:, None], draws], dim=1).split(sizes))


def is_augmented(batch: Tensor) -> bool:
    """Return whether a batch has the columns of `add_augmentation`."""
    return batch.dim() == 2


def join_draws(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Concatenate the draws of two batches; None without augmentation."""
    return None if first is None or second is None else torch.cat([first, second])


def augment_images(pixels: Tensor, draws: Tensor) -> Tensor:
    """Flip and then crop images, on their device.

    Args:
        pixels: Images [..., height, width, channels].
        draws: Flips and crops [..., 3]; see `draw_augmentation`.

    Returns:
        Images of the same shape. Pixels outside the original image are 0, which is black.
    """
    height, width, channels = pixels.shape[-3:]
    images, (flips, rows, columns) = pixels.flatten(0, -4), draws.flatten(0, -2).unbind(dim=1)
    vertical, horizontal = crop_padding(height), crop_padding(width)
    # Both versions of every image: selecting one of them is several times as fast as torch.where on bytes.
    both = pad(torch.cat([images, images.flip(2)]), (0, 0, horizontal, horizontal, vertical, vertical))
    padded_height, padded_width = both.shape[1:3]
    numbers = torch.arange(len(images), device=pixels.device) + flips * len(images)
    starts = (numbers * padded_height + rows) * padded_width + columns
    # A view of all windows of the size of an image, one for each pixel at which such a window can start.
    num_windows = len(both) * padded_height * padded_width - (height - 1) * padded_width - (width - 1)
    windows = both.as_strided((num_windows, height, width * channels), (channels, padded_width * channels, 1))
    return windows.index_select(0, starts).view(pixels.shape)
