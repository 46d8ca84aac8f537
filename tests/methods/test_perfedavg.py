"""Per-FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from tests.methods.problems import WEIGHT, normal_equations, quadratic_toy, server_model, uploads
from tests.toys import TOYS, close, models, personal_models, run_toy, same, with_other_pixels

VERSIONS = pytest.mark.parametrize("version", ["first-order", "hessian-free"])


class AdaptsOnTestData(PerFedAvg):
    """Wrong: adapts on test data, as a published repository does."""

    def personal_model(self, client, received):
        test = client.tests
        loss = torch.nn.functional.cross_entropy
        module = client.learner.bound_module(received["model"])
        gradients = torch.autograd.grad(loss(module(test.inputs(slice(None))), test.labels), list(module.parameters()))
        names = [name for name, _ in module.named_parameters()]
        return params.add_scaled(received["model"], dict(zip(names, gradients, strict=True)), -self.alpha)


class AdaptsForAnEpoch(PerFedAvg):
    """Wrong: fine-tunes for an epoch instead of one step, as another repository does."""

    def personal_model(self, client, received):
        model = received["model"]
        for step in client.steps():
            model = params.add_scaled(model, step.gradient(model, update_running_stats=False), -self.alpha)
        return model


@VERSIONS
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_without_inner_step_it_equals_fedavg_with_learning_rate_beta(toy, version):
    method = PerFedAvg(alpha=0.0, beta=0.03, version=version)
    assert same(models(method, toy), models(FedAvg(), toy.changed(lr=0.03)))
    other = PerFedAvg(alpha=0.5, beta=0.03, version=version)
    assert not same(models(other, toy), models(FedAvg(), toy.changed(lr=0.03)))


@VERSIONS
def test_without_outer_step_the_model_never_changes(version):
    """Also if the learning rate of the run is not 0: the outer step uses beta only."""
    method = PerFedAvg(beta=0.0, version=version)
    federation, sent = uploads(method, TOYS["even"])
    assert same(list(sent.values()), [federation.ctx.initial_model] * 3)
    assert close([server_model(method, TOYS["even"])], [federation.ctx.initial_model])


@pytest.mark.usefixtures("quadratic")
def test_first_order_and_hessian_free_differ_by_the_curvature_term():
    """grad F(w - alpha grad F(w)) is (I - alpha A) times the gradient at the inner point; first order omits A."""
    alpha, beta = 0.3, 0.2
    for version in ("first-order", "hessian-free"):
        method = PerFedAvg(alpha=alpha, beta=beta, version=version)
        federation, sent = uploads(method, quadratic_toy())
        start = federation.ctx.initial_model[WEIGHT]
        for client in federation.state.clients:
            a, b = normal_equations(client)
            inner = start - alpha * (start @ a - b)
            slope = inner @ a - b
            if version == "hessian-free":
                slope = slope - alpha * slope @ a
            assert torch.allclose(sent[client.id][WEIGHT], start - beta * slope, rtol=0, atol=1e-10)


def test_hessian_vector_product_equals_autograd():
    method = PerFedAvg(alpha=0.3, version="hessian-free", delta=1e-5)
    federation = TOYS["even"].federation(method)
    client = federation.state.clients[0]
    client.begin_round(1)
    step = next(iter(client.steps("curvature")))
    model = federation.ctx.initial_model
    direction = step.gradient(model)
    ours = method.hessian_vector_product(step, model, direction)
    positions = client._private_batches("curvature")[0]
    module = client.learner.bound_module(model)
    loss = torch.nn.functional.cross_entropy(module(client.private.inputs(positions)), client.private.labels[positions])
    parameters = list(module.parameters())
    slope = torch.autograd.grad(loss, parameters, create_graph=True)
    inner = sum((g * direction[name]).sum() for g, (name, _) in zip(slope, module.named_parameters(), strict=True))
    for exact, name in zip(torch.autograd.grad(inner, parameters), ours, strict=True):
        assert torch.allclose(ours[name], exact, rtol=0, atol=1e-7)


@VERSIONS
def test_step_on_three_independent_batches_equals_a_manual_computation(version):
    """With minibatches and a curvature that depends on the weights."""
    alpha, beta, delta = 0.5, 0.2, 1e-3
    method = PerFedAvg(alpha=alpha, beta=beta, delta=delta, version=version)
    federation, sent = uploads(method, TOYS["even"].changed(optimizer="sgd", local_steps=2))
    for client in federation.state.clients:
        w = federation.ctx.initial_model
        for step in client.steps("inner", "curvature"):
            outer = step.gradient(params.add_scaled(w, step.gradient(w, "inner"), -alpha), "private")
            if version == "hessian-free":
                ahead = step.gradient(params.add_scaled(w, outer, delta), "curvature")
                behind = step.gradient(params.add_scaled(w, outer, -delta), "curvature")
                outer = {n: g - alpha * (ahead[n] - behind[n]) / (2 * delta) for n, g in outer.items()}
            w = params.add_scaled(w, outer, -beta)
        assert close([sent[client.id]], [w], 1e-13)
        batches = [torch.cat(client._private_batches(name)) for name in ("private", "inner", "curvature")]
        assert len({tuple(batch.tolist()) for batch in batches}) == 3


def test_adaptation_is_one_step_on_training_data():
    toy, method = TOYS["uneven"], PerFedAvg(alpha=0.5)
    federation = run_toy(method, toy)
    model = federation.state.server.state["model"]
    for client in federation.state.clients:
        gradient = client.gradient(model, "adaptation")
        expected = {name: model[name] - 0.5 * gradient[name] for name in model}
        assert same([method.personal_model(client, ServerView(federation).for_client(client))], [expected])
    wrong = AdaptsForAnEpoch(alpha=0.5)
    assert not same(list(personal_models(federation).values()), models(wrong, toy))


def test_adapting_on_test_data_is_detected():
    toy = TOYS["even"]
    other = toy.changed(dataset=with_other_pixels(toy.dataset, np.concatenate([s.test for s in toy.partition.shards])))

    def adapted(method, toy):
        federation = toy.federation(method)
        for client, task in zip(federation.state.clients, federation.eval_tasks, strict=True):
            client.tests = task.test
        with federation.worker_pool:
            list(run_rounds(federation, 2))
        return list(personal_models(federation).values())

    assert same(adapted(PerFedAvg(), toy), adapted(PerFedAvg(), other))
    assert not same(adapted(AdaptsOnTestData(), toy), adapted(AdaptsOnTestData(), other))


@VERSIONS
@pytest.mark.usefixtures("with_batch_norm")
def test_inner_steps_do_not_change_running_statistics(version):
    federation, sent = uploads(PerFedAvg(alpha=0.5, version=version), TOYS["even"])
    batches = TOYS["even"].train["local_steps"]
    assert all(model["body.2.num_batches_tracked"].item() == batches for model in sent.values())
    before = params.clone(federation.state.server.state["model"])
    personal = federation.method.personal_model(
        federation.state.clients[0], ServerView(federation).for_client(federation.state.clients[0])
    )
    assert same([before], [federation.state.server.state["model"]])
    assert torch.equal(personal["body.2.running_mean"], before["body.2.running_mean"])


@pytest.mark.usefixtures("with_batch_norm")
def test_client_with_one_example_does_not_adapt_with_batch_norm():
    federation = TOYS["tiny"].federation(PerFedAvg(alpha=0.5))
    [client] = federation.state.clients[:1]
    model = federation.method.personal_model(client, ServerView(federation).for_client(client))
    assert same([model], [federation.state.server.state["model"]])
