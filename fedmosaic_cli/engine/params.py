"""Arithmetic on model parameters."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.execution.transfers import read_scalars, read_values

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters, PerClientScalar, State

# The product of a few layers with larger weights exceeds single precision.
MAX_ABS_WEIGHT = 1e8


def clone(parameters: Parameters) -> Parameters:
    """A copy of a model."""
    return copy_tensors({name: tensor.detach() for name, tensor in parameters.items()})


def copy_tensors(tensors: Parameters) -> Parameters:
    """Copies of tensors, by one kernel if all are on one device and of one type."""
    import torch

    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    if tensors:
        torch._foreach_copy_(list(copies.values()), list(tensors.values()))
    return copies


def copy_state(state: State) -> State:
    """A copy of a state. Of a tensor that is a row of a stack, only the row is copied."""
    copied: State = {}
    for name, value in state.items():
        if isinstance(value, dict):
            copied[name] = copy_state(value)
        else:
            copied[name] = value.detach().clone() if hasattr(value, "detach") else deepcopy(value)
    return copied


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


def is_bounded(state: State) -> bool:
    """Return whether all numbers in a model, a message or a state are finite, and those of tensors bounded."""
    import torch

    values = leaves(state)
    if not all(math.isfinite(value) for value in values if isinstance(value, float)):
        return False
    # One reduction per device, so that the host waits once for each. A mixture has its weights on the CPU.
    tensors: dict[torch.device, list[torch.Tensor]] = {}
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            tensors.setdefault(value.device, []).append(value)
    norms = [torch.stack(torch._foreach_norm(group, torch.inf)) for group in tensors.values()]
    return all(norm < MAX_ABS_WEIGHT for device_norms in norms for norm in read_values(device_norms))


def leaves(state: State) -> list[Any]:
    """Return the values of nested dictionaries."""
    return [v for value in state.values() for v in (leaves(value) if isinstance(value, dict) else [value])]


def weighted_mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """sum_i w_i theta_i / sum_i w_i, summed in the given order; the elementwise maximum for integer buffers.

    A single model is copied bit for bit.
    """
    import torch

    if len(models) == 1:
        return clone(models[0])
    shares = [weight / sum(weights) for weight in weights]
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    totals: Sequence[Tensor] = ()
    if names:
        totals = torch._foreach_mul([models[0][name] for name in names], shares[0])
        for model, share in zip(models[1:], shares[1:], strict=True):
            torch._foreach_add_(totals, [model[name] for name in names], alpha=share)
    means = dict(zip(names, totals, strict=True))
    return {
        name: means[name] if name in means else torch.stack([model[name] for model in models]).amax(dim=0)
        for name in models[0]
    }


def interpolate(
    first: Parameters, second: Parameters, first_weight: PerClientScalar, names: Collection[str] | None = None
) -> Parameters:
    """first_weight * first + (1 - first_weight) * second for the entries `names`, or for all.

    Other entries are shared with `first`. Integer buffers are copied from `first`.
    """
    mixed: Parameters = {}
    for name, tensor in first.items():
        if names is not None and name not in names:
            mixed[name] = tensor
        elif tensor.is_floating_point():
            mixed[name] = interpolate_tensors(tensor, second[name], first_weight)
        else:
            mixed[name] = tensor.clone()
    return mixed


def interpolate_tensors(first: Tensor, second: Tensor, first_weight: PerClientScalar) -> Tensor:
    """first_weight * first + (1 - first_weight) * second. The second product is not rounded before the sum."""
    if isinstance(first_weight, int | float):
        return (first * first_weight).add_(second, alpha=1 - first_weight)
    mixed: Tensor = first * per_client(first_weight, first)
    return mixed.addcmul_(second, per_client(1 - first_weight, first))


def per_client(number: PerClientScalar, tensor: Tensor) -> PerClientScalar:
    """The factor of a tensor or, with a number per client, of stacked tensors [clients, ...]."""
    return number if isinstance(number, int | float) else number.to(tensor).view(-1, *[1] * (tensor.dim() - 1))


def clamp(number: PerClientScalar, lowest: float, highest: float) -> PerClientScalar:
    """The number, or that of each client, limited to a range."""
    return min(max(number, lowest), highest) if isinstance(number, int | float) else number.clamp(lowest, highest)


def add_scaled(parameters: Parameters, direction: Parameters, scale: float) -> Parameters:
    """parameters + scale * direction. Integer buffers and entries without a direction are shared, not copied."""
    return {
        name: tensor.add(direction[name], alpha=scale) if name in direction and tensor.is_floating_point() else tensor
        for name, tensor in parameters.items()
    }


def scaled(parameters: Parameters, factor: PerClientScalar) -> Parameters:
    """factor * parameters. Integer buffers are shared, not copied."""
    return {
        name: tensor * per_client(factor, tensor) if tensor.is_floating_point() else tensor
        for name, tensor in parameters.items()
    }


def zeros_like(parameters: Parameters) -> Parameters:
    """Zeros with the names, shapes and types of `parameters`."""
    import torch

    return {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}


def squared_distance(first: Parameters, second: Parameters) -> float:
    """The squared Euclidean distance over the floating-point entries of both."""
    return read_sum(
        [
            (tensor - second[name]).square().sum()
            for name, tensor in first.items()
            if name in second and tensor.is_floating_point()
        ]
    )


def select(parameters: Parameters, names: Collection[str]) -> Parameters:
    return {name: tensor for name, tensor in parameters.items() if name in names}


def exclude(parameters: Parameters, names: Collection[str]) -> Parameters:
    return {name: tensor for name, tensor in parameters.items() if name not in names}


def dot(first: Parameters, second: Parameters) -> float:
    """The inner product over the floating-point entries of `second`."""
    return read_sum([(first[name] * tensor).sum() for name, tensor in second.items() if tensor.is_floating_point()])


def read_sum(terms: Sequence[Tensor]) -> float:
    """The sum of tensors without dimensions; 0 without any."""
    total: Any = sum(terms)
    return read_scalars(total)[0] if terms else 0.0
