"""Arithmetic on models: copies and weighted means, in the one place that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.engine.method import Parameters


def copy(parameters: Parameters) -> Parameters:
    """The same values in tensors of their own."""
    return {name: tensor.detach().clone() for name, tensor in parameters.items()}


def finite(parameters: Parameters) -> bool:
    """Whether every number of the model is one."""
    return all(tensor.isfinite().all().item() for tensor in parameters.values())


def weighted_mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """sum_i w_i theta_i / sum_i w_i, tensor by tensor, in the order given. Integer buffers are the first model's.

    One model alone comes back bit for bit.
    """
    if len(models) == 1:
        return copy(models[0])
    shares = [weight / sum(weights) for weight in weights]
    mean: Parameters = {}
    for name, first in models[0].items():
        if not first.is_floating_point():
            mean[name] = first.clone()
            continue
        total = first * shares[0]
        for model, share in zip(models[1:], shares[1:], strict=True):
            total.add_(model[name], alpha=share)
        mean[name] = total
    return mean
