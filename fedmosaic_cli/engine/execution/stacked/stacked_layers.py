"""One network with the weights of several clients: every layer computes for all clients in one call.

Weights are stacked: [clients, ...]. Images are folded, [batch, clients * channels, height, width], so that a grouped
convolution applies each client's filters and batch normalisation uses each client's statistics. Vectors are
[clients, batch, features].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.models.resnet import ResidualBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters


SUPPORTED_OPTIONS = {
    **{"padding_mode": "zeros", "affine": True, "track_running_stats": True},
    **{"ceil_mode": False, "return_indices": False, "start_dim": 1, "end_dim": -1},
}


RESIDUAL_BRANCHES = ("residual", "shortcut")


@dataclass(frozen=True)
class ForwardContext:
    """Options of a forward pass.

    `mask` [clients, batch] is False for padding, which batch statistics leave out; None without padding. Layers whose
    path is in `frozen_layers` are in evaluation mode.
    """

    num_clients: int
    training: bool = False
    mask: Tensor | None = None
    frozen_layers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StackedLayer:
    """A layer of the template with the stacked weights of all clients."""

    module: Any
    weights: dict[str, Tensor]


class StackedNetwork:
    """Runs the layers of a classifier on stacked weights."""

    def __init__(self, template: Classifier) -> None:
        self._body, self._head = template.body, template.head
        self._entries = {path: list(layer.state_dict()) for path, layer in single_layers(template.body, "body")}

    def features(self, weights: Parameters, images: Tensor, context: ForwardContext) -> Tensor:
        """Inputs of the heads [clients, batch, width] for images [batch, clients, channels, height, width]."""
        outputs = images.flatten(1, 2)
        if context.num_clients > 1:
            outputs = outputs.contiguous()
        return self._run_sequence(self._body, "body", weights, outputs, context)

    def _run_sequence(
        self, layers: nn.Module, path: str, weights: Parameters, inputs: Tensor, context: ForwardContext
    ) -> Tensor:
        outputs = inputs
        for name, layer in layers._modules.items():
            outputs = self._run_layer(layer, f"{path}.{name}", weights, outputs, context)
        return outputs

    def _run_layer(self, layer: Any, path: str, weights: Parameters, inputs: Tensor, context: ForwardContext) -> Tensor:
        if type(layer) is ResidualBlock:
            residual, shortcut = (
                self._run_sequence(getattr(layer, branch), f"{path}.{branch}", weights, inputs, context)
                for branch in RESIDUAL_BRANCHES
            )
            return functional.relu(residual + shortcut)
        own = {name: weights[f"{path}.{name}"] for name in self._entries[path]}
        layer_context = replace(context, training=False) if path in context.frozen_layers else context
        return STACKED_LAYERS[type(layer)](StackedLayer(layer, own), inputs, layer_context)

    def layers_without(self, trained: Collection[str]) -> frozenset[str]:
        """Return the paths of layers with weights, none of which is trained."""
        return frozenset(
            path
            for path, names in self._entries.items()
            if names and all(f"{path}.{name}" not in trained for name in names)
        )

    def head(self, weights: Parameters, features: Tensor, context: ForwardContext) -> Tensor:
        """Logits [clients, batch, classes]."""
        own = {name: weights[f"head.{name}"] for name in self._head.state_dict()}
        return stacked_linear(StackedLayer(self._head, own), features, context)


def single_layers(layers: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a sequence with their paths; instead of a residual block, those of its branches."""
    for name, layer in layers._modules.items():
        if type(layer) is ResidualBlock:
            for branch in RESIDUAL_BRANCHES:
                yield from single_layers(getattr(layer, branch), f"{path}.{name}.{branch}")
        elif layer is not None:
            yield f"{path}.{name}", layer


def is_stackable(template: Classifier) -> bool:
    """True if a network is `Classifier` with a sequence of supported layers, and all their options are supported."""
    if not computes_head_of_body(template) or type(template.body) is not nn.Sequential:
        return False
    body = [layer for _, layer in single_layers(template.body, "body")]
    layers = [*body, template.head]
    parts = [*layers, *(tensor for _, tensor in template.named_parameters(remove_duplicate=False))]
    # A part that occurs twice has one gradient.
    if len(set(map(id, parts))) < len(parts) or any(
        map(is_changed, (template, *template.body.modules(), template.head))
    ):
        return False
    return type(template.head) is nn.Linear and all(
        type(layer) in STACKED_LAYERS
        and getattr(layer, "momentum", 0.1) is not None
        and all(getattr(layer, name, value) == value for name, value in SUPPORTED_OPTIONS.items())
        for layer in body
    )


def computes_head_of_body(template: Classifier) -> bool:
    """Whether a network computes `head(body(inputs))` with the code of `Classifier`, and trains no other weights."""
    own = type(template)
    if own.features is not Classifier.features or own.forward is not Classifier.forward:
        return False
    trained = [name for name, tensor in template.named_parameters() if tensor.requires_grad]
    return all(name.startswith(("body.", "head.")) for name in trained)


def is_changed(module: nn.Module) -> bool:
    """Whether a module computes something else than its class: by hooks, or by functions of this instance."""
    has_forward_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    has_backward_hooks = bool(module._backward_hooks or module._backward_pre_hooks)
    return has_forward_hooks or has_backward_hooks or not {"features", "forward"}.isdisjoint(vars(module))


