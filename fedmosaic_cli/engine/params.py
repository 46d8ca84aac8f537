"""Arithmetic on model parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

    from fedmosaic_cli.engine.method import Parameters, State

# The product of a few layers with larger weights exceeds single precision.
MAX_ABS_WEIGHT = 1e8


def clone(parameters: Parameters) -> Parameters:
    return {name: tensor.detach().clone() for name, tensor in parameters.items()}


def to_device(state: State, device: torch.device) -> State:
    """The state with all tensors on `device`. Tensors that are already there are shared."""
    moved: State = {}
    for name, value in state.items():
        if isinstance(value, dict):
            moved[name] = to_device(value, device)
        else:
            moved[name] = value.to(device) if hasattr(value, "to") else value
    return moved


def models_to_device(state: State, device: torch.device) -> State:
    """The state with all models and optimizer states on `device`.

    Bare tensors hold predictions on the public set. They stay on the CPU (see `Client.predict_public`).
    """
    return {name: to_device(value, device) if isinstance(value, dict) else value for name, value in state.items()}


def is_finite(parameters: Parameters) -> bool:
    """True if all values are finite and below MAX_ABS_WEIGHT."""
    import torch

    # One reduction for the whole model, so that the host waits for the device once.
    tensors = [tensor for tensor in parameters.values() if tensor.is_floating_point() and tensor.numel()]
    return not tensors or bool((torch.stack(torch._foreach_norm(tensors, torch.inf)) < MAX_ABS_WEIGHT).all())


def weighted_mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """sum_i w_i theta_i / sum_i w_i, summed in the given order; the maximum for integer buffers.

    A single model is copied bit for bit.
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
    """first_weight * first + (1 - first_weight) * second for the entries `names`, or for all.

    Other entries are shared with `first`. Integer buffers are copied from `first`.
    """
    mixed: Parameters = {}
    for name, tensor in first.items():
        if names is not None and name not in names:
            mixed[name] = tensor
        elif tensor.is_floating_point():
            mixed[name] = (tensor * first_weight).add_(second[name], alpha=1 - first_weight)
        else:
            mixed[name] = tensor.clone()
    return mixed


def add_scaled(parameters: Parameters, direction: Parameters, scale: float) -> Parameters:
    """parameters + scale * direction. Entries without a direction are shared, not copied."""
    return {
        name: tensor.add(direction[name], alpha=scale) if name in direction else tensor
        for name, tensor in parameters.items()
    }


def select(parameters: Parameters, names: Collection[str]) -> Parameters:
    return {name: tensor for name, tensor in parameters.items() if name in names}


def exclude(parameters: Parameters, names: Collection[str]) -> Parameters:
    return {name: tensor for name, tensor in parameters.items() if name not in names}


def dot(first: Parameters, second: Parameters) -> float:
    """The inner product over the entries of `second`."""
    return float(sum((first[name] * tensor).sum() for name, tensor in second.items()))
