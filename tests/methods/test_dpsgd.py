"""D-PSGD and the graphs of decentralised methods."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.peers import neighbors
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.methods.dpsgd import DPSGD
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import by_hand_descent, by_hand_mean, full_batch_toy, server_model
from tests.toys import TOYS, close, make_toy, models, same

TOPOLOGIES = ("ring", "complete")
WEIGHTS = 64 * 27


class NeighborsOnly(DPSGD):
    """Wrong: a client replaces its model by the mean of its neighbours' models, without its own."""

    def local_round(self, client, received, ctx):
        if received:
            others = list(received["model"].values())
            client.state["model"] = params.weighted_mean(others, [1.0] * len(others))
        return super().local_round(client, {}, ctx)


class MixesAfterTraining(DPSGD):
    """Wrong: a client mixes after its steps, with models from before the neighbours' steps."""

    def local_round(self, client, received, ctx):
        client.train("model")
        others = list(received.get("model", {}).values())
        client.state["model"] = params.weighted_mean([client.state["model"], *others], [1.0] * (1 + len(others)))
        return {"model": client.state["model"]}


def test_neighbours_in_a_ring_and_in_a_complete_graph():
    assert [neighbors(client, 5, "ring") for client in range(5)] == [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
    assert [neighbors(client, 2, "ring") for client in range(2)] == [[1], [0]]
    assert [neighbors(client, 4, "complete") for client in range(2)] == [[1, 2, 3], [0, 2, 3]]
    assert neighbors(0, 1, "ring") == neighbors(0, 1, "complete") == []


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_client_equals_local_training(topology):
    toy = TOYS["alone"].changed(init="common")
    assert same(models(DPSGD(topology=topology), toy), models(Local(), toy))


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_first_round_equals_local_training_from_a_common_start(toy):
    common = toy.changed(init="common")
    assert same(models(DPSGD(), toy, rounds=1), models(Local(), common, rounds=1))
    if len(toy.partition.shards) > 1:
        assert not same(models(DPSGD(), toy, rounds=2), models(Local(), common, rounds=2))


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.5), ("adam", 0.0)])
def test_on_a_complete_graph_the_mean_equals_fedavg_with_equal_weights(optimizer, momentum):
    toy = TOYS["uneven"].changed(optimizer=optimizer, momentum=momentum, lr=0.05, aggregation="uniform")
    own = models(DPSGD(topology="complete"), toy)
    assert close([by_hand_mean(own, [1.0] * 3)], [server_model(FedAvg(), toy)])


def mixed_models(method, num_clients, monkeypatch):
    """Return random models, and those after two rounds without training: in the second one they are mixed."""
    monkeypatch.setattr(InProcessClient, "train", lambda *_, **__: None)
    federation = make_toy([4] * num_clients).federation(method)
    before = []
    for client in federation.state.clients:
        random = torch.Generator().manual_seed(client.id)
        for tensor in client.state["model"].values():
            tensor.normal_(generator=random)
        before.append(params.clone(client.state["model"]))
    with federation.worker_pool:
        list(run_rounds(federation, 2))
    return before, [client.state["model"] for client in federation.state.clients]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("num_clients", [2, 3, 5])
def test_mixing_keeps_the_mean_of_all_models(topology, num_clients, monkeypatch):
    before, after = mixed_models(DPSGD(topology=topology), num_clients, monkeypatch)
    equal = [1.0] * num_clients
    assert close([by_hand_mean(after, equal)], [by_hand_mean(before, equal)])
    for client, model in enumerate(after):
        group = sorted({client, *neighbors(client, num_clients, topology)})
        assert close([model], [by_hand_mean([before[other] for other in group], [1.0] * len(group))])


def test_leaving_out_the_own_model_is_detected(monkeypatch):
    before, after = mixed_models(NeighborsOnly(topology="complete"), 3, monkeypatch)
    assert not close(after[:1], [by_hand_mean(before, [1.0] * 3)], 1e-6)


@pytest.mark.parametrize(("topology", "degree"), [("ring", 2), ("complete", 4)])
def test_every_edge_is_counted(topology, degree):
    method = DPSGD(topology=topology)
    federation = make_toy([4] * 5).federation(method)
    with federation.worker_pool:
        sizes = [{(row["bits_up"], row["bits_down"]) for row in done.rows} for done in run_rounds(federation, 2)]
    assert sizes == [{(degree * WEIGHTS, 0)}, {(degree * WEIGHTS, degree * WEIGHTS)}]
    planned = planned_traffic(method, federation.ctx)
    assert (planned.uplink_bits, planned.downlink_bits) == (degree * WEIGHTS, degree * WEIGHTS)


def test_a_neighbour_is_represented_by_its_last_upload_or_by_the_client_itself():
    federation = make_toy([4] * 4).federation(DPSGD())
    server, ctx, method = federation.state.server, federation.ctx, federation.method
    assert method.broadcast(server, 0, ctx) == {}
    first, second = (params.scaled(ctx.initial_model, factor) for factor in (2.0, 5.0))
    method.aggregate(server, {1: {"model": first}, 2: {"model": first}}, ctx)
    method.aggregate(server, {2: {"model": second}}, ctx)
    assert method.broadcast(server, 0, ctx)["model"].keys() == {1}, "neighbour 3 has not sent a model yet"
    received = method.broadcast(server, 3, ctx)["model"]
    assert same([received[2]], [second])
    client = federation.state.clients[3]
    client.train = lambda *_: None
    method.local_round(client, {"model": received}, ctx)
    assert close([client.state["model"]], [params.scaled(ctx.initial_model, (1 + 1 + 5) / 3)])


def oracle(toy, rounds, topology):
    """Return models after rounds of equal-weight means over neighbourhoods and full-batch steps."""
    federation = toy.federation(Local())
    clients, count = federation.state.clients, len(toy.partition.shards)
    own = [federation.ctx.initial_model] * count
    for _ in range(rounds):
        groups = [
            [own[client], *(own[other] for other in neighbors(client, count, topology))] for client in range(count)
        ]
        starts = [by_hand_mean(group, [1.0] * len(group)) for group in groups]
        steps, lr = toy.train["local_steps"], toy.train["lr"]
        own = [by_hand_descent(client, start, steps, lr) for client, start in zip(clients, starts, strict=True)]
    return own


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rounds_equal_a_computation_by_hand(topology):
    toy = full_batch_toy((9, 5, 7, 6))
    expected = oracle(toy, 3, topology)
    assert close(models(DPSGD(topology=topology), toy), expected)
    for wrong in (NeighborsOnly(topology=topology), MixesAfterTraining(topology=topology), Local()):
        assert not close(models(wrong, toy), expected, 1e-6)
