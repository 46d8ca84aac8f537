"""APFL."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import personal_models, play
from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import server_model
from tests.toys import TOYS, models, played, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class Overwritten(APFL):
    """The private model is trained by itself and then replaced by the mixture."""

    def train(self, client, received):
        client.train("model")
        client.train("private")
        client.state["private"] = params.mixed(client.state["private"], client.state["model"], client.state["alpha"])


class StepsTwice(APFL):
    """The gradient of the shared copy is used again in the step of the private one."""

    def train(self, client, received):
        for step in client.steps():
            gradient = step.gradient(client.state["model"])
            client.descend("model", gradient)
            client.descend("model", gradient)
            mixture = params.mixed(client.state["private"], client.state["model"], self.alpha, gradient)
            client.descend("private", step.gradient(mixture))


@EVERY_TOY
def test_a_mixture_of_the_private_model_alone_is_local_training(toy):
    common = toy.changed(init="common")
    assert same(models(APFL(alpha=1.0, adaptive=False), common), models(Local(), common))
    assert not same(models(APFL(alpha=0.9, adaptive=False), common), models(Local(), common))


@EVERY_TOY
def test_a_mixture_without_the_private_model_leaves_it_alone(toy):
    federation = played(APFL(alpha=0.0, adaptive=False), toy)
    for client, personal in personal_models(federation).items():
        state = federation.standing.clients[client].state
        assert same([state["private"]], [federation.world.init])
        assert same([personal], [state["copy"]])


@EVERY_TOY
@pytest.mark.parametrize("method", [APFL(), APFL(alpha=0.3, adaptive=False), APFL(alpha_lr=5.0)])
def test_the_global_model_is_fedavg_whatever_the_mixture(toy, method):
    assert same([server_model(method, toy)], [server_model(FedAvg(), toy)])


def test_a_copy_that_steps_twice_would_be_seen():
    assert not same([server_model(StepsTwice(), TOYS["even"])], [server_model(FedAvg(), TOYS["even"])])


def test_the_slope_of_alpha_is_that_of_the_loss_at_the_mixture():
    method = APFL()
    federation = played(method, TOYS["even"], rounds=2)
    client = federation.standing.clients[0]
    private, copy = client.state["private"], client.state["copy"]
    step = next(iter(client.steps()))
    positions = client._private_batches("private")[0]

    def loss(alpha):
        module = client.learner.module(params.mixed(private, copy, alpha))
        inputs, labels = client.private.inputs(positions), client.private.labels[positions]
        return torch.nn.functional.cross_entropy(module(inputs), labels).item()

    gradient = step.gradient(params.mixed(private, copy, 0.4))
    difference = (loss(0.4 + 1e-6) - loss(0.4 - 1e-6)) / 2e-6
    assert method.alpha_slope(private, copy, gradient) == pytest.approx(difference, abs=1e-6)


def test_alpha_moves_once_a_round_and_stays_a_share():
    federation = TOYS["even"].federation(APFL(alpha_lr=1.0))
    with federation.workers:
        alphas = [[row["alpha"] for row in done.rows] for done in play(federation, 4)]
    assert all(0 <= alpha <= 1 for of_round in alphas for alpha in of_round)
    assert len({tuple(of_round) for of_round in alphas}) > 1
    federation = TOYS["even"].federation(APFL(alpha=0.25, adaptive=False))
    with federation.workers:
        assert {row["alpha"] for done in play(federation, 2) for row in done.rows} == {0.25}


def test_the_first_round_by_hand():
    """Plain steps, one batch: w moves, then v along the gradient at the mixture with the new w, times alpha."""
    toy = TOYS["even"].changed(optimizer="sgd", lr=0.2, local_steps=1)
    federation = played(APFL(alpha=0.3, alpha_lr=0.5), toy, rounds=1)
    for client in federation.standing.clients:
        start = federation.world.init
        step = next(iter(client.steps()))
        w = params.moved(start, step.gradient(start), -0.2)
        at_mixture = step.gradient(params.mixed(start, w, 0.3))
        v = params.moved(start, at_mixture, -0.2 * 0.3)
        assert all(torch.allclose(client.state["private"][n], v[n], rtol=0, atol=1e-14) for n in v)
        slope = sum(((start[n] - w[n]) * at_mixture[n]).sum().item() for n in v)
        assert client.state["alpha"] == pytest.approx(0.3 - 0.5 * slope, rel=1e-12)


def test_the_mixture_does_not_replace_the_private_model():
    federation = played(APFL(), TOYS["even"])
    for client, personal in personal_models(federation).items():
        assert not same([personal], [federation.standing.clients[client].state["private"]])
    assert not same(models(Overwritten(), TOYS["even"]), models(APFL(), TOYS["even"]))


@pytest.mark.usefixtures("with_batch_norm")
def test_identities_hold_with_batch_statistics():
    common = TOYS["even"].changed(init="common")
    assert same(models(APFL(alpha=1.0, adaptive=False), common), models(Local(), common))
    assert same([server_model(APFL(), common)], [server_model(FedAvg(), common)])
