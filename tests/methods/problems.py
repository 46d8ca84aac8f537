"""Helpers of the method tests: problems with known solutions, a faulty server, and access to models of a federation."""

from __future__ import annotations

import numpy as np
import torch

from fedmosaic_cli.engine.context import Parameters
from fedmosaic_cli.engine.federation import Federation
from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.methods.student import Student
from tests.toys import TOYS, Toy, make_toy, run_toy

WEIGHT = "head.weight"


class PermutedShares(Student):
    """The server assigns the shares to other examples."""

    def aggregate(self, server, uploads, ctx):
        super().aggregate(server, uploads, ctx)
        order = torch.as_tensor(np.random.default_rng(0).permutation(ctx.public_size))
        server.state["shares"] = server.state["shares"][order]


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
    return run_toy(method, toy, rounds).state.server.state["model"]


def uploads(method: Method, toy: Toy = TOYS["uneven"]) -> tuple[Federation, dict[int, Parameters]]:
    """Return a federation and what its clients upload in the first round."""
    federation = toy.federation(method)
    sent = {}
    for client in federation.state.clients:
        client.begin_round(1)
        received = {"model": {k: v.clone() for k, v in federation.state.server.state["model"].items()}}
        sent[client.id] = method.local_round(client, received, federation.ctx)["model"]
    return federation, sent


def distance(first: Parameters, second: Parameters) -> float:
    return sum((first[name] - second[name]).square().sum() for name in first).sqrt().item()


def by_hand_features(model: Parameters, inputs: torch.Tensor) -> torch.Tensor:
    """Return the hidden layer of a toy's network, computed by hand."""
    return (inputs.flatten(start_dim=1) @ model["body.1.weight"].T + model["body.1.bias"]).relu()


def by_hand_logits(model: Parameters, inputs: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a toy's network, computed by hand."""
    return by_hand_features(model, inputs) @ model["head.weight"].T + model["head.bias"]


def by_hand_gradient(client, model: Parameters, penalty=None) -> Parameters:
    """Return the gradient of the mean cross-entropy on all training examples.

    Args:
        penalty: If given, `penalty(model, inputs, labels)` is added to the loss.
    """
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in model.items()}
    inputs, labels = client.private.inputs(slice(None)), client.private.labels
    loss = torch.nn.functional.cross_entropy(by_hand_logits(leaves, inputs), labels)
    if penalty is not None:
        loss = loss + penalty(leaves, inputs, labels)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def by_hand_descent(
    client, model: Parameters, steps: int, lr: float, names=None, correction=None, penalty=None
) -> Parameters:
    """Return a model after full-batch gradient steps on the entries `names`, or on all."""
    for _ in range(steps):
        gradient = by_hand_gradient(client, model, penalty)
        shift = correction or {name: torch.zeros_like(tensor) for name, tensor in model.items()}
        model = {
            name: tensor - lr * (gradient[name] + shift[name]) if names is None or name in names else tensor
            for name, tensor in model.items()
        }
    return model


def by_hand_mean(models: list[Parameters], weights: list[float]) -> Parameters:
    """Return the weighted mean of models."""
    return {
        name: sum(w * model[name] for w, model in zip(weights, models, strict=True)) / sum(weights)
        for name in models[0]
    }


def full_batch_toy(sizes: tuple[int, ...] = (9, 5, 7), **train) -> Toy:
    """Return a toy of plain full-batch steps with the usual network and loss: nothing in it is random."""
    full_batch = {"optimizer": "sgd", "lr": 0.3, "batch_size": 1000, "local_steps": 2, "init": "common"}
    return make_toy(list(sizes)).changed(**{**full_batch, **train})
