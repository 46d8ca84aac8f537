"""Residual networks with group or batch normalisation.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016. `resnet8` is the smallest network of the
paper's CIFAR-10 family (three stages of one block with 16, 32 and 64 channels), `resnet18` that of its ImageNet family
(four stages of two blocks with 64 to 512 channels). A shortcut that changes the shape is a 1x1 convolution.

Images with a side of 96 pixels or more get the stem of the ImageNet family (7x7 convolution with stride 2, 3x3 max pool
with stride 2). Smaller ones get that of the CIFAR family (3x3 convolution, no pool), which is common for `resnet18` on
32x32 and 64x64.

Group normalisation does not depend on the other examples of a batch, so clients with different class distributions
disturb each other less (Hsieh et al.: The Non-IID Data Quagmire of Decentralized Machine Learning, ICML 2020). As in
Reddi et al. (Adaptive Federated Optimization, ICLR 2021) every layer has two groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn
from torch.nn.functional import relu

from fedmosaic_cli.models.classifier import Classifier, require_image_size

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.models.model_settings import ModelSettings, NormName

MIN_SIDE = 8
MIN_SIDE_FOR_IMAGENET_STEM = 96
NUM_NORM_GROUPS = 2


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded convolution without bias, initialised for ReLU as in He et al. (ICCV 2015)."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_uniform_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def norm_layer(norm: NormName, channels: int) -> nn.Module:
    """Return the normalisation of a convolution. A network of odd width has one group per layer."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(NUM_NORM_GROUPS if channels % NUM_NORM_GROUPS == 0 else 1, channels)


class ResidualBlock(nn.Module):
    """ReLU of the sum of two 3x3 convolutions and a shortcut. Both branches are sequences of layers."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormName) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(inputs, outputs, 3, stride),
            norm_layer(norm, outputs),
            nn.ReLU(),
            convolution(outputs, outputs, 3),
            norm_layer(norm, outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), norm_layer(norm, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return relu(self.residual(inputs) + self.shortcut(inputs))


class ResNet(Classifier):
    """A stem, stages of residual blocks, and the mean over all positions."""

    stage_widths: ClassVar[tuple[int, ...]]
    blocks_per_stage: ClassVar[int]

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        require_image_size(settings.name, input_shape, MIN_SIDE)
        norm, widths = settings.norm, [settings.scaled_width(width) for width in self.stage_widths]
        has_large_images = min(input_shape[1:]) >= MIN_SIDE_FOR_IMAGENET_STEM
        kernel, stride = (7, 2) if has_large_images else (3, 1)
        layers = [convolution(input_shape[0], widths[0], kernel, stride), norm_layer(norm, widths[0]), nn.ReLU()]
        if has_large_images:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        channels = widths[0]
        for stage, width in enumerate(widths):
            for block in range(self.blocks_per_stage):
                layers.append(ResidualBlock(channels, width, 2 if stage and not block else 1, norm))
                channels = width
        super().__init__(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels, num_classes)


class ResNet8(ResNet):
    """Seven convolutions, without those of shortcuts: 78,042 weights for ten classes of 32x32 colour images."""

    stage_widths = (16, 32, 64)
    blocks_per_stage = 1


class ResNet18(ResNet):
    """17 convolutions, without those of shortcuts: 11,173,962 weights for ten classes of 32x32 colour images."""

    stage_widths = (64, 128, 256, 512)
    blocks_per_stage = 2
