"""FedProx."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import ProximalTerm
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedprox import FedProx
from tests.methods.problems import WEIGHT, distance, proximal_optimum, quadratic_toy, uploads
from tests.toys import TOYS, models, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class Unsquared(FedProx):
    """Wrong: the term mu/2 ||w - anchor||, as in a published repository. Its gradient norm ignores the distance."""

    def train_local_model(self, client, received):
        anchor = params.clone(received)
        for step in client.steps():
            model = client.state["model"]
            gradient = step.gradient(model)
            drift = {name: model[name] - anchor[name] for name in gradient}
            length = sum(tensor.square().sum() for tensor in drift.values()).sqrt().clamp_min(1e-12)
            client.optimizer_step("model", params.add_scaled(gradient, drift, (self.mu / length).item()))


class MovingAnchor(FedProx):
    """Wrong: the anchor is the model trained in place, so the proximal term is always 0."""

    def train_local_model(self, client, received):
        client.train("model", proximal=ProximalTerm(received, self.mu))


@EVERY_TOY
def test_fedprox_without_proximal_term_equals_fedavg(toy):
    assert same(models(FedProx(mu=0.0), toy), models(FedAvg(), toy))
    assert not same(models(FedProx(mu=1.0), toy), models(FedAvg(), toy))


@EVERY_TOY
def test_first_step_has_no_proximal_gradient(toy):
    once = toy.changed(local_steps=1, local_epochs=1)
    assert same(models(FedProx(mu=3.0), once, rounds=1), models(FedAvg(), once, rounds=1))


@pytest.mark.thinned(every=2)
@pytest.mark.usefixtures("quadratic")
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_many_steps_converge_to_the_proximal_optimum(mu):
    toy = quadratic_toy(local_steps=500, lr=0.3)
    federation, sent = uploads(FedProx(mu=mu), toy)
    anchor = federation.ctx.initial_model[WEIGHT]
    wrong = uploads(Unsquared(mu=mu), toy)[1]
    for client in federation.state.clients:
        optimum = proximal_optimum(client, anchor, mu)
        assert torch.allclose(sent[client.id][WEIGHT], optimum, rtol=0, atol=1e-10)
        assert not torch.allclose(wrong[client.id][WEIGHT], optimum, rtol=0, atol=1e-3)


def test_anchor_does_not_change_with_the_model():
    """With a moving anchor the proximal term has no effect; FedProx must differ from that."""
    moving = models(MovingAnchor(mu=1.0), TOYS["even"])
    assert same(moving, models(FedAvg(), TOYS["even"]))
    assert not same(moving, models(FedProx(mu=1.0), TOYS["even"]))


def test_larger_mu_keeps_models_closer_to_the_anchor():
    start = TOYS["sgd"].federation(FedProx()).ctx.initial_model
    distances = [distance(uploads(FedProx(mu=mu), TOYS["sgd"])[1][0], start) for mu in (0.0, 0.5, 2.0)]
    assert distances == sorted(distances, reverse=True)
    assert len(set(distances)) == 3
