"""Optimizer steps on explicit parameters and state.

These are the functions behind torch's optimizer classes. The classes own their state, which belongs to clients here,
and creating the first one imports torch's compiler, which takes longer than a short run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.method import State
    from fedmosaic_cli.engine.train_settings import TrainSettings

K = TypeVar("K")

ADAM_OPTIONS: dict[str, Any] = {
    **{"fused": True, "amsgrad": False, "maximize": False},
    **{"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
}
SGD_OPTIONS: dict[str, Any] = {
    **{"fused": True, "nesterov": False, "maximize": False},
    **{"dampening": 0.0, "weight_decay": 0.0},
}


@torch.no_grad()
def optimizer_step(
    train_settings: TrainSettings,
    parameters: Mapping[K, Tensor],
    gradients: Mapping[K, Tensor],
    optimizer_state: dict[K, State],
    lr: float | None = None,
) -> None:
    """Take one step with the configured optimizer.

    Args:
        train_settings: Optimizer and its hyper-parameters.
        parameters: Tensors; those with a gradient are updated in place.
        gradients: Gradients by the same keys.
        optimizer_state: State by the same keys; updated in place.
        lr: Learning rate instead of the configured one.
    """
    lr = train_settings.lr if lr is None else lr
    step = adam_step if train_settings.optimizer == "adam" else sgd_step
    # Parameters without state take their first step, which is a different function, in a separate call.
    known = [key for key in gradients if key in optimizer_state]
    for keys in (known, [key for key in gradients if key not in optimizer_state]):
        if keys:
            matched = [match_memory_layout(gradients[key], parameters[key]) for key in keys]
            step(train_settings, keys, [parameters[key] for key in keys], matched, optimizer_state, lr)


def adam_step(
    train_settings: TrainSettings,
    keys: list[K],
    tensors: list[Tensor],
    gradients: list[Tensor],
    optimizer_state: dict[K, State],
    lr: float,
) -> None:
    for key, tensor in zip(keys, tensors, strict=True):
        if key not in optimizer_state:
            optimizer_state[key] = {
                "step": torch.zeros((), dtype=torch.float32, device=tensor.device),
                "exp_avg": torch.zeros_like(tensor),
                "exp_avg_sq": torch.zeros_like(tensor),
            }
    means, squares, steps = ([optimizer_state[key][part] for key in keys] for part in ("exp_avg", "exp_avg_sq", "step"))
    adam(tensors, gradients, means, squares, [], steps, lr=lr, **ADAM_OPTIONS)


def sgd_step(
    train_settings: TrainSettings,
    keys: list[K],
    tensors: list[Tensor],
    gradients: list[Tensor],
    optimizer_state: dict[K, State],
    lr: float,
) -> None:
    buffers: list[Tensor | None] = [
        optimizer_state[key]["momentum_buffer"] if key in optimizer_state else None for key in keys
    ]
    sgd(tensors, gradients, buffers, momentum=train_settings.momentum, lr=lr, **SGD_OPTIONS)
    if train_settings.momentum:
        optimizer_state.update({key: {"momentum_buffer": buffer} for key, buffer in zip(keys, buffers, strict=True)})


def match_memory_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with the strides of its parameter: fused steps ignore strides and walk through memory."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
