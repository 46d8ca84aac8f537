"""AlexNet with batch normalisation, as in FedBN, for images of about 256x256.

Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, 2012.
Batch normalisation replaces dropout; without it the network hardly trains from scratch with Adam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fedmosaic_cli.models.classifier import Classifier, require_image_size

if TYPE_CHECKING:
    from fedmosaic_cli.models.model_settings import ModelSettings

# Channels, kernel, stride, padding, and whether a max pool follows.
CONVOLUTIONS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)
POOL_GRID_SIZE = 6
HIDDEN_WIDTH = 4096


class AlexNetBN(Classifier):
    """Five convolutions and two hidden layers."""

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        require_image_size(settings.name, input_shape, min_side=64)
        layers: list[nn.Module] = []
        channels = input_shape[0]
        for size, kernel, stride, padding, pool in CONVOLUTIONS:
            outputs = settings.scaled_width(size)
            layers += [nn.Conv2d(channels, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(3, 2)] if pool else []
            channels = outputs
        layers += [nn.AdaptiveAvgPool2d(POOL_GRID_SIZE), nn.Flatten()]
        features, hidden = channels * POOL_GRID_SIZE * POOL_GRID_SIZE, settings.scaled_width(HIDDEN_WIDTH)
        for inputs in (features, hidden):
            layers += [nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), hidden, num_classes)
