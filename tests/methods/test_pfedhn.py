"""pFedHN."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.pfedhn import PFedHN
from tests.methods.problems import by_hand_descent, full_batch_toy
from tests.toys import TOYS, close, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
PLAIN = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "max_grad_norm": 1e30}


class OneHot(PFedHN):
    """Without hidden layers, with fixed one-hot embeddings and fixed biases, every client has a free model."""

    def init_server(self, server, ctx):
        super().init_server(server, ctx)
        network = server.state["hypernetwork"]
        network["embeddings"] = torch.eye(len(ctx.client_sizes), dtype=network["embeddings"].dtype)
        network |= {name: 0 * tensor for name, tensor in network.items() if name.endswith(".weight")}

    def hypernetwork_step(self, server, gradient):
        super().hypernetwork_step(server, {n: g if n.endswith(".weight") else 0 * g for n, g in gradient.items()})


class WrongSign(PFedHN):
    """Wrong: the hypernetwork moves away from the trained models."""

    def aggregate(self, server, uploads, ctx):
        super().aggregate(server, {c: {"change": params.scaled(u["change"], -1)} for c, u in uploads.items()}, ctx)


class ForgetsMomentum(PFedHN):
    """Wrong: the momentum starts at 0 for every upload."""

    def hypernetwork_step(self, server, gradient):
        server.state["momentum"] = params.zeros_like(server.state["momentum"])
        super().hypernetwork_step(server, gradient)


class OneStepPerRound(PFedHN):
    """Wrong: the gradients of all uploads are taken at the same hypernetwork."""

    def aggregate(self, server, uploads, ctx):
        start, total = server.state["hypernetwork"], params.zeros_like(server.state["hypernetwork"])
        for client, upload in uploads.items():
            server.state["hypernetwork"] = start
            super().aggregate(server, {client: upload}, ctx)
            total = params.add_scaled(total, params.add_scaled(server.state["hypernetwork"], start, -1), 1)
        server.state["hypernetwork"] = params.add_scaled(start, total, 1)


@EVERY_TOY
def test_with_one_free_model_per_client_it_equals_local_training(toy):
    """The gradient of a client's free model is the negative change, so a step of length 1 leads to the trained one."""
    common, num_clients = toy.changed(init="common"), len(toy.partition.shards)
    method = OneHot(embedding_dim=num_clients, hidden_layers=0, **PLAIN)
    assert close(models(method, common), models(Local(), common))
    shorter = OneHot(embedding_dim=num_clients, hidden_layers=0, **{**PLAIN, "lr": 0.9})
    assert not close(models(shorter, common), models(Local(), common), 1e-6)


@pytest.mark.parametrize(("weight_decay", "is_unchanged"), [(0.0, True), (0.1, False)])
def test_without_changes_and_weight_decay_the_hypernetwork_is_unchanged(weight_decay, is_unchanged):
    federation = TOYS["even"].federation(PFedHN(weight_decay=weight_decay))
    server, before = federation.state.server, params.clone(federation.state.server.state["hypernetwork"])
    nothing = {"change": params.zeros_like(federation.ctx.initial_model)}
    federation.method.aggregate(server, dict.fromkeys(range(3), nothing), federation.ctx)
    assert same([server.state["hypernetwork"]], [before]) is is_unchanged


def test_clients_start_near_the_initial_model_but_not_at_the_same_model():
    federation = TOYS["even"].federation(PFedHN())
    first, second, _ = personal_models(federation).values()
    assert close([first], [federation.ctx.initial_model], 0.1)
    assert not close([first], [second], 1e-6)


def test_embedding_has_the_size_of_the_paper_unless_it_is_given():
    for method, size in ((PFedHN(), 1), (PFedHN(embedding_dim=7), 7)):
        network = TOYS["even"].federation(method).state.server.state["hypernetwork"]
        assert network["embeddings"].shape == (3, size)


