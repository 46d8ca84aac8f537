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
def descend(
    train: TrainSettings,
    parameters: Mapping[K, Tensor],
    gradients: Mapping[K, Tensor],
    memory: dict[K, State],
    lr: float | None = None,
) -> None:
    """Move the parameters that have a gradient one step, in place, and remember what the next step needs."""
    lr = train.lr if lr is None else lr
    step = step_of_adam if train.optimizer == "adam" else step_of_sgd
    # A first step is another function than the next ones.
    known = [key for key in gradients if key in memory]
    for keys in (known, [key for key in gradients if key not in memory]):
        if keys:
            tensors = [parameters[key] for key in keys]
            slopes = [in_the_way_of(gradients[key], parameters[key]) for key in keys]
            step(train, keys, tensors, slopes, memory, lr)


def step_of_adam(
    train: TrainSettings, keys: list[K], tensors: list[Tensor], slopes: list[Tensor], memory: dict[K, State], lr: float
) -> None:
    for key, tensor in zip(keys, tensors, strict=True):
        if key not in memory:
            start = torch.zeros((), dtype=torch.float32, device=tensor.device)
            memory[key] = {"step": start, "exp_avg": torch.zeros_like(tensor), "exp_avg_sq": torch.zeros_like(tensor)}
    remembered = [memory[key] for key in keys]
    means, squares, steps = ([entry[part] for entry in remembered] for part in ("exp_avg", "exp_avg_sq", "step"))
    adam(
        tensors,
        slopes,
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


def step_of_sgd(
    train: TrainSettings, keys: list[K], tensors: list[Tensor], slopes: list[Tensor], memory: dict[K, State], lr: float
) -> None:
    buffers: list[Tensor | None] = [memory[key]["momentum_buffer"] if key in memory else None for key in keys]
    sgd(
        tensors,
        slopes,
        buffers,
        fused=True,
        weight_decay=0.0,
        momentum=train.momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )
    if train.momentum:
        memory.update({key: {"momentum_buffer": buffer} for key, buffer in zip(keys, buffers, strict=True)})


def in_the_way_of(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient laid out as its parameter is: fused steps go through memory as it lies, whatever strides say."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
