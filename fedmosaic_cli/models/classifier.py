"""Base class of all architectures: a body that maps images to features, and a linear head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor


class Classifier(nn.Module):
    """Logits are head(body(inputs))."""

    def __init__(self, body: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(feature_dim, num_classes)

    def features(self, inputs: Tensor) -> Tensor:
        """Inputs of the head [batch, width]."""
        features: Tensor = self.body(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


def require_image_size(name: str, input_shape: tuple[int, int, int], min_side: int) -> None:
    """Raise RequestError if images are too small for an architecture."""
    _, height, width = input_shape
    if min(height, width) < min_side:
        raise RequestError(
            f"{name} needs images of at least {min_side}x{min_side}, these are {width}x{height} (model.name): use mlp"
        )