def num_multiplications(template: Classifier, image_side: int) -> int:
    """Multiplications of the forward pass of a stackable network for one square image."""
    return template.head.weight.numel() + count_multiplications(template.body, image_side)[0]


def count_multiplications(layers: Any, image_side: int) -> tuple[int, int]:
    """Return the multiplications of a sequence of layers, and the side of the images that it returns."""
    total = 0
    for layer in layers:
        if type(layer) is ResidualBlock:
            counts = [count_multiplications(getattr(layer, branch), image_side) for branch in RESIDUAL_BRANCHES]
            total += sum(count for count, _ in counts)
            image_side = counts[0][1]
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = (as_pair(value)[0] for value in (layer.kernel_size, layer.stride, layer.padding))
            image_side = (image_side + 2 * padding - kernel) // stride + 1
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            image_side = as_pair(layer.output_size)[0]
        if isinstance(layer, nn.Conv2d | nn.Linear):
            total += layer.weight.numel() * (image_side * image_side if isinstance(layer, nn.Conv2d) else 1)
    return total, image_side


def as_pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def unfold_clients(folded: Tensor, num_clients: int) -> Tensor:
    """[batch, clients * channels, ...] as [batch, clients, channels, ...]."""
    return folded.view(folded.shape[0], num_clients, -1, *folded.shape[2:])


def stacked_linear(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    transposed, bias = layer.weights["weight"].transpose(1, 2), layer.weights.get("bias")
    return inputs.bmm(transposed) if bias is None else torch.baddbmm(bias[:, None], inputs, transposed)


def stacked_convolution(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    module, bias = layer.module, layer.weights.get("bias")
    return functional.conv2d(
        inputs,
        layer.weights["weight"].flatten(0, 1),
        None if bias is None else bias.flatten(),
        module.stride,
        module.padding,
        module.dilation,
        module.groups * context.num_clients,
    )


def stacked_elementwise(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    """A layer without weights, which treats all channels equally."""
    outputs: Tensor = layer.module(inputs)
    return outputs


def stacked_flatten(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    return unfold_clients(inputs, context.num_clients).flatten(2).transpose(0, 1)


def stacked_batch_norm_2d(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    if context.training:
        layer.weights["num_batches_tracked"].add_(1)
    if context.training and context.mask is not None:
        return masked_batch_norm(layer, inputs, context.mask)
    weights = {name: tensor.flatten() for name, tensor in layer.weights.items()}
    return functional.batch_norm(
        inputs,
        weights["running_mean"],
        weights["running_var"],
        weights["weight"],
        weights["bias"],
        context.training,
        layer.module.momentum,
        layer.module.eps,
    )


def stacked_batch_norm_1d(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    folded = inputs.transpose(0, 1).flatten(1)[:, :, None, None]
    outputs = stacked_batch_norm_2d(layer, folded, context)
    return unfold_clients(outputs[:, :, 0, 0], context.num_clients).transpose(0, 1)


def stacked_group_norm(layer: StackedLayer, inputs: Tensor, context: ForwardContext) -> Tensor:
    """Each group consists of channels of one client, so the groups of all clients are normalised at once."""
    weight, bias = (layer.weights[name].flatten() for name in ("weight", "bias"))
    return functional.group_norm(inputs, layer.module.num_groups * context.num_clients, weight, bias, layer.module.eps)


def masked_batch_norm(layer: StackedLayer, inputs: Tensor, mask: Tensor) -> Tensor:
    """Batch normalisation with statistics that leave out padding."""
    clients = len(layer.weights["weight"])
    # Statistics are computed in full precision, as in torch's layer.
    images = unfold_clients(inputs.to(layer.weights["running_mean"].dtype), clients)
    counted = mask.T[:, :, None, None, None].to(images.dtype)
    pixels = images.shape[-2] * images.shape[-1]
    count = (mask.sum(dim=1, keepdim=True) * pixels).to(images.dtype)
    mean = (images * counted).sum(dim=(0, 3, 4)) / count
    centred = images - mean[..., None, None]
    variance = (centred.square() * counted).sum(dim=(0, 3, 4)) / count
    with torch.no_grad():
        momentum = layer.module.momentum
        layer.weights["running_mean"].lerp_(mean, momentum)
        layer.weights["running_var"].lerp_(variance * (count / (count - 1)), momentum)
    scale = layer.weights["weight"] * (variance + layer.module.eps).rsqrt()
    normalised: Tensor = centred * scale[..., None, None] + layer.weights["bias"][..., None, None]
    return normalised.flatten(1, 2).to(inputs.dtype)


STACKED_LAYERS: dict[type[nn.Module], Callable[[StackedLayer, Tensor, ForwardContext], Tensor]] = {
    nn.Linear: stacked_linear,
    nn.Conv2d: stacked_convolution,
    nn.BatchNorm1d: stacked_batch_norm_1d,
    nn.BatchNorm2d: stacked_batch_norm_2d,
    nn.GroupNorm: stacked_group_norm,
    nn.ReLU: stacked_elementwise,
    nn.MaxPool2d: stacked_elementwise,
    nn.AdaptiveAvgPool2d: stacked_elementwise,
    nn.Flatten: stacked_flatten,
}
