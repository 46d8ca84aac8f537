"""A multilayer perceptron on flattened pixels."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from torch import nn

from fedmosaic_cli.models.classifier import Classifier

if TYPE_CHECKING:
    from fedmosaic_cli.models.model_settings import ModelSettings


class MLP(Classifier):
    """A linear layer and ReLU per hidden width, then a linear head."""

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        widths = [prod(input_shape), *settings.hidden]
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
        super().__init__(nn.Sequential(nn.Flatten(), *layers), widths[-1], num_classes)
