"""The network of a run whose configuration names no model. It depends on the size of the images only.

| shorter side | model |
|---|---|
| up to 15 | `mlp` with 64 hidden units |
| 16 to 95 | `cnn` |
| from 96 on | `resnet8`, because the hidden layer of `cnn` would have tens of millions of weights |

docs/data.md compares them. The number of examples and of colour channels does not change the order.
"""

from __future__ import annotations

from fedmosaic_cli.models.model_settings import ModelSettings

MIN_SIDE_FOR_CNN = 16
MIN_SIDE_FOR_RESNET8 = 96
# The default of older versions, whatever the images.
FIRST_DEFAULT_MODEL = ModelSettings(name="mlp")


def default_model(image_shape: tuple[int, int, int]) -> ModelSettings:
    """Return the default network for images of shape [channels, height, width]."""
    side = min(image_shape[1:])
    if side < MIN_SIDE_FOR_CNN:
        return FIRST_DEFAULT_MODEL
    return ModelSettings(name="cnn" if side < MIN_SIDE_FOR_RESNET8 else "resnet8")
