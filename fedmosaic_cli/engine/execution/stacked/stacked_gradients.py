"""Gradients of several clients at once, for methods with a step rule of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from fedmosaic_cli.engine.examples import copy_to_device
from fedmosaic_cli.engine.execution.stacked.batch_table import masked_means, padding_mask
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.engine.network_runner import NetworkRunner


def compute_stacked_gradients(
    runner: NetworkRunner, update_running_stats: bool, requests: list[tuple[Parameters, Tensor, Tensor]]
) -> list[tuple[Tensor, Parameters]]:
    """Of each model on a batch of its own, the mean cross-entropy and its gradient; see `training.gradient_at`."""
    models, inputs, labels = zip(*requests, strict=True)
    stack = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    weights = {name: t if name in runner.buffer_names else t.requires_grad_() for name, t in stack.items()}
    lengths = [len(each) for each in labels]
    counts = copy_to_device(torch.tensor(lengths), runner.device)
    present = padding_mask(lengths, counts)
    way = ForwardContext(len(models), True, present)
    network = StackedNetwork(runner.template)
    with runner.autocast():
        logits = network.head(weights, network.features(weights, pad_sequence(list(inputs)), way), way)
        losses = cross_entropy(logits.flatten(0, 1), pad_sequence(list(labels)).T.flatten(), reduction="none")
        values = masked_means(losses.view(len(models), -1), present, counts)
    trained = runner.trainable_names
    found = torch.autograd.grad(values.sum(), [weights[name] for name in trained])
    if update_running_stats:
        for name in runner.buffer_names:
            torch._foreach_copy_([model[name] for model in models], list(stack[name].unbind()))
    gradients = zip(*(gradient.unbind() for gradient in found), strict=True)
    rows = [dict(zip(trained, mine, strict=True)) for mine in gradients]
    return list(zip(values.detach().unbind(), rows, strict=True))
