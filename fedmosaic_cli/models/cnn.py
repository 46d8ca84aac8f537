"""Small convolutional networks for images of about 32x32.

The layers of `cnn` and `cnn-bn` are those of FedAvgCNN in PFLlib: two 5x5 convolutions of 32 and 64 channels without
padding, each followed by a 2x2 pool, then 512 hidden units. On images below 16x16 the convolutions are 3x3 and padded.

`cnn3-bn` has three padded 3x3 convolutions of 16, 32 and 64 channels and no hidden units: with a twentieth of the
weights, it is for clients with few examples.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

from fedmosaic_cli.models.classifier import Classifier, require_image_size

if TYPE_CHECKING:
    from fedmosaic_cli.models.model_settings import ModelSettings

MIN_SIDE_FOR_5X5 = 16


def convolution_block(convolution: nn.Conv2d, has_batch_norm: bool) -> list[nn.Module]:
    """Return a convolution with batch normalisation, if requested, and a 2x2 pool."""
    norm = [nn.BatchNorm2d(convolution.out_channels)] if has_batch_norm else []
    return [convolution, *norm, nn.ReLU(), nn.MaxPool2d(2)]


class CNN(Classifier):
    """Two convolutions and a hidden layer."""

    has_batch_norm = False

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        require_image_size(settings.name, input_shape, min_side=4)
        channels, height, width = input_shape
        kernel, padding = (5, 0) if min(height, width) >= MIN_SIDE_FOR_5X5 else (3, 1)
        first, second, hidden = (settings.scaled_width(size) for size in (32, 64, 512))

        def pooled(side: int) -> int:
            """Side of an image after a convolution and a pool."""
            return (side + 2 * padding - kernel + 1) // 2

        flat = second * pooled(pooled(height)) * pooled(pooled(width))
        body = nn.Sequential(
            *self._block(nn.Conv2d(channels, first, kernel, padding=padding)),
            *self._block(nn.Conv2d(first, second, kernel, padding=padding)),
            nn.Flatten(),
            nn.Linear(flat, hidden),
            nn.ReLU(),
        )
        super().__init__(body, hidden, num_classes)

    def _block(self, convolution: nn.Conv2d) -> list[nn.Module]:
        return convolution_block(convolution, self.has_batch_norm)


class CNNBN(CNN):
    """CNN with batch normalisation after each convolution."""

    has_batch_norm = True


class CNN3BN(Classifier):
    """Three convolutions with batch normalisation."""

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        require_image_size(settings.name, input_shape, min_side=8)
        channels, height, width = input_shape
        sizes = [channels, *(settings.scaled_width(size) for size in (16, 32, 64))]
        blocks = [
            layer
            for before, after in pairwise(sizes)
            for layer in convolution_block(nn.Conv2d(before, after, 3, padding=1), has_batch_norm=True)
        ]
        super().__init__(nn.Sequential(*blocks, nn.Flatten()), sizes[-1] * (height // 8) * (width // 8), num_classes)
