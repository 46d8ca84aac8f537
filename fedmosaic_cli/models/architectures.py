"""Registry of network architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.models.alexnet import AlexNetBN
from fedmosaic_cli.models.cnn import CNN, CNNBN
from fedmosaic_cli.models.mlp import MLP
from fedmosaic_cli.models.vit import TinyViT, ViT

if TYPE_CHECKING:
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings

ARCHITECTURES = {"mlp": MLP, "cnn": CNN, "cnn-bn": CNNBN, "alexnet-bn": AlexNetBN, "vit": ViT, "vit-tiny": TinyViT}


def build_network(settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """Build a network for inputs of shape [channels, height, width].

    Raises:
        RequestError: The architecture does not support this image size.
    """
    return ARCHITECTURES[settings.name](settings, input_shape, num_classes)
