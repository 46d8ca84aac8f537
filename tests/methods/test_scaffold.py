"""SCAFFOLD."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.scaffold import Scaffold, zero_control
from tests.methods.problems import (
    WEIGHT,
    by_hand_descent,
    by_hand_gradient,
    by_hand_mean,
    full_batch_toy,
    normal_equations,
    quadratic_toy,
    server_model,
    uploads,
)
from tests.toys import TOYS, close, models, run_toy, same

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1, "aggregation": "uniform"}
EVERY_TOY = pytest.mark.parametrize("toy", [toy.changed(**PLAIN) for toy in TOYS.values()], ids=TOYS)


class LosesOwnControl(Scaffold):
    """Wrong: c_i is not stored, so it is 0 in every round."""

    def local_round(self, client, received, ctx):
        message = super().local_round(client, received, ctx)
        client.state["control"] = zero_control(ctx)
        return message


class WithoutControl(LosesOwnControl):
    """All control variates stay 0."""

    def aggregate(self, server, uploads, ctx):
        super().aggregate(server, uploads, ctx)
        server.state["control"] = zero_control(ctx)


class DividesByParticipants(Scaffold):
    """Wrong: c changes by the mean over the participants instead of over all clients."""

    def aggregate(self, server, uploads, ctx):
        control = server.state["control"]
        super().aggregate(server, uploads, ctx)
        mean = params.weighted_mean([upload["control"] for upload in uploads.values()], [1.0] * len(uploads))
        server.state["control"] = params.add_scaled(control, mean, 1)


@EVERY_TOY
def test_first_round_equals_fedavg_with_equal_weights(toy):
    assert same(models(Scaffold(), toy, rounds=1), models(FedAvg(), toy, rounds=1))
    assert same(models(WithoutControl(), toy), models(FedAvg(), toy))
    if len(toy.partition.shards) > 1:
        assert not same(models(Scaffold(), toy, rounds=2), models(FedAvg(), toy, rounds=2))


def test_models_have_equal_weights_whatever_their_number_of_examples():
    by_size = TOYS["uneven"].changed(**{**PLAIN, "aggregation": "samples"})
    assert same(models(Scaffold(), by_size), models(Scaffold(), TOYS["uneven"].changed(**PLAIN)))


def test_one_client_equals_local_training():
    toy = TOYS["alone"].changed(**PLAIN, init="common")
    assert same(models(Scaffold(), toy), models(Local(), toy))


@pytest.mark.parametrize("clients_per_round", [1, 2, 3])
def test_control_of_the_server_is_the_mean_over_all_clients(clients_per_round):
    """Also with sampled clients: c and c_i change by the same amounts."""

    def distances(method):
        federation = TOYS["uneven"].changed(**PLAIN, clients_per_round=clients_per_round).federation(method)
        with federation.worker_pool:
            for _ in run_rounds(federation, 3):
                own = [client.state["control"] for client in federation.state.clients]
                mean = by_hand_mean(own, [1.0] * len(own))
                yield params.squared_distance(mean, federation.state.server.state["control"]) ** 0.5

    assert max(distances(Scaffold())) < 1e-14
    assert (max(distances(DividesByParticipants())) > 1e-3) is (clients_per_round < 3)
    assert max(distances(LosesOwnControl())) > 1e-3


def test_with_one_full_step_the_control_is_the_gradient_at_the_received_model():
    toy = full_batch_toy(local_steps=1, aggregation="uniform")
    federation = toy.federation(Scaffold())
    with federation.worker_pool:
        received = federation.ctx.initial_model
        for _ in run_rounds(federation, 3):
            for client in federation.state.clients:
                assert close([client.state["control"]], [by_hand_gradient(client, received)])
            received = params.clone(federation.state.server.state["model"])
    # The corrections cancel in the mean, so that the server's model is that of FedAvg.
    assert close([received], [server_model(FedAvg(), toy)])


def test_control_uses_the_number_of_steps_of_each_client():
    toy = TOYS["uneven"].changed(**PLAIN, local_steps=None, local_epochs=2)
    federation, sent = uploads(FedAvg(), toy)
    ours = run_toy(Scaffold(), toy, rounds=1).state.clients
    for client, model in sent.items():
        num_steps = 2 * -(-federation.ctx.client_sizes[client] // 4)
        moved = params.add_scaled(federation.ctx.initial_model, model, -1)
        assert close([ours[client].state["control"]], [params.scaled(moved, 1 / (num_steps * 0.1))])


def test_step_of_the_server_is_scaled_by_its_learning_rate():
    toy = TOYS["even"].changed(**PLAIN)
    start, mean = toy.federation(FedAvg()).ctx.initial_model, server_model(FedAvg(), toy, rounds=1)
    moved = server_model(Scaffold(server_lr=0.4), toy, rounds=1)
    assert close([moved], [{name: start[name] + 0.4 * (mean[name] - start[name]) for name in start}])


@pytest.mark.usefixtures("quadratic")
def test_it_converges_to_the_joint_minimum_and_fedavg_does_not():
    toy = quadratic_toy(local_steps=8, lr=0.8, aggregation="uniform")
    equations = [normal_equations(client) for client in toy.federation(FedAvg()).state.clients]
    minimum = torch.linalg.solve(sum(a for a, _ in equations), sum(b for _, b in equations), left=False)

    def distance(method, rounds):
        return (server_model(method, toy, rounds)[WEIGHT] - minimum).abs().max().item()

    assert distance(Scaffold(), rounds=100) < 1e-5
    assert distance(FedAvg(), rounds=40) > 0.1
    assert distance(LosesOwnControl(), rounds=40) > 0.1


def oracle(toy, rounds, server_lr):
    """Return the server's model after plain full-batch steps g - c_i + c, with control variates of option II."""
    federation = toy.federation(FedAvg())
    clients, shared, lr = federation.state.clients, federation.ctx.initial_model, toy.train["lr"]
    steps, zero = toy.train["local_steps"], {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
    common, own = zero, {client.id: zero for client in clients}
    for _ in range(rounds):
        copies, new = [], {}
        for client in clients:
            correction = {name: common[name] - own[client.id][name] for name in common}
            copy = by_hand_descent(client, shared, steps, lr, correction=correction)
            new[client.id] = {n: (shared[n] - copy[n]) / (steps * lr) - correction[n] for n in copy}
            copies.append(copy)
        common = {n: common[n] + sum(new[c][n] - own[c][n] for c in own) / len(own) for n in common}
        mean, own = by_hand_mean(copies, [1.0] * len(copies)), new
        shared = {name: shared[name] + server_lr * (mean[name] - shared[name]) for name in shared}
    return shared


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_rounds_equal_a_computation_by_hand(server_lr):
    toy = full_batch_toy(local_steps=3)
    expected = oracle(toy, 3, server_lr)
    assert close([server_model(Scaffold(server_lr=server_lr), toy)], [expected])
    assert not close([server_model(LosesOwnControl(server_lr=server_lr), toy)], [expected], 1e-6)


@pytest.mark.usefixtures("with_batch_norm")
def test_running_statistics_have_no_control_variate():
    federation = run_toy(Scaffold(), TOYS["even"].changed(**PLAIN))
    trained = federation.ctx.initial_model.keys() - federation.ctx.group("buffers")
    assert federation.state.server.state["control"].keys() == trained
    both, model = (planned_traffic(method, federation.ctx).uplink_bits for method in (Scaffold(), FedAvg()))
    assert both == 2 * model - 64 * 7, "three means, three variances and a counter"


def test_messages_are_twice_as_large_as_those_of_fedavg():
    ctx = TOYS["even"].federation(Scaffold()).ctx
    ours, fedavg = planned_traffic(Scaffold(), ctx), planned_traffic(FedAvg(), ctx)
    assert (ours.uplink_bits, ours.downlink_bits) == (2 * fedavg.uplink_bits, 2 * fedavg.downlink_bits)
