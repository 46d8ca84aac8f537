"""An optimizer's step, on a model's tensors and on what is remembered about them.

These are the functions behind torch's optimizer classes. The classes keep what they remember to themselves, where here
it belongs to clients; and the first that is made loads torch's compiler, which takes longer than a short run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.method import State
    from fedmosaic_cli.engine.train_settings import TrainSettings

K = TypeVar("K")


@torch.no_grad()
def optimizer_step(
    train_settings: TrainSettings,
    parameters: Mapping[K, Tensor],
    gradients: Mapping[K, Tensor],
    optimizer_state: dict[K, State],
    lr: float | None = None,
) -> None:
    """Move the parameters that have a gradient one step, in place, and remember what the next step needs."""
    lr = train_settings.lr if lr is None else lr
    step = adam_step if train_settings.optimizer == "adam" else sgd_step
    # A first step is another function than the next ones.
    known = [key for key in gradients if key in optimizer_state]
    for keys in (known, [key for key in gradients if key not in optimizer_state]):
        if keys:
            tensors = [parameters[key] for key in keys]
            slopes = [match_memory_layout(gradients[key], parameters[key]) for key in keys]
            step(train_settings, keys, tensors, slopes, optimizer_state, lr)


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
            start = torch.zeros((), dtype=torch.float32, device=tensor.device)
            optimizer_state[key] = {
                "step": start,
                "exp_avg": torch.zeros_like(tensor),
                "exp_avg_sq": torch.zeros_like(tensor),
            }
    remembered = [optimizer_state[key] for key in keys]
    means, squares, steps = ([entry[part] for entry in remembered] for part in ("exp_avg", "exp_avg_sq", "step"))
    adam(
        tensors,
        gradients,
        means,
        squares,
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=lr,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )


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
    sgd(
        tensors,
        gradients,
        buffers,
        fused=True,
        weight_decay=0.0,
        momentum=train_settings.momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )
    if train_settings.momentum:
        optimizer_state.update({key: {"momentum_buffer": buffer} for key, buffer in zip(keys, buffers, strict=True)})


def match_memory_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient laid out as its parameter is: fused steps go through memory as it lies, whatever strides say."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
