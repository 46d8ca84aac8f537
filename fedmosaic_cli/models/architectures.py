"""The table of architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.models.mlp import MLP

if TYPE_CHECKING:
    from torch import nn

    from fedmosaic_cli.models.settings import ModelSettings

ARCHITECTURES = {"mlp": MLP}


def build(settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A new network for inputs of [channels, height, width]."""
    return ARCHITECTURES[settings.name](settings, input_shape, num_classes)
