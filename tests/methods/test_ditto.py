"""Ditto."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import ProximalTerm
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import WEIGHT, distance, proximal_optimum, quadratic_toy, server_model
from tests.toys import TOYS, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class GlobalFirst(Ditto):
    """The global model is trained first, with a copy of the received model as anchor."""

    def train_local_model(self, client, received):
        anchor = params.clone(received)
        client.train("model")
        client.train("personal", proximal=ProximalTerm(anchor, self.mu))


class WrongAnchor(Ditto):
    """Wrong: the global model is trained first, and the anchor is the model trained in place."""

    def train_local_model(self, client, received):
        client.train("model")
        client.train("personal", proximal=ProximalTerm(received, self.mu))


class FrozenServer(Ditto):
    """The model of the server never changes."""

    def aggregate(self, server, uploads, ctx):
        pass


class EvaluatesGlobal(Ditto):
    """Wrong: the global model is evaluated instead of the personal one."""

    def personal_model(self, client, received):
        return received["model"]


@EVERY_TOY
def test_personal_model_without_proximal_term_equals_local_training(toy):
    common = toy.changed(init="common")
    assert same(models(Ditto(mu=0.0), common), models(Local(), common))
    assert not same(models(Ditto(mu=0.5), common), models(Local(), common))


@EVERY_TOY
@pytest.mark.parametrize("mu", [0.0, 1.0, 7.0])
def test_global_model_equals_fedavg_for_every_mu(toy, mu):
    assert same([server_model(Ditto(mu=mu), toy)], [server_model(FedAvg(), toy)])


def test_order_of_training_does_not_matter_but_the_anchor_does():
    ours = models(Ditto(), TOYS["uneven"])
    assert same(ours, models(GlobalFirst(), TOYS["uneven"]))
    assert not same(ours, models(WrongAnchor(), TOYS["uneven"]))


@pytest.mark.usefixtures("quadratic")
@pytest.mark.parametrize("mu", [0.2, 2.0])
def test_personal_model_converges_to_the_proximal_optimum(mu):
    federation = run_toy(FrozenServer(mu=mu), quadratic_toy(local_steps=250, lr=0.3), rounds=3)
    anchor = federation.ctx.initial_model[WEIGHT]
    for client in federation.state.clients:
        optimum = proximal_optimum(client, anchor, mu)
        assert torch.allclose(client.state["personal"][WEIGHT], optimum, rtol=0, atol=1e-10)


def test_larger_mu_keeps_the_personal_model_closer_to_the_anchor():
    toy = TOYS["even"].changed(optimizer="sgd", lr=0.01, local_steps=20)
    distances = []
    for mu in (0.0, 1.0, 90.0):
        federation = run_toy(FrozenServer(mu=mu), toy)
        distances.append(distance(federation.state.clients[0].state["personal"], federation.ctx.initial_model))
    assert distances[0] > distances[1] > 20 * distances[2] > 0


def test_personal_and_global_models_are_both_evaluated():
    federation = run_toy(Ditto(), TOYS["uneven"])
    personal = personal_models(federation)
    for client in federation.state.clients:
        assert personal[client.id] is client.state["personal"]
        assert (
            federation.method.global_model(client, ServerView(federation).for_client(client))
            is federation.state.server.state["model"]
        )
    assert not same(list(personal.values()), models(EvaluatesGlobal(), TOYS["uneven"]))
