"""FedProto."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmosaic_cli.data.partitioning.partition import Shard
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedproto import COUNTS, MEANS, FedProto
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import by_hand_descent, by_hand_features, full_batch_toy
from tests.toys import TOYS, close, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class EqualWeights(FedProto):
    """Wrong: prototypes are averaged over clients without their numbers of examples."""

    def aggregate(self, server, uploads, ctx):
        for upload in uploads.values():
            upload["prototypes"]["counts"].clamp_(max=1)
        super().aggregate(server, uploads, ctx)


class PrototypesBeforeTraining(FedProto):
    """Wrong: prototypes are those of the model before training."""

    def local_round(self, client, received, ctx):
        features = client.private_features(client.state["model"])
        message = super().local_round(client, received, ctx)
        sums = torch.zeros_like(message["prototypes"]["means"]).index_add_(0, client.train_labels, features)
        message["prototypes"]["means"] = sums / message["prototypes"]["counts"].clamp(min=1)[:, None]
        return message


def trained_models(method, toy, rounds=3):
    return [client.state["model"] for client in run_toy(method, toy, rounds).state.clients]


def with_classes(toy, *classes):
    """Return a toy in which the first clients have training examples of these classes only."""
    shards = [
        Shard(shard.client, shard.train[np.isin(toy.dataset.labels[shard.train], own)], shard.test)
        for shard, own in zip(toy.partition.shards, classes, strict=True)
    ]
    return toy.changed(partition=type(toy.partition)(toy.partition.settings, 0, tuple(shards), toy.partition.public))


@EVERY_TOY
def test_without_the_distance_it_trains_as_local(toy):
    assert same(models(FedProto(mu=0.0, prediction="classifier"), toy), models(Local(), toy))
    assert same(trained_models(FedProto(mu=0.0), toy), models(Local(), toy))


@EVERY_TOY
def test_first_round_equals_local_training_because_there_are_no_prototypes(toy):
    assert same(trained_models(FedProto(mu=3.0), toy, rounds=1), models(Local(), toy, rounds=1))
    assert not same(trained_models(FedProto(mu=3.0), toy, rounds=2), models(Local(), toy, rounds=2))


def test_prediction_does_not_change_training():
    toy = TOYS["uneven"]
    assert same(trained_models(FedProto(), toy), models(FedProto(prediction="classifier"), toy))


def prototypes_by_hand(clients, given):
    """Return the mean features per class over all examples of all clients."""
    features = torch.cat(
        [by_hand_features(m, c.private.inputs(slice(None))) for c, m in zip(clients, given, strict=True)]
    )
    labels = torch.cat([client.private.labels for client in clients])
    counts = torch.bincount(labels, minlength=3).to(features)
    means = torch.stack(
        [features[labels == k].mean(dim=0) if counts[k] else torch.zeros(3).to(features) for k in range(3)]
    )
    return means, counts


@pytest.mark.parametrize("method", [FedProto(), EqualWeights(), PrototypesBeforeTraining()])
def test_prototypes_are_the_mean_features_over_all_examples_after_training(method):
    federation = run_toy(method, TOYS["uneven"])
    means, counts = prototypes_by_hand(federation.state.clients, [c.state["model"] for c in federation.state.clients])
    ours = federation.state.server.state["prototypes"]
    assert torch.allclose(ours["means"], means, rtol=0, atol=1e-12) is (type(method) is FedProto)
    if type(method) is FedProto:
        assert torch.equal(ours["counts"], counts)


def test_class_of_one_client_has_its_mean_and_a_class_of_none_has_no_prototype():
    toy = with_classes(TOYS["uneven"], (0,), (0,), (0, 1))
    federation = run_toy(FedProto(mu=1.0), toy)
    ours, owner = federation.state.server.state["prototypes"], federation.state.clients[2]
    assert (ours["counts"] > 0).tolist() == [True, True, False]
    features = owner.private_features(owner.state["model"])[owner.private.labels == 1]
    assert torch.allclose(ours["means"][1], features.mean(dim=0), rtol=0, atol=1e-12)
    predictions = [
        federation.method.predict(model, federation.state.clients[client].learner, owner.private).argmax(dim=1)
        for client, model in personal_models(federation).items()
    ]
    assert 2 not in torch.cat(predictions), "a class without a prototype is never predicted"


def test_class_that_no_participant_holds_keeps_its_prototype():
    federation = TOYS["uneven"].federation(FedProto())
    ctx, server = federation.ctx, federation.state.server
    new = torch.arange(9, dtype=torch.float64).view(3, 3)
    for means, counts in ((new, [2.0, 3.0, 0.0]), (new + 1, [0.0, 1.0, 0.0])):
        upload = {"prototypes": {"means": means.clone(), "counts": torch.tensor(counts, dtype=torch.float64)}}
        federation.method.aggregate(server, {0: upload}, ctx)
    ours = server.state["prototypes"]
    assert torch.equal(ours["means"][:2], torch.stack([new[0], new[1] + 1]))
    assert ours["counts"].tolist() == [2, 1, 0]


def test_prediction_is_the_class_of_the_nearest_known_prototype():
    federation = run_toy(FedProto(), TOYS["even"])
    client, model = federation.state.clients[0], dict(personal_models(federation)[0])
    model[COUNTS] = torch.tensor([4.0, 0.0, 1.0], dtype=torch.float64)
    features = by_hand_features(model, client.private.inputs(slice(None)))
    distances = [[((f - model[MEANS][k]) ** 2).sum().item() for k in range(3)] for f in features]
    logits = federation.method.predict(model, client.learner, client.private)
    for row, expected in zip(logits, distances, strict=True):
        assert row.argmax().item() == min((0, 2), key=lambda k: expected[k])
        assert [-row[0].item(), -row[2].item()] == pytest.approx([expected[0], expected[2]], abs=1e-12)
        assert row.isfinite().all()


def test_messages_contain_prototypes_and_no_weights():
    federation = TOYS["even"].federation(FedProto())
    with federation.worker_pool:
        rows = [done.rows[0] for done in run_rounds(federation, 2)]
    size = 64 * (3 * 3 + 3)
    assert [(row["bits_up"], row["bits_down"]) for row in rows] == [(size, 0), (size, size)]


def oracle(toy, rounds, mu):
    """Return models after full-batch steps on cross-entropy + mu * mean squared distance to prototypes."""
    federation = toy.federation(Local())
    clients, means = federation.state.clients, None
    own = [federation.ctx.initial_model for _ in clients]
    for _ in range(rounds):

        def penalty(model, inputs, labels, means=means):
            return mu * ((by_hand_features(model, inputs) - means[labels]) ** 2).mean() if means is not None else 0.0

        steps, lr = toy.train["local_steps"], toy.train["lr"]
        own = [by_hand_descent(c, m, steps, lr, penalty=penalty) for c, m in zip(clients, own, strict=True)]
        means, _ = prototypes_by_hand(clients, own)
    return own


@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_rounds_equal_a_computation_by_hand(mu):
    toy = full_batch_toy()
    expected = oracle(toy, 3, mu)
    assert close(trained_models(FedProto(mu=mu), toy), expected)
    for wrong in (EqualWeights(mu=mu), PrototypesBeforeTraining(mu=mu), FedProto(mu=2 * mu)):
        assert not close(trained_models(wrong, toy), expected, 1e-6)
