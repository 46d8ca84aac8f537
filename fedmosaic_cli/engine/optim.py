"""Optimizer steps on explicit parameters and state.

These are the functions behind torch's optimizer classes. The classes own their state, which belongs to clients here,
and creating the first one imports torch's compiler, which takes longer than a short run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedmosaic_cli.engine.learner import StepOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.context import State
    from fedmosaic_cli.engine.train_settings import TrainSettings

K = TypeVar("K")

ADAM_OPTIONS: dict[str, Any] = {
    **{"fused": True, "amsgrad": False, "maximize": False},
    **{"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}
SGD_OPTIONS: dict[str, Any] = {
    **{"fused": True, "nesterov": False, "maximize": False},
    **{"dampening": 0.0},
}
DEFAULT_STEP_OPTIONS = StepOptions()


@torch.no_grad()
def optimizer_step(
    train_settings: TrainSettings,
    parameters: Mapping[K, Tensor],
    gradients: Mapping[K, Tensor],
    optimizer_state: dict[K, State],
    options: StepOptions = DEFAULT_STEP_OPTIONS,
) -> None:
    """Take one step with the configured optimizer.

    Args:
        train_settings: Optimizer and its hyper-parameters.
        parameters: Tensors; those with a gradient are updated in place.
        gradients: Gradients by the same keys.
        optimizer_state: State by the same keys; updated in place.
        options: What the method changes.
    """
    lr = train_settings.lr if options.lr is None else options.lr
    step = adam_step if (options.optimizer or train_settings.optimizer) == "adam" else sgd_step
    # Parameters without state take their first step, which is a different function, in a separate call.
    known = [key for key in gradients if key in optimizer_state]
    for keys in (known, [key for key in gradients if key not in optimizer_state]):
        if keys:
            matched = [match_memory_layout(gradients[key], parameters[key]) for key in keys]
            tensors = [parameters[key] for key in keys]
            step(train_settings, keys, tensors, matched, optimizer_state, lr, options.weight_decay)


def adam_step(
    train_settings: TrainSettings,
    keys: list[K],
    tensors: list[Tensor],
    gradients: list[Tensor],
    optimizer_state: dict[K, State],
    lr: float,
    weight_decay: float,
) -> None:
    for key, tensor in zip(keys, tensors, strict=True):
        if key not in optimizer_state:
            optimizer_state[key] = {
                "step": torch.zeros((), dtype=torch.float32, device=tensor.device),
                "exp_avg": torch.zeros_like(tensor),
                "exp_avg_sq": torch.zeros_like(tensor),
            }
    means, squares, steps = ([optimizer_state[key][part] for key in keys] for part in ("exp_avg", "exp_avg_sq", "step"))
    adam(tensors, gradients, means, squares, [], steps, lr=lr, weight_decay=weight_decay, **ADAM_OPTIONS)


def sgd_step(
    train_settings: TrainSettings,
    keys: list[K],
    tensors: list[Tensor],
    gradients: list[Tensor],
    optimizer_state: dict[K, State],
    lr: float,
    weight_decay: float,
) -> None:
    buffers: list[Tensor | None] = [
        optimizer_state[key]["momentum_buffer"] if key in optimizer_state else None for key in keys
    ]
    options: dict[str, Any] = {"momentum": train_settings.momentum, "lr": lr, "weight_decay": weight_decay}
    sgd(tensors, gradients, buffers, **options, **SGD_OPTIONS)
    if train_settings.momentum:
        optimizer_state.update({key: {"momentum_buffer": buffer} for key, buffer in zip(keys, buffers, strict=True)})


def match_memory_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with the strides of its parameter: fused steps ignore strides and walk through memory."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


@torch.no_grad()
def clip_gradients(gradients: Mapping[K, Tensor], max_norm: float, num_clients: int | None = None) -> None:
    """Scale gradients down to the Euclidean norm `max_norm`, in place.

    Args:
        gradients: The gradients of a model or, with `num_clients`, of several stacked models [clients, ...].
        max_norm: The largest norm.
        num_clients: Number of stacked models, each with its own norm.
    """
    if not gradients:
        return
    shape = (num_clients or 1, -1)
    squares = torch.stack([gradient.reshape(shape).square().sum(dim=1) for gradient in gradients.values()]).sum(dim=0)
    scale = (max_norm / squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)).clamp(max=1.0)
    for gradient in gradients.values():
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)) if num_clients else scale)
