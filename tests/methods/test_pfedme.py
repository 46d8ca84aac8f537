"""pFedMe."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.server import InProcessServer
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.pfedme import PFedMe
from tests.methods.problems import WEIGHT, proximal_optimum, quadratic_toy, server_model, uploads
from tests.toys import CPU, TOYS, close, models, personal_models, run_toy, same


class EvaluatesGlobal(PFedMe):
    """Wrong: the personal model is an alias of the model loaded last, so the global model is evaluated."""

    def personal_model(self, client, received):
        return received["model"]


class NeverUpdated(PFedMe):
    """Wrong: the personal model is never stored, so the initial weights are evaluated."""

    def train_local_model(self, client, received):
        before = client.state["personal"]
        super().train_local_model(client, received)
        client.state["personal"] = before


def test_without_proximal_term_the_global_model_is_constant_and_theta_is_local():
    toy, method = TOYS["uneven"], PFedMe(mu=0.0, inner_steps=2, inner_lr=0.1)
    federation = run_toy(method, toy)
    assert same([federation.state.server.state["model"]], [federation.ctx.initial_model])
    for client in federation.state.clients:
        theta = federation.ctx.initial_model
        for step in client.steps():
            for _ in range(2):
                theta = params.add_scaled(theta, step.gradient(theta), -0.1)
        assert close([client.state["personal"]], [theta], 1e-14)


def test_full_outer_step_sets_the_local_copy_to_theta():
    federation, sent = uploads(PFedMe(mu=10.0, lr=0.1))
    for client in federation.state.clients:
        assert close([sent[client.id]], [client.state["personal"]])
    federation, sent = uploads(PFedMe(mu=10.0, lr=0.05))
    for client in federation.state.clients:
        assert not close([sent[client.id]], [client.state["personal"]], 1e-6)


def test_server_interpolates_between_its_model_and_the_mean():
    toy = TOYS["uneven"]
    start = toy.federation(PFedMe()).ctx.initial_model
    assert same([server_model(PFedMe(beta=0.0), toy)], [start])
    _, sent = uploads(PFedMe(), toy)
    mean = params.weighted_mean(list(sent.values()), [3, 6, 11])
    assert same([server_model(PFedMe(beta=1.0), toy, rounds=1)], [mean])
    half = {name: (start[name] + mean[name]) / 2 for name in start}
    assert close([server_model(PFedMe(beta=0.5), toy, rounds=1)], [half])


@pytest.mark.usefixtures("quadratic")
def test_many_inner_steps_converge_to_the_proximal_optimum():
    method = PFedMe(mu=2.0, inner_steps=800, inner_lr=0.1, lr=0.1)
    federation, sent = uploads(method, quadratic_toy())
    start = federation.ctx.initial_model[WEIGHT]
    for client in federation.state.clients:
        centre = proximal_optimum(client, start, 2.0)
        assert torch.allclose(client.state["personal"][WEIGHT], centre, rtol=0, atol=1e-10)
        assert torch.allclose(sent[client.id][WEIGHT], start - 0.2 * (start - centre), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("quadratic")
def test_proximal_anchor_is_the_updated_local_copy():
    """The anchor of the second step is w_1, not the received model."""
    method = PFedMe(mu=2.0, inner_steps=800, inner_lr=0.1, lr=0.1)
    federation, _ = uploads(method, quadratic_toy(local_steps=2))
    start = federation.ctx.initial_model[WEIGHT]
    for client in federation.state.clients:
        anchor = start - 0.2 * (start - proximal_optimum(client, start, 2.0))
        second = proximal_optimum(client, anchor, 2.0)
        assert torch.allclose(client.state["personal"][WEIGHT], second, rtol=0, atol=1e-10)
        assert not torch.allclose(second, proximal_optimum(client, start, 2.0), rtol=0, atol=1e-4)


def test_theta_is_evaluated_not_the_global_model():
    toy = TOYS["uneven"]
    federation = run_toy(PFedMe(), toy)
    ours = list(personal_models(federation).values())
    for client, model in zip(federation.state.clients, ours, strict=True):
        assert model is client.state["personal"]
        assert not same([model], [federation.state.server.state["model"]])
    assert not same(ours, models(EvaluatesGlobal(), toy))
    assert same(models(NeverUpdated(), toy), [federation.ctx.initial_model] * 3)


def test_weight_decay_shrinks_the_model():
    toy = TOYS["even"]
    plain, decayed = models(PFedMe(), toy), models(PFedMe(weight_decay=5.0), toy)
    norms = [sum(t.square().sum() for t in model.values()) for model in (plain[0], decayed[0])]
    assert norms[1] < norms[0]


def test_optimizer_settings_of_the_run_are_not_used():
    toy = TOYS["even"]
    assert same(models(PFedMe(), toy), models(PFedMe(), toy.changed(optimizer="sgd", lr=7.0, momentum=0.9)))


@pytest.mark.usefixtures("with_batch_norm")
def test_batch_statistics_come_from_theta_and_are_not_extrapolated():
    federation, sent = uploads(PFedMe(beta=2.0), TOYS["even"])
    for client in federation.state.clients:
        assert torch.equal(sent[client.id]["body.2.running_var"], client.state["personal"]["body.2.running_var"])
        assert sent[client.id]["body.2.running_var"] is not client.state["personal"]["body.2.running_var"]
    model = server_model(PFedMe(beta=2.0), TOYS["even"], rounds=1)
    server = InProcessServer(seed=0, device=CPU)
    FedAvg().aggregate(server, {c: {"model": m} for c, m in sent.items()}, federation.ctx)
    mean = server.state["model"]
    assert torch.equal(model["body.2.running_var"], mean["body.2.running_var"])
    assert not torch.equal(model["body.1.weight"], mean["body.1.weight"])


def test_overshooting_step_sizes_are_refused():
    with pytest.raises(ValueError, match="overshoots"):
        PFedMe(mu=30.0, lr=0.1)
