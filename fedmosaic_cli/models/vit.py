"""Vision transformers, from torchvision: the base size, and a tiny one that a CPU can train.

Dosovitskiy et al.: An Image is Worth 16x16 Words, ICLR 2021. From random weights, without dropout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.classifier import Classifier

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.models.model_settings import ModelSettings

COLOURS = 3
CHANNELS_PER_HEAD = 4
MOST_PATCHES = 65_536


class ViT(Classifier):
    """ViT-B: 12 layers, 12 heads, 768 wide, patches of 16x16."""

    layers, heads, channels, patch = 12, 12, 768, 16

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        from torchvision.models.vision_transformer import VisionTransformer

        _, height, width = input_shape
        patch = settings.patch or self.patch
        if height != width or height % patch:
            raise RequestError(
                f"images of {width}x{height} cannot be cut into {patch}x{patch} patches (model.patch): choose another"
            )
        if (height // patch) ** 2 > MOST_PATCHES:  # attention takes the square of their number
            raise RequestError(
                f"images of {width}x{height} have more than {MOST_PATCHES} patches of {patch}x{patch} (model.patch): "
                "choose larger ones"
            )
        channels = self.heads * max(CHANNELS_PER_HEAD, round(settings.width * self.channels / self.heads))
        transformer = VisionTransformer(
            image_size=height,
            patch_size=patch,
            num_layers=self.layers,
            num_heads=self.heads,
            hidden_dim=channels,
            mlp_dim=4 * channels,
        )
        transformer.heads = nn.Identity()
        super().__init__(transformer, channels, num_classes)

    def features(self, inputs: Tensor) -> Tensor:
        # torchvision's transformer sees colours; a grey image is shown to it in three equal ones.
        return super().features(inputs.expand(-1, COLOURS, -1, -1))


class TinyViT(ViT):
    """4 layers, 4 heads, 64 wide, patches of 4x4."""

    layers, heads, channels, patch = 4, 4, 64, 4
