"""pFedMe."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.pfedme import PFedMe
from tests.methods.problems import WEIGHT, pulled_optimum, quadratic_toy, server_model, uploads
from tests.toys import TOYS, close, models, personal_models, run_toy, same


class Alias(PFedMe):
    """The personal list is the live one, so what is evaluated is the model that was loaded last: the global one."""

    def personal_model(self, server, client):
        return server["model"]


class NeverUpdated(PFedMe):
    """The personal dictionary is never written: the initial weights are evaluated."""

    def train_local_model(self, client, received):
        before = client.state["personal"]
        super().train_local_model(client, received)
        client.state["personal"] = before


def test_without_its_pull_the_global_model_rests_and_theta_goes_its_own_way():
    toy, method = TOYS["uneven"], PFedMe(mu=0.0, inner_steps=2, inner_lr=0.1)
    federation = run_toy(method, toy)
    assert same([federation.state.server["model"]], [federation.ctx.initial_model])
    for client in federation.state.clients:
        theta = federation.ctx.initial_model
        for step in client.steps():
            for _ in range(2):
                theta = params.add_scaled(theta, step.gradient(theta), -0.1)
        assert close([client.state["personal"]], [theta], 1e-14)


def test_a_full_step_takes_the_copy_to_theta():
    federation, sent = uploads(PFedMe(mu=10.0, lr=0.1))
    for client in federation.state.clients:
        assert close([sent[client.id]], [client.state["personal"]])
    federation, sent = uploads(PFedMe(mu=10.0, lr=0.05))
    for client in federation.state.clients:
        assert not close([sent[client.id]], [client.state["personal"]], 1e-6)


def test_the_server_mixes_the_mean_in():
    toy = TOYS["uneven"]
    start = toy.federation(PFedMe()).ctx.initial_model
    assert same([server_model(PFedMe(beta=0.0), toy)], [start])
    _, sent = uploads(PFedMe(), toy)
    mean = params.weighted_mean(list(sent.values()), [3, 6, 11])
    assert same([server_model(PFedMe(beta=1.0), toy, rounds=1)], [mean])
    half = {name: (start[name] + mean[name]) / 2 for name in start}
    assert close([server_model(PFedMe(beta=0.5), toy, rounds=1)], [half])


@pytest.mark.usefixtures("quadratic")
def test_enough_inner_steps_find_the_envelope_s_centre():
    method = PFedMe(mu=2.0, inner_steps=800, inner_lr=0.1, lr=0.1)
    federation, sent = uploads(method, quadratic_toy())
    start = federation.ctx.initial_model[WEIGHT]
    for client in federation.state.clients:
        centre = pulled_optimum(client, start, 2.0)
        assert torch.allclose(client.state["personal"][WEIGHT], centre, rtol=0, atol=1e-10)
        assert torch.allclose(sent[client.id][WEIGHT], start - 0.2 * (start - centre), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("quadratic")
def test_theta_is_pulled_towards_the_copy_as_it_moves():
    """In the second step towards w_1, not towards what was received."""
    method = PFedMe(mu=2.0, inner_steps=800, inner_lr=0.1, lr=0.1)
    federation, _ = uploads(method, quadratic_toy(local_steps=2))
    start = federation.ctx.initial_model[WEIGHT]
    for client in federation.state.clients:
        moved = start - 0.2 * (start - pulled_optimum(client, start, 2.0))
        second = pulled_optimum(client, moved, 2.0)
        assert torch.allclose(client.state["personal"][WEIGHT], second, rtol=0, atol=1e-10)
        assert not torch.allclose(second, pulled_optimum(client, start, 2.0), rtol=0, atol=1e-4)


def test_theta_is_examined_and_is_neither_the_copy_nor_the_global_model():
    toy = TOYS["uneven"]
    federation = run_toy(PFedMe(), toy)
    ours = list(personal_models(federation).values())
    for client, model in zip(federation.state.clients, ours, strict=True):
        assert model is client.state["personal"]
        assert not same([model], [federation.state.server["model"]])
    assert not same(ours, models(Alias(), toy))
    assert same(models(NeverUpdated(), toy), [federation.ctx.initial_model] * 3)


def test_hidden_weight_decay_is_an_option_that_shrinks():
    toy = TOYS["even"]
    plain, decayed = models(PFedMe(), toy), models(PFedMe(weight_decay=5.0), toy)
    norms = [sum(t.square().sum() for t in model.values()) for model in (plain[0], decayed[0])]
    assert norms[1] < norms[0]


def test_the_run_s_optimizer_has_no_part_in_it():
    toy = TOYS["even"]
    assert same(models(PFedMe(), toy), models(PFedMe(), toy.changed(optimizer="sgd", lr=7.0, momentum=0.9)))


@pytest.mark.usefixtures("with_batch_norm")
def test_statistics_are_theta_s_and_never_extrapolated():
    federation, sent = uploads(PFedMe(beta=2.0), TOYS["even"])
    for client in federation.state.clients:
        assert torch.equal(sent[client.id]["body.2.running_var"], client.state["personal"]["body.2.running_var"])
        assert sent[client.id]["body.2.running_var"] is not client.state["personal"]["body.2.running_var"]
    model = server_model(PFedMe(beta=2.0), TOYS["even"], rounds=1)
    mean = FedAvg().aggregate({}, {c: {"model": m} for c, m in sent.items()}, federation.ctx)["model"]
    assert torch.equal(model["body.2.running_var"], mean["body.2.running_var"])
    assert not torch.equal(model["body.1.weight"], mean["body.1.weight"])


def test_steps_that_overshoot_are_refused():
    with pytest.raises(ValueError, match="overshoots"):
        PFedMe(mu=30.0, lr=0.1)
