"""APFL."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import server_model
from tests.toys import TOYS, close, models, personal_models, run_toy, same

RULE_STEP = SimpleNamespace(dot=params.dot)
EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class ReplacesPrivateModel(APFL):
    """Wrong: the private model is trained separately and then replaced by the mixture."""

    def train_local_model(self, client, received):
        client.train("model")
        client.train("private")
        client.state["private"] = params.interpolate(
            client.state["private"], client.state["model"], client.state["alpha"]
        )


class StepsTwice(APFL):
    """Wrong: the gradient of the shared copy is applied twice."""

    def train_local_model(self, client, received):
        for step in client.steps():
            gradient = step.gradient(client.state["model"])
            client.optimizer_step("model", gradient)
            client.optimizer_step("model", gradient)
            mixture = params.interpolate(client.state["private"], client.state["model"], self.alpha, gradient)
            client.optimizer_step("private", step.gradient(mixture))


@EVERY_TOY
def test_mixture_of_only_the_private_model_equals_local_training(toy):
    common = toy.changed(init="common")
    assert same(models(APFL(alpha=1.0, adaptive=False), common), models(Local(), common))
    assert not same(models(APFL(alpha=0.9, adaptive=False), common), models(Local(), common))


@EVERY_TOY
def test_mixture_without_the_private_model_does_not_train_it(toy):
    federation = run_toy(APFL(alpha=0.0, adaptive=False), toy)
    for client, personal in personal_models(federation).items():
        state = federation.state.clients[client].state
        assert same([state["private"]], [federation.ctx.initial_model])
        assert same([personal], [state["copy"]])


@EVERY_TOY
@pytest.mark.parametrize("method", [APFL(), APFL(alpha=0.3, adaptive=False), APFL(alpha_lr=5.0)])
def test_global_model_equals_fedavg_for_every_mixture(toy, method):
    assert same([server_model(method, toy)], [server_model(FedAvg(), toy)])


def test_applying_the_gradient_twice_is_detected():
    assert not same([server_model(StepsTwice(), TOYS["even"])], [server_model(FedAvg(), TOYS["even"])])


def test_alpha_gradient_is_the_derivative_of_the_loss_at_the_mixture():
    method = APFL()
    federation = run_toy(method, TOYS["even"], rounds=2)
    client = federation.state.clients[0]
    private, copy = client.state["private"], client.state["copy"]
    step = next(iter(client.steps()))
    positions = client._private_batches("private")[0]

    def loss(alpha):
        module = client.learner.bound_module(params.interpolate(private, copy, alpha))
        inputs, labels = client.private.inputs(positions), client.private.labels[positions]
        return torch.nn.functional.cross_entropy(module(inputs), labels).item()

    gradient = step.gradient(params.interpolate(private, copy, 0.4))
    difference = (loss(0.4 + 1e-6) - loss(0.4 - 1e-6)) / 2e-6
    assert method.alpha_gradient(RULE_STEP, private, copy, gradient) == pytest.approx(difference, abs=1e-6)


@pytest.mark.parametrize("alpha_lr", [0.5, 1e3])
def test_round_equals_a_manual_computation(alpha_lr):
    """Plain steps: update w, then v by alpha times the gradient at the mixture with the new w; update alpha once."""
    toy = TOYS["even"].changed(optimizer="sgd", lr=0.2, local_steps=3)
    federation = run_toy(APFL(alpha=0.3, alpha_lr=alpha_lr), toy, rounds=1)
    for client in federation.state.clients:
        v = w = federation.ctx.initial_model
        alpha = 0.3
        for step in client.steps():
            w = params.add_scaled(w, step.gradient(w), -0.2)
            at_mixture = step.gradient(params.interpolate(v, w, alpha))
            slope = sum(((v[n] - w[n]) * at_mixture[n]).sum().item() for n in v)
            v = params.add_scaled(v, at_mixture, -0.2 * alpha)
            if step.number == 1:
                alpha = min(max(alpha - alpha_lr * slope, 0.0), 1.0)
        assert client.state["alpha"] == pytest.approx(alpha, rel=1e-12)
        assert client.metrics["alpha"] == client.state["alpha"]
        assert close([client.state["private"]], [v], 1e-13)
        assert client.state["alpha"] in (0.0, 1.0) if alpha_lr > 1 else 0 < client.state["alpha"] < 1


def test_alpha_is_constant_unless_adaptive():
    federation = TOYS["even"].federation(APFL(alpha=0.25, adaptive=False))
    with federation.worker_pool:
        assert {row["alpha"] for done in run_rounds(federation, 2) for row in done.rows} == {0.25}


def test_mixture_does_not_replace_the_private_model():
    federation = run_toy(APFL(), TOYS["even"])
    for client, personal in personal_models(federation).items():
        assert not same([personal], [federation.state.clients[client].state["private"]])
    assert not same(models(ReplacesPrivateModel(), TOYS["even"]), models(APFL(), TOYS["even"]))


@pytest.mark.usefixtures("with_batch_norm")
def test_identities_hold_with_batch_statistics():
    common = TOYS["even"].changed(init="common")
    assert same(models(APFL(alpha=1.0, adaptive=False), common), models(Local(), common))
    assert same([server_model(APFL(), common)], [server_model(FedAvg(), common)])


@pytest.mark.usefixtures("with_batch_norm")
def test_mixture_has_the_batch_statistics_of_the_private_model():
    federation = run_toy(APFL(), TOYS["even"])
    for client, personal in personal_models(federation).items():
        private = federation.state.clients[client].state["private"]
        assert torch.equal(personal["body.2.running_mean"], private["body.2.running_mean"])
        assert not torch.equal(personal["body.2.weight"], private["body.2.weight"])
