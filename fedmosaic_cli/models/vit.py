"""Vision transformers of torchvision: the base size, and a tiny one for CPUs.

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

RGB_CHANNELS = 3
MIN_CHANNELS_PER_HEAD = 4
MAX_PATCHES = 65_536


class ViT(Classifier):
    """ViT-B: 12 layers, 12 heads, 768 wide, patches of 16x16."""

    num_layers, num_heads, hidden_dim, patch_size = 12, 12, 768, 16

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int) -> None:
        from torchvision.models.vision_transformer import VisionTransformer

        _, height, width = input_shape
        patch = settings.patch or self.patch_size
        if height != width or height % patch:
            raise RequestError(
                f"images of {width}x{height} cannot be cut into {patch}x{patch} patches (model.patch): choose another"
            )
        if (height // patch) ** 2 > MAX_PATCHES:  # the cost of attention is quadratic in this number
            raise RequestError(
                f"images of {width}x{height} have more than {MAX_PATCHES} patches of {patch}x{patch} (model.patch): "
                "choose larger ones"
            )
        channels = self.num_heads * max(MIN_CHANNELS_PER_HEAD, round(settings.width * self.hidden_dim / self.num_heads))
        transformer = VisionTransformer(
            image_size=height,
            patch_size=patch,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            hidden_dim=channels,
            mlp_dim=4 * channels,
        )
        transformer.heads = nn.Identity()
        super().__init__(transformer, channels, num_classes)

    def features(self, inputs: Tensor) -> Tensor:
        # torchvision's transformer expects three channels: repeat the channel of a grey image.
        return super().features(inputs.expand(-1, RGB_CHANNELS, -1, -1))


class TinyViT(ViT):
    """4 layers, 4 heads, 64 wide, patches of 4x4."""

    num_layers, num_heads, hidden_dim, patch_size = 4, 4, 64, 4
