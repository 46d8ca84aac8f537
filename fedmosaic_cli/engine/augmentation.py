"""Data augmentation: random flips and crops of the images of training batches.

A flip and a crop together are one number: the window of the image that the network sees. A training draws the windows
of all its batches at once, on the CPU, from a named random stream. They are a column beside the positions of the
examples in a batch, so that both are copied to the device together.
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


def padded_size(size: int) -> int:
    """Return the height or width of a padded image."""
    return size + 2 * crop_padding(size)


def draw_windows(mode: AugmentMode, num_images: int, image_shape: tuple[int, int], generator: Generator) -> Tensor:
    """Draw flips and crops.

    Those of an image do not depend on the number of images after it, nor its crop on whether images are flipped.

    Args:
        mode: The configured augmentation, other than `none`.
        num_images: Number of images.
        image_shape: Their height and width.
        generator: The random stream, on the CPU.

    Returns:
        A window per image, int64 [images]: (flipped * padded height + row) * padded width + column, where row and
        column are those of the padded image at which the window starts, and flipped is 0 or 1.
    """
    height, width = image_shape
    padding = torch.tensor([crop_padding(height), crop_padding(width)])
    bounds = torch.tensor([2, *(2 * padding + 1)])
    draws = (torch.rand(num_images, 3, dtype=torch.float64, generator=generator) * bounds).long()
    if "flip" not in mode:
        draws[:, 0] = 0
    if "crop" not in mode:
        draws[:, 1:] = padding
    flipped, row, column = draws.unbind(dim=1)
    return (flipped * padded_size(height) + row) * padded_size(width) + column


def add_windows(batches: list[Tensor], windows: Tensor) -> list[Tensor]:
    """Add a column of windows to batches of positions: [batch] becomes [batch, 2]."""
    sizes = [len(batch) for batch in batches]
    return list(torch.stack([torch.cat(batches), windows], dim=1).split(sizes))


def has_windows(batch: Tensor) -> bool:
    """Return whether a batch has the column of `add_windows`."""
    return batch.dim() == 2


def join_windows(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Concatenate the windows of two batches; None without augmentation."""
    return None if first is None or second is None else torch.cat([first, second])


def augment_images(pixels: Tensor, windows: Tensor) -> Tensor:
    """Flip and then crop images, on their device.

    Args:
        pixels: Images [..., height, width, channels].
        windows: A window per image [...]; see `draw_windows`.

    Returns:
        Images of the same shape. Pixels outside the original image are 0, which is black.
    """
    height, width, channels = pixels.shape[-3:]
    rows, columns = crop_padding(height), crop_padding(width)
    images = pixels.flatten(0, -4)
    # Both versions of every image: selecting one of them is several times as fast as torch.where on bytes.
    both = pad(torch.stack([images, images.flip(2)], dim=1), (0, 0, columns, columns, rows, rows))
    num_pixels, row_length = both.shape[1:4].numel(), both.shape[3]
    starts = torch.arange(0, len(images) * num_pixels, num_pixels, device=pixels.device) + windows.flatten()
    # A view of all windows of the size of an image, one for each pixel at which such a window can start.
    num_windows = len(images) * num_pixels - (height - 1) * row_length - (width - 1)
    views = both.as_strided((num_windows, height, width * channels), (channels, row_length * channels, 1))
    return views.index_select(0, starts).view(pixels.shape)
