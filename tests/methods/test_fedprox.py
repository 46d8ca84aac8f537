"""FedProx."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import ProximalTerm
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedprox import FedProx
from tests.methods.problems import WEIGHT, distance, pulled_optimum, quadratic_toy, uploads
from tests.toys import TOYS, models, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class Unsquared(FedProx):
    """The pull of mu/2 ||w - anchor||, as in a published repository: its length does not depend on the distance."""

    def train_local_model(self, client, received):
        anchor = params.clone(received)
        for step in client.steps():
            model = client.state["model"]
            gradient = step.gradient(model)
            drift = {name: model[name] - anchor[name] for name in gradient}
            length = sum(tensor.square().sum() for tensor in drift.values()).sqrt().clamp_min(1e-12)
            client.optimizer_step("model", params.add_scaled(gradient, drift, (self.mu / length).item()))


class Unfixed(FedProx):
    """The anchor is what is being trained, in place: there is no pull at all."""

    def train_local_model(self, client, received):
        client.train("model", proximal=ProximalTerm(received, self.mu))


@EVERY_TOY
def test_without_its_leash_it_is_fedavg(toy):
    assert same(models(FedProx(mu=0.0), toy), models(FedAvg(), toy))
    assert not same(models(FedProx(mu=1.0), toy), models(FedAvg(), toy))


@EVERY_TOY
def test_the_first_step_feels_no_pull(toy):
    once = toy.changed(local_steps=1, local_epochs=1)
    assert same(models(FedProx(mu=3.0), once, rounds=1), models(FedAvg(), once, rounds=1))


@pytest.mark.usefixtures("quadratic")
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_many_steps_end_where_the_squared_distance_says(mu):
    toy = quadratic_toy(local_steps=500, lr=0.3)
    federation, sent = uploads(FedProx(mu=mu), toy)
    anchor = federation.ctx.initial_model[WEIGHT]
    wrong = uploads(Unsquared(mu=mu), toy)[1]
    for client in federation.state.clients:
        optimum = pulled_optimum(client, anchor, mu)
        assert torch.allclose(sent[client.id][WEIGHT], optimum, rtol=0, atol=1e-10)
        assert not torch.allclose(wrong[client.id][WEIGHT], optimum, rtol=0, atol=1e-3)


def test_the_anchor_does_not_move_with_the_model():
    """Where it does, nothing pulls; ours must differ from that."""
    unfixed = models(Unfixed(mu=1.0), TOYS["even"])
    assert same(unfixed, models(FedAvg(), TOYS["even"]))
    assert not same(unfixed, models(FedProx(mu=1.0), TOYS["even"]))


def test_a_tighter_leash_is_shorter():
    start = TOYS["sgd"].federation(FedProx()).ctx.initial_model
    ways = [distance(uploads(FedProx(mu=mu), TOYS["sgd"])[1][0], start) for mu in (0.0, 0.5, 2.0)]
    assert ways == sorted(ways, reverse=True)
    assert len(set(ways)) == 3
