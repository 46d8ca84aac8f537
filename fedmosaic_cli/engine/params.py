"""Arithmetic on models: copies and weighted means, in the one place that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.method import Parameters, State


def clone(parameters: Parameters) -> Parameters:
    """The same values in tensors of their own."""
    return {name: tensor.detach().clone() for name, tensor in parameters.items()}


def to_device(state: State, device: torch.device) -> State:
    """The same with all tensors on `device`; those that are there already are shared."""
    return {
        name: to_device(value, device)
        if isinstance(value, dict)
        else value.to(device)
        if hasattr(value, "to")
        else value
        for name, value in state.items()
    }


def models_to_device(state: State, device: torch.device) -> State:
    """The same with all models, and what optimizers remember of them, on `device`.

    A tensor that stands alone was said about the public set, which is done on the CPU (see `Client.predict_public`).
    """
    return {name: to_device(value, device) if isinstance(value, dict) else value for name, value in state.items()}


# A few layers of such weights multiply to more than single precision holds.
MAX_ABS_WEIGHT = 1e8


def is_finite(parameters: Parameters) -> bool:
    """Whether every number of the model is one, and none so large that no loss could be."""
    import torch

    # One answer for the whole model: each would be a wait for the device.
    numbers = [tensor for tensor in parameters.values() if tensor.is_floating_point() and tensor.numel()]
    return not numbers or bool((torch.stack(torch._foreach_norm(numbers, torch.inf)) < MAX_ABS_WEIGHT).all())


def weighted_mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """sum_i w_i theta_i / sum_i w_i, tensor by tensor, in the order given. Of integer buffers the largest counts.

    One model alone comes back bit for bit.
    """
    if len(models) == 1:
        return clone(models[0])
    shares = [weight / sum(weights) for weight in weights]
    mean: Parameters = {}
    for name, first in models[0].items():
        if not first.is_floating_point():
            mean[name] = max((model[name] for model in models), key=int).clone()
            continue
        total = first * shares[0]
        for model, share in zip(models[1:], shares[1:], strict=True):
            total.add_(model[name], alpha=share)
        mean[name] = total
    return mean


def interpolate(
    first: Parameters, second: Parameters, first_weight: float, names: Collection[str] | None = None
) -> Parameters:
    """share * first + (1 - share) * second in the entries `names`, or in all.

    The others are the first model's own, and so, copied, are integer buffers.
    """

    def blend(name: str, tensor: Tensor) -> Tensor:
        if names is not None and name not in names:
            return tensor
        return (
            (tensor * first_weight).add_(second[name], alpha=1 - first_weight)
            if tensor.is_floating_point()
            else tensor.clone()
        )

    return {name: blend(name, tensor) for name, tensor in first.items()}


def add_scaled(parameters: Parameters, direction: Parameters, scale: float) -> Parameters:
    """A model that lies `distance` times `direction` away. What has no direction is shared, not copied."""
    return {
        name: tensor.add(direction[name], alpha=scale) if name in direction else tensor
        for name, tensor in parameters.items()
    }


def select(parameters: Parameters, names: Collection[str]) -> Parameters:
    """These entries of a model."""
    return {name: tensor for name, tensor in parameters.items() if name in names}


def exclude(parameters: Parameters, names: Collection[str]) -> Parameters:
    """A model but for these entries."""
    return {name: tensor for name, tensor in parameters.items() if name not in names}


def dot(first: Parameters, second: Parameters) -> float:
    """The inner product over the entries of `second`."""
    return float(sum((first[name] * tensor).sum() for name, tensor in second.items()))
