"""Convolutions of stacked networks as one batched matrix product (im2col), instead of one grouped convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import unfold

from fedmosaic_cli.engine.execution.stacked.stacked_layers import (
    STACKED_LAYERS,
    ForwardContext,
    StackedLayer,
    as_pair,
    stacked_convolution,
)

if TYPE_CHECKING:
    from torch import Tensor


class MatmulConv2d(nn.Conv2d):
    """A convolution that a stacked network computes as a matrix product. Alone it is an `nn.Conv2d`."""


def use_matrix_products(network: nn.Module) -> None:
    """Make stacked networks with this template compute their convolutions as matrix products."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d:
            layer.__class__ = MatmulConv2d


def stacked_matmul_convolution(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    """Convolve each client's images [batch, clients * channels, height, width] with the client's filters."""
    module, clients, batch = layer.module, context.num_clients, len(inputs)
    if module.groups != 1 or isinstance(module.padding, str):
        return stacked_convolution(layer, inputs, context)
    options = (as_pair(module.padding), as_pair(module.dilation), as_pair(module.kernel_size), as_pair(module.stride))
    padding, dilation, kernel, stride = options
    patches = unfold(inputs, kernel, dilation, padding, stride)
    # [clients, channels * kernel, batch * positions]
    patches = patches.unflatten(1, (clients, -1)).permute(1, 2, 0, 3).flatten(2)
    filters, bias = layer.weights["weight"].flatten(2), layer.weights.get("bias")
    outputs = filters.bmm(patches) if bias is None else torch.baddbmm(bias[:, :, None], filters, patches)
    height, width = (
        (size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis, size in enumerate(inputs.shape[-2:])
    )
    images: Tensor = outputs.unflatten(2, (batch, height, width)).permute(2, 0, 1, 3, 4).flatten(1, 2)
    return images


STACKED_LAYERS[MatmulConv2d] = stacked_matmul_convolution
