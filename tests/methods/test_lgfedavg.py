"""LG-FedAvg."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedper import FedPer
from fedmosaic_cli.methods.lgfedavg import LGFedAvg
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import by_hand_descent, by_hand_mean, full_batch_toy
from tests.toys import TOYS, close, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
HEAD = {"head.weight", "head.bias"}


class EmptyBody(LGFedAvg):
    """No entry stays with the client."""

    def local_parameter_names(self, ctx):
        return FedAvg.local_parameter_names(self, ctx)


class EverythingLocal(LGFedAvg):
    """Every entry stays with the client."""

    def local_parameter_names(self, ctx):
        return frozenset(ctx.initial_model)


class SharesTheOtherPart(LGFedAvg):
    """Wrong: the body is averaged and the head stays."""

    def local_parameter_names(self, ctx):
        return ctx.group("head")


class AveragesBodies(LGFedAvg):
    """Wrong: bodies are averaged, too."""

    def local_parameter_names(self, ctx):
        return frozenset()


class TrainsHeadOnly(LGFedAvg):
    """Wrong: what is not shared is not trained."""

    def train_local_model(self, client, received):
        client.train("model", parameters=received.keys())


@EVERY_TOY
def test_without_a_body_it_equals_fedavg(toy):
    assert same(models(EmptyBody(), toy), models(FedAvg(), toy))


@EVERY_TOY
def test_with_everything_in_the_body_it_equals_local_training(toy):
    common = toy.changed(init="common")
    assert same(models(EverythingLocal(), common), models(Local(), common))
    if len(toy.partition.shards) > 1:
        assert not same(models(LGFedAvg(), common), models(Local(), common))


def test_one_client_equals_local_training():
    toy = TOYS["alone"].changed(init="common")
    assert same(models(LGFedAvg(), toy), models(Local(), toy))


def test_clients_share_the_head_and_have_their_own_bodies():
    federation = run_toy(LGFedAvg(), TOYS["uneven"])
    shared, personal = federation.state.server.state["model"], personal_models(federation)
    assert shared.keys() == HEAD
    for client, model in personal.items():
        assert same([params.select(model, HEAD)], [shared])
        assert same([params.exclude(model, HEAD)], [federation.state.clients[client].state["kept"]])
    assert not torch.equal(personal[0]["body.1.weight"], personal[1]["body.1.weight"])


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_running_statistics_belong_to_the_body_under_every_policy(policy):
    federation = run_toy(LGFedAvg(), TOYS["even"].changed(bn_buffers=policy))
    assert federation.state.server.state["model"].keys() == HEAD
    trained = [model["body.2.running_mean"] for model in personal_models(federation).values()]
    assert not torch.equal(trained[0], trained[1])
    assert all(
        torch.equal(client.state["kept"]["body.2.running_mean"], mean)
        for client, mean in zip(federation.state.clients, trained, strict=True)
    )


def test_head_and_body_together_have_the_size_of_the_model():
    federation = TOYS["even"].federation(LGFedAvg())
    head, body, whole = (planned_traffic(m, federation.ctx).uplink_bits for m in (LGFedAvg(), FedPer(), FedAvg()))
    assert head + body == whole
    with federation.worker_pool:
        rows = next(run_rounds(federation, 1)).rows
    assert {(row["bits_up"], row["bits_down"]) for row in rows} == {(head, head)} == {(64 * 12, 64 * 12)}


def oracle(toy, rounds):
    """Return personal models after plain gradient steps on all examples and averages of heads by size."""
    federation = toy.federation(LGFedAvg())
    clients = federation.state.clients
    copies = [federation.ctx.initial_model for _ in clients]
    for _ in range(rounds):
        trained = [
            by_hand_descent(client, copy, toy.train["local_steps"], toy.train["lr"])
            for client, copy in zip(clients, copies, strict=True)
        ]
        mean = by_hand_mean(trained, [len(client.private) for client in clients])
        copies = [{name: mean[name] if name in HEAD else own[name] for name in own} for own in trained]
    return copies


def test_rounds_equal_a_computation_by_hand():
    toy = full_batch_toy()
    expected = oracle(toy, rounds=3)
    assert close(models(LGFedAvg(), toy), expected)
    for wrong in (SharesTheOtherPart(), AveragesBodies(), TrainsHeadOnly()):
        assert not close(models(wrong, toy), expected, 1e-6)