def test_large_gradients_are_scaled_to_the_largest_norm():
    federation = TOYS["even"].federation(PFedHN(max_grad_norm=0.5, momentum=0.0, weight_decay=0.0, lr=1.0))
    server = federation.state.server
    for scale, norm in ((1e-3, None), (1e3, 0.5)):
        before = server.state["hypernetwork"]
        change = {name: torch.full_like(tensor, scale) for name, tensor in federation.ctx.initial_model.items()}
        federation.method.aggregate(server, {0: {"change": change}}, federation.ctx)
        moved = params.squared_distance(server.state["hypernetwork"], before) ** 0.5
        assert moved == pytest.approx(norm) if norm else 0 < moved < 0.5


@pytest.mark.usefixtures("with_batch_norm")
def test_running_statistics_stay_with_the_client():
    federation = TOYS["even"].federation(PFedHN())
    with federation.worker_pool:
        row = next(run_rounds(federation, 1)).rows[0]
    statistics = federation.ctx.group("buffers")
    weights = sum(t.numel() for name, t in federation.ctx.initial_model.items() if name not in statistics)
    assert row["bits_up"] == row["bits_down"] == 64 * weights
    for client, model in personal_models(federation).items():
        assert same([params.select(model, statistics)], [federation.state.clients[client].state["buffers"]])
    means = [client.state["buffers"]["body.2.running_mean"] for client in federation.state.clients]
    assert not torch.equal(means[0], means[1])


def oracle(method, toy, rounds):
    """Return the generated models: torch's SGD on the inner product of generated model and start minus end."""
    federation = toy.federation(method)
    ctx, clients = federation.ctx, federation.state.clients
    network = {n: t.clone().requires_grad_() for n, t in federation.state.server.state["hypernetwork"].items()}
    optimizer = torch.optim.SGD(network.values(), method.lr, method.momentum, weight_decay=method.weight_decay)

    def generate(client):
        code = network["embeddings"][client]
        for layer in range(method.hidden_layers):
            code = torch.relu(network[f"hidden{layer}.weight"] @ code + network[f"hidden{layer}.bias"])
        flat = {n: network[f"output.{n}.weight"] @ code + network[f"output.{n}.bias"] for n in ctx.initial_model}
        return {name: tensor.view(ctx.initial_model[name].shape) for name, tensor in flat.items()}

    for _ in range(rounds):
        starts = [{n: t.detach() for n, t in generate(client.id).items()} for client in clients]
        steps, lr = toy.train["local_steps"], toy.train["lr"]
        ends = [by_hand_descent(client, start, steps, lr) for client, start in zip(clients, starts, strict=True)]
        for client, start, end in zip(clients, starts, ends, strict=True):
            optimizer.zero_grad()
            sum((tensor * (start[n] - end[n])).sum() for n, tensor in generate(client.id).items()).backward()
            optimizer.step()
    return [{n: t.detach() for n, t in generate(client.id).items()} for client in clients]


@pytest.mark.parametrize("hidden_layers", [0, 2])
def test_rounds_equal_a_computation_by_hand(hidden_layers):
    options = {"hidden_layers": hidden_layers, "hidden": 8, "lr": 0.1, "embedding_dim": 4, "weight_decay": 0.01}
    toy = full_batch_toy()
    expected = oracle(PFedHN(**options), toy, 3)
    assert close(models(PFedHN(**options), toy), expected)
    for wrong in (WrongSign(**options), ForgetsMomentum(**options), OneStepPerRound(**options)):
        assert not close(models(wrong, toy), expected, 1e-6)


def test_generated_model_is_evaluated_and_not_the_trained_one():
    federation = run_toy(PFedHN(), TOYS["uneven"])
    network = federation.state.server.state["hypernetwork"]
    generated = [federation.method.generated_model(network, client, federation.ctx) for client in range(3)]
    assert same(list(personal_models(federation).values()), generated)
