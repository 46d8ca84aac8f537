"""The one trainer: a round of local steps on one client's data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import Parameters, State, Term
    from fedmosaic_cli.engine.workspace import Workspace


@dataclass
class TrainingStep:
    """What terms may look at; see `engine.method.Step`."""

    public_index: Tensor
    public_logits: Tensor


@dataclass(frozen=True)
class Draw:
    """The batches of a round: positions in the private and in the public set, step by step."""

    private: list[Tensor]
    public: list[Tensor]


def fit(
    workspace: Workspace,
    parameters: Parameters,
    optimizer_state: State,
    private: Examples,
    public: Examples,
    draw: Draw,
    terms: Sequence[Term],
) -> tuple[float, list[float]]:
    """Train `parameters` in place, carrying `optimizer_state` on. The mean private loss and the mean of each term."""
    module = workspace.module(parameters).train()
    optimizer = workspace.optimizer()
    load_state(optimizer, module, optimizer_state)
    joined = not any(isinstance(layer, _BatchNorm) for layer in module.modules())
    terms = [term.on(workspace.device) for term in terms]
    private_total = torch.zeros((), dtype=workspace.dtype, device=workspace.device)
    term_totals = [private_total.clone() for _ in terms]
    seen = 0
    for number, positions in enumerate(draw.private):
        if not joined and min(len(batch) for batch in (positions, *draw.public[number : number + 1])) == 1:
            continue  # batch statistics of a single example do not exist
        inputs, labels = private.inputs(positions), private.targets[positions]
        optimizer.zero_grad(set_to_none=True)
        if terms:
            logits, step = forward_both(module, inputs, public, draw.public[number], joined)
        else:
            logits = module(inputs)
        loss = cross_entropy(logits, labels)
        private_total += loss.detach() * len(labels)
        for position, term in enumerate(terms):
            value = term.loss(step)
            term_totals[position] += value.detach() * len(labels)
            loss = loss + term.weight * value
        loss.backward()
        optimizer.step()
        seen += len(labels)
    optimizer_state.clear()
    optimizer_state.update(read_state(optimizer, module))
    return (private_total / max(seen, 1)).item(), [(total / max(seen, 1)).item() for total in term_totals]


def forward_both(
    module: nn.Module, inputs: Tensor, public: Examples, positions: Tensor, joined: bool
) -> tuple[Tensor, TrainingStep]:
    """The outputs on a private and on a public batch: in one pass, unless batch statistics would mix the two."""
    others = public.inputs(positions)
    if joined:
        private_logits, public_logits = module(torch.cat([inputs, others])).split([len(inputs), len(others)])
    else:
        private_logits, public_logits = module(inputs), module(others)
    return private_logits, TrainingStep(positions, public_logits)


def load_state(optimizer: torch.optim.Optimizer, module: nn.Module, state: State) -> None:
    for name, parameter in module.named_parameters():
        if name in state:
            optimizer.state[parameter] = dict(state[name])


def read_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    return {name: dict(optimizer.state[p]) for name, p in module.named_parameters() if p in optimizer.state}
