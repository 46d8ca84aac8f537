"""FedPer."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedper import FedPer
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import by_hand_descent, by_hand_mean, full_batch_toy
from tests.toys import TOYS, close, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
HEAD = {"head.weight", "head.bias"}


class EmptyHead(FedPer):
    """No entry stays with the client."""

    def local_parameter_names(self, ctx):
        return FedAvg.local_parameter_names(self, ctx)


class EverythingLocal(FedPer):
    """Every entry stays with the client."""

    def local_parameter_names(self, ctx):
        return frozenset(ctx.initial_model)


class AveragesHeads(FedPer):
    """Wrong: heads are uploaded and averaged like bodies, and then evaluated."""

    def local_parameter_names(self, ctx):
        return frozenset()


class ForgetsHead(FedPer):
    """Wrong: every round starts with the initial head."""

    def make_upload(self, client, model, ctx):
        upload = super().make_upload(client, model, ctx)
        client.state["kept"] = params.clone(params.select(ctx.initial_model, HEAD))
        return upload


@EVERY_TOY
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_without_a_head_it_equals_fedavg(toy, policy):
    changed = toy.changed(bn_buffers=policy)
    assert same(models(EmptyHead(), changed), models(FedAvg(), changed))


@EVERY_TOY
def test_with_everything_in_the_head_it_equals_local_training(toy):
    common = toy.changed(init="common")
    assert same(models(EverythingLocal(), common), models(Local(), common))
    if len(toy.partition.shards) > 1:
        assert not same(models(FedPer(), common), models(Local(), common))
        assert not same(models(FedPer(), common), models(FedAvg(), common))


def test_clients_share_the_body_and_have_their_own_heads():
    federation = run_toy(FedPer(), TOYS["uneven"])
    shared, personal = federation.state.server.state["model"], personal_models(federation)
    for client, model in personal.items():
        assert shared.keys() == model.keys() - HEAD
        assert all(torch.equal(model[name], tensor) for name, tensor in shared.items())
        assert same([params.select(model, HEAD)], [federation.state.clients[client].state["kept"]])
    assert not torch.equal(personal[0]["head.weight"], personal[1]["head.weight"])


def test_client_that_is_not_sampled_keeps_its_head():
    federation = TOYS["even"].changed(clients_per_round=1).federation(FedPer())
    with federation.worker_pool:
        heads = [params.clone(client.state["kept"]) for client in federation.state.clients]
        for done in run_rounds(federation, 3):
            trained = {row["client"] for row in done.rows if row["loss_private"] is not None}
            for client, before in zip(federation.state.clients, heads, strict=True):
                assert same([client.state["kept"]], [before]) is (client.id not in trained)
            heads = [params.clone(client.state["kept"]) for client in federation.state.clients]


def test_only_the_body_is_sent_and_counted():
    federation = TOYS["even"].federation(FedPer())
    with federation.worker_pool:
        rows = next(run_rounds(federation, 1)).rows
    body = 64 * (4 * 3 + 3)
    assert {(row["bits_up"], row["bits_down"]) for row in rows} == {(body, body)}
    assert planned_traffic(FedPer(), federation.ctx).uplink_bits == body


def oracle(toy, rounds):
    """Return personal models after plain gradient steps on all examples and averages of bodies by size."""
    federation = toy.federation(FedPer())
    clients, initial = federation.state.clients, federation.ctx.initial_model
    copies = [initial for _ in clients]
    for _ in range(rounds):
        trained = [
            by_hand_descent(client, copy, toy.train["local_steps"], toy.train["lr"])
            for client, copy in zip(clients, copies, strict=True)
        ]
        mean = by_hand_mean(trained, [len(client.private) for client in clients])
        copies = [{name: own[name] if name in HEAD else mean[name] for name in own} for own in trained]
    return copies


def test_rounds_equal_a_computation_by_hand():
    toy = full_batch_toy()
    expected = oracle(toy, rounds=3)
    assert close(models(FedPer(), toy), expected)
    for wrong in (AveragesHeads(), ForgetsHead()):
        assert not close(models(wrong, toy), expected, 1e-6)


def test_averaged_heads_are_fedavg():
    assert same(models(AveragesHeads(), TOYS["uneven"]), models(FedAvg(), TOYS["uneven"]))


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_running_statistics_follow_the_policy(policy):
    federation = run_toy(FedPer(), TOYS["even"].changed(bn_buffers=policy))
    statistics = federation.ctx.group("buffers")
    kept = [client.state["kept"] for client in federation.state.clients]
    assert all(own.keys() == HEAD | (frozenset() if policy == "average" else statistics) for own in kept)
    means = [model["body.2.running_mean"] for model in personal_models(federation).values()]
    assert torch.equal(means[0], means[1]) is (policy == "average")
    if policy == "drop":
        # Rounds start with initial statistics; those of the evaluation come from the client's data.
        initial = federation.ctx.initial_model["body.2.running_mean"]
        assert all(torch.equal(own["body.2.running_mean"], initial) for own in kept)
        assert not any(torch.equal(mean, initial) for mean in means)
