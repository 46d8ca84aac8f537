"""Where one method must equal another, and where the usual wrong version would not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.data.partitioning.partition import Partition, Shard
from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.learner import BatchSchedule, TrainingTask
from fedmosaic_cli.engine.losses import PseudoLabelLoss
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.training import fit_network
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Centralized, Local
from tests.methods.problems import uploads
from tests.toys import TOYS, Toy, close, make_toy, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


@EVERY_TOY
def test_fedmosaic_without_trust_is_local_training(toy):
    assert same(models(FedMosaic(trust=0.0), toy), models(Local(), toy))
    assert not same(models(FedMosaic(trust=0.5), toy), models(Local(), toy))


@EVERY_TOY
def test_fedmosaic_with_full_trust_and_equal_votes_is_fedct(toy):
    assert same(models(FedMosaic(trust=1.0, expertise="uniform"), toy), models(FedCT(), toy))
    assert not same(models(FedMosaic(trust=0.9, expertise="uniform"), toy), models(FedCT(), toy))


@EVERY_TOY
@pytest.mark.parametrize("warmup", [1, 2, 3])
def test_before_the_first_exchange_fedct_is_local_training(toy, warmup):
    method = FedCT(warmup_rounds=warmup)
    assert same(models(method, toy, rounds=warmup), models(Local(), toy, rounds=warmup))
    # The consensus must reach the steps that follow: a version that forgets it stays Local for ever.
    assert not same(models(method, toy, rounds=warmup + 1), models(Local(), toy, rounds=warmup + 1))


def test_no_warmup_means_one_round_of_it():
    assert same(models(FedCT(warmup_rounds=0), TOYS["even"]), models(FedCT(warmup_rounds=1), TOYS["even"]))


def test_lambda_is_zero_until_the_first_exchange():
    federation = TOYS["even"].federation(FedMosaic(warmup_rounds=2))
    with federation.worker_pool:
        trusts = [[row["lambda"] for row in done.rows] for done in run_rounds(federation, 4)]
    assert trusts[:2] == [[0.0] * 3] * 2
    assert all(trust > 0 for trusts_of_round in trusts[2:] for trust in trusts_of_round)


def test_lambda_follows_from_the_losses_in_the_log():
    federation = make_toy([9, 9, 9], public=12).federation(FedMosaic(trust="paper", expertise="entropy"))
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 4) for row in done.rows if done.number > 1]
    for row in rows:
        private, public = row["loss_private"], row["loss_public"]
        assert row["lambda"] == pytest.approx(np.exp(-(public - private) / (private + 1e-8)), rel=1e-12)


def test_the_losses_behind_lambda_are_those_of_full_sets_before_training():
    method, toy = FedMosaic(trust="paper"), make_toy([9, 9, 9], public=12)
    before = run_toy(method, toy, rounds=2)
    client, consensus = before.state.clients[0], before.state.server["labels"]
    model = client.state["model"]
    private_loss = client.private_loss(model)
    public_loss = cross_entropy(client.predict_public(model), consensus).item()
    federation = toy.federation(method)
    with federation.worker_pool:
        row = list(run_rounds(federation, 3))[2].rows[0]
    assert row["loss_private"] == pytest.approx(private_loss, rel=1e-12)
    assert row["loss_public"] == pytest.approx(public_loss, rel=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0])
def test_the_gradient_is_that_of_private_plus_lambda_times_public(weight):
    """A lambda that is part of the graph would add terms of its own."""
    federation = TOYS["even"].changed(optimizer="sgd", lr=1.0).federation(FedCT())
    client, workspace = federation.state.clients[0], federation.state.clients[0].learner
    labels = torch.arange(len(client.public)) % 3
    draw = BatchSchedule([torch.arange(4)], [torch.arange(5)])
    trained = params.clone(client.initial_model)
    fit_network(
        workspace, trained, {}, TrainingTask(client.private, client.public, draw, [PseudoLabelLoss(labels, weight)])
    )

    start = params.clone(client.initial_model)
    module = workspace.bound_module(start)
    parts = []
    for inputs, targets in (
        (client.private.inputs(torch.arange(4)), client.private.labels[:4]),
        (client.public.inputs(torch.arange(5)), labels[:5]),
    ):
        loss = cross_entropy(module(inputs), targets)
        parts.append(torch.autograd.grad(loss, list(module.parameters())))
    for name, private, public in zip(start, *parts, strict=True):
        assert torch.allclose(start[name] - trained[name], private + weight * public, rtol=0, atol=1e-12)


def test_local_training_is_fedavg_of_one():
    toy = TOYS["alone"].changed(init="common")
    assert same(models(Local(), toy), models(FedAvg(), toy))


def test_centralized_is_fedavg_of_one_who_holds_everything():
    toy = TOYS["epochs"].changed(init="common")
    everything = np.concatenate([shard.train for shard in toy.partition.shards])
    owner = Shard(0, everything, toy.partition.shards[0].test)
    pooled = toy.changed(partition=Partition(toy.partition.settings, 0, (owner,), toy.partition.public))
    assert same(models(Centralized(), toy), models(FedAvg(), pooled))


def test_centralized_takes_as_many_steps_as_everybody_together():
    toy = TOYS["even"]
    federation = toy.federation(Centralized())
    federation.state.clients[0].begin_round(1)
    assert (
        len(federation.state.clients[0]._batch_schedule(with_public=False).private_batches)
        == 3 * toy.train["local_steps"]
    )


def test_fedavg_of_full_gradient_steps_is_gradient_descent_on_everything():
    toy = TOYS["uneven"].changed(optimizer="sgd", lr=0.2, local_steps=1, batch_size=1000)
    [averaged] = models(FedAvg(), toy)[:1]

    federation = toy.federation(Centralized())
    client, workspace = federation.state.clients[0], federation.state.clients[0].learner
    expected = params.clone(federation.ctx.initial_model)
    for _ in range(3):
        module = workspace.bound_module(expected)
        loss = cross_entropy(module(client.private.inputs(slice(None))), client.private.labels)
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        expected = {name: expected[name] - 0.2 * g for name, g in zip(expected, gradients, strict=True)}
    assert close([averaged], [expected])


def test_fedavg_weights_clients_by_their_data():
    class Uniform(FedAvg):
        def aggregate(self, server, uploads, world):
            return {"model": params.weighted_mean([u["model"] for u in uploads.values()], [1] * len(uploads))}

    assert not close(models(FedAvg(), TOYS["uneven"]), models(Uniform(), TOYS["uneven"]), 1e-6)
    assert close(models(FedAvg(), TOYS["even"]), models(Uniform(), TOYS["even"]))


def test_examples_counted_twice_count_twice():
    toy = TOYS["uneven"].changed(optimizer="sgd", lr=0.2, local_steps=1, batch_size=1000)
    first, *others = toy.partition.shards
    twice = (replace(first, train=np.repeat(first.train, 2)), *others)
    doubled = toy.changed(partition=replace(toy.partition, shards=twice))
    [ours] = models(FedAvg(), doubled, rounds=1)[:1]
    # The client's own step is the same: the mean of its gradient does not change.
    copies = uploads(FedAvg(), toy)[1]
    assert close([ours], [params.weighted_mean(list(copies.values()), [6, 6, 11])])
    assert not close([ours], [params.weighted_mean(list(copies.values()), [3, 6, 11])], 1e-6)


def test_fedavg_is_examined_with_the_average_not_with_the_trained_copies():
    federation = run_toy(FedAvg(), TOYS["uneven"])
    personal = personal_models(federation)
    assert all(personal[client] is federation.state.server["model"] for client in personal)


def test_a_mean_of_equals_is_the_same_model():
    model = TOYS["even"].federation(Local()).ctx.initial_model
    assert close([params.weighted_mean([model] * 3, [1, 5, 2])], [model])


def test_the_first_consensus_of_one_client_is_its_own_opinion():
    federation = run_toy(FedCT(), TOYS["alone"], rounds=1)
    client = federation.state.clients[0]
    opinion = client.predict_public(client.state["model"]).argmax(dim=1)
    assert torch.equal(federation.state.server["labels"], opinion)


def test_clients_start_alike_in_every_method_and_differ_from_each_other():
    toy = TOYS["even"]
    local = models(Local(), toy, rounds=0)
    assert same(local, models(FedMosaic(), toy, rounds=0))
    assert not same(local[:1], local[1:2])
    common = models(Local(), toy.changed(init="common"), rounds=0)
    assert same(common[:1], common[1:2])


def test_the_flipped_client_is_examined_on_flipped_labels():
    toy = TOYS["flipped"]
    shards = tuple(replace(shard, has_flipped_labels=False) for shard in toy.partition.shards)
    straight = toy.changed(partition=replace(toy.partition, shards=shards))
    turned = toy.federation(Local()).eval_tasks[0].test.labels
    assert torch.equal(turned, 2 - straight.federation(Local()).eval_tasks[0].test.labels)


def skewed() -> Toy:
    """Three clients with mostly one class each, so that their expertise differs from class to class."""
    toy = make_toy([9, 9, 9], public=30)
    pool = np.concatenate([shard.train for shard in toy.partition.shards])
    by_class = pool[np.argsort(toy.dataset.labels[pool], kind="stable")]
    parts = [by_class[:12], by_class[12:19], by_class[19:]]
    shards = tuple(replace(shard, train=np.sort(part)) for shard, part in zip(toy.partition.shards, parts, strict=True))
    return toy.changed(partition=replace(toy.partition, shards=shards))


@pytest.mark.parametrize("kind", ["frequency", "entropy"])
def test_the_consensus_is_the_vote_weighted_by_expertise_as_it_arrives(kind):
    federation = run_toy(FedMosaic(expertise=kind), skewed().changed(local_steps=6), rounds=1)
    high = 1 if kind == "frequency" else math.log(3)
    scores, majority = torch.zeros(30, 3, dtype=torch.float64), torch.zeros(30, 3)
    for client in federation.state.clients:
        log_probs = client.predict_public(client.state["model"]).log_softmax(dim=1)
        histogram = [int((client.private.labels == c).sum()) for c in range(3)]
        for example, row in enumerate(log_probs.tolist()):
            label = row.index(max(row))
            weight = histogram[label] / sum(histogram)
            if kind == "entropy":
                weight = math.log(3) + sum(math.exp(value) * value for value in row)
            level = round(weight / high * 255)
            scores[example, label] += level * high / 255 + 1e-6
            majority[example, label] += 1
    assert torch.equal(federation.state.server["labels"], scores.argmax(dim=1))
    assert not torch.equal(scores.argmax(dim=1), majority.argmax(dim=1)), "a plain majority would do as well"


def test_the_stabilised_rule_is_what_its_name_says():
    federation = make_toy([9, 9, 9], public=12).federation(FedMosaic(trust="stabilised"))
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 4) for row in done.rows if done.number > 1]
    for row in rows:
        private, public = row["loss_private"], row["loss_public"]
        assert row["lambda"] == pytest.approx(min(1, math.exp(-(public - private) / (private + 0.3))), rel=1e-12)


@pytest.mark.parametrize("rule", ["paper", "stabilised"])
def test_a_client_with_flipped_labels_trusts_the_crowd_least(rule):
    toy = make_toy([30] * 5, public=30, flipped=(0,)).changed(local_steps=20)
    federation = toy.federation(FedMosaic(trust=rule, expertise="entropy"))
    with federation.worker_pool:
        last = list(run_rounds(federation, 4))[-1].rows
    assert last[0]["lambda"] < min(row["lambda"] for row in last[1:])


def test_scaling_logits_changes_no_label_that_is_sent():
    federation = run_toy(FedCT(), TOYS["even"], rounds=1)
    client = federation.state.clients[0]
    logits = client.predict_public(client.state["model"])
    said = [
        FedCT().make_label_upload((f * logits).log_softmax(dim=1), client, federation.ctx)["opinion"]
        for f in (1.0, 7.5)
    ]
    assert np.array_equal(*(opinion.labels for opinion in said))


def test_every_round_after_the_first_steps_ends_in_an_exchange():
    federation = TOYS["even"].federation(FedCT())
    with federation.worker_pool:
        uploads_of_round = [sum(row["bits_up"] > 0 for row in done.rows) for done in run_rounds(federation, 4)]
    assert uploads_of_round == [3] * 4


def test_a_flipped_client_trains_and_votes_on_its_flipped_labels():
    toy = TOYS["flipped"]
    client = toy.federation(Local()).state.clients[0]
    truth = torch.as_tensor(toy.dataset.labels[toy.partition.shards[0].train])
    assert torch.equal(client.private.labels, 2 - truth)
    assert client.class_counts.tolist() == torch.bincount(truth, minlength=3).tolist()[::-1]


@pytest.mark.parametrize("method", [Local(), FedAvg(), FedMosaic()])
def test_optimizer_settings_have_an_effect(method):
    toy = TOYS["even"]
    assert not same(models(method, toy), models(method, toy.changed(optimizer_state="reset")))
    sgd = toy.changed(optimizer="sgd", lr=0.1)
    assert not same(models(method, sgd), models(method, toy))
    assert not same(models(method, sgd), models(method, sgd.changed(momentum=0.5)))
    # Plain SGD remembers nothing, so there is nothing to reset.
    assert same(models(method, sgd), models(method, sgd.changed(optimizer_state="reset")))
