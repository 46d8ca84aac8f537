"""Helpers of the method tests: a problem with a known solution, and access to models of a federation."""

from __future__ import annotations

import torch

from fedmosaic_cli.engine.federation import Federation
from fedmosaic_cli.engine.method import Method, Parameters
from tests.toys import TOYS, Toy, make_toy, run_toy

WEIGHT = "head.weight"


def quadratic_toy(**train) -> Toy:
    """Return a toy of plain full-batch steps; with the fixture `quadratic`, the objective F_i is quadratic."""
    full_batch = {"optimizer": "sgd", "lr": 0.1, "batch_size": 1000, "local_steps": 1, "init": "common"}
    return make_toy([9, 8, 10]).changed(**{**full_batch, **train})


def normal_equations(client) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B such that the gradient of F_i at W is W A - B."""
    inputs = client.private.inputs(slice(None)).flatten(start_dim=1)
    targets = torch.nn.functional.one_hot(client.private.labels, 3).to(inputs)
    return inputs.T @ inputs / len(inputs), targets.T @ inputs / len(inputs)


def proximal_optimum(client, anchor: torch.Tensor, strength: float) -> torch.Tensor:
    """Return the minimiser of F_i(W) + strength/2 ||W - anchor||^2."""
    a, b = normal_equations(client)
    return torch.linalg.solve(a + strength * torch.eye(4, dtype=a.dtype), b + strength * anchor, left=False)


def server_model(method: Method, toy: Toy, rounds: int = 3) -> Parameters:
    """Return the global model after `rounds` rounds."""
    return run_toy(method, toy, rounds).state.server["model"]


def uploads(method: Method, toy: Toy = TOYS["uneven"]) -> tuple[Federation, dict[int, Parameters]]:
    """Return a federation and what its clients upload in the first round."""
    federation = toy.federation(method)
    sent = {}
    for client in federation.state.clients:
        client.begin_round(1)
        received = {"model": {k: v.clone() for k, v in federation.state.server["model"].items()}}
        sent[client.id] = method.local_round(client, received, federation.ctx)["model"].values
    return federation, sent


def distance(first: Parameters, second: Parameters) -> float:
    return sum((first[name] - second[name]).square().sum() for name in first).sqrt().item()
