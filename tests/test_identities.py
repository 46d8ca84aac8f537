"""Identities between methods, and common mistakes that violate them."""

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
def test_fedmosaic_without_trust_equals_local_training(toy):
    assert same(models(FedMosaic(trust=0.0), toy), models(Local(), toy))
    assert not same(models(FedMosaic(trust=0.5), toy), models(Local(), toy))


@EVERY_TOY
def test_fedmosaic_with_full_trust_and_uniform_expertise_equals_fedct(toy):
    assert same(models(FedMosaic(trust=1.0, expertise="uniform"), toy), models(FedCT(), toy))
    assert not same(models(FedMosaic(trust=0.9, expertise="uniform"), toy), models(FedCT(), toy))


@EVERY_TOY
@pytest.mark.parametrize("warmup", [1, 2, 3])
def test_fedct_equals_local_training_before_the_first_exchange(toy, warmup):
    method = FedCT(warmup_rounds=warmup)
    assert same(models(method, toy, rounds=warmup), models(Local(), toy, rounds=warmup))
    # The consensus must be used in the next steps: a version that ignores it equals Local in every round.
    assert not same(models(method, toy, rounds=warmup + 1), models(Local(), toy, rounds=warmup + 1))


def test_zero_warmup_rounds_equal_one():
    assert same(models(FedCT(warmup_rounds=0), TOYS["even"]), models(FedCT(warmup_rounds=1), TOYS["even"]))


def test_lambda_is_zero_until_the_first_exchange():
    federation = TOYS["even"].federation(FedMosaic(warmup_rounds=2))
    with federation.worker_pool:
        trusts = [[row["lambda"] for row in done.rows] for done in run_rounds(federation, 4)]
    assert trusts[:2] == [[0.0] * 3] * 2
    assert all(trust > 0 for trusts_of_round in trusts[2:] for trust in trusts_of_round)


def test_lambda_equals_the_formula_of_the_logged_losses():
    federation = make_toy([9, 9, 9], public=12).federation(FedMosaic(trust="paper", expertise="entropy"))
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 4) for row in done.rows if done.number > 1]
    for row in rows:
        private, public = row["loss_private"], row["loss_public"]
        assert row["lambda"] == pytest.approx(np.exp(-(public - private) / (private + 1e-8)), rel=1e-12)


def test_lambda_uses_losses_on_full_sets_before_training():
    method, toy = FedMosaic(trust="paper"), make_toy([9, 9, 9], public=12)
    before = run_toy(method, toy, rounds=2)
    client, consensus = before.state.clients[0], before.state.server.state["labels"]
    model = client.state["model"]
    private_loss = client.private_loss(model)
    public_loss = cross_entropy(client.predict_public(model), consensus).item()
    federation = toy.federation(method)
    with federation.worker_pool:
        row = list(run_rounds(federation, 3))[2].rows[0]
    assert row["loss_private"] == pytest.approx(private_loss, rel=1e-12)
    assert row["loss_public"] == pytest.approx(public_loss, rel=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0])
def test_gradient_is_that_of_private_plus_lambda_times_public_loss(weight):
    """If lambda were part of the graph, the gradient would have further terms."""
    federation = TOYS["even"].changed(optimizer="sgd", lr=1.0).federation(FedCT())
    client, learner = federation.state.clients[0], federation.state.clients[0].learner
    labels = torch.arange(len(client.public)) % 3
    schedule = BatchSchedule([torch.arange(4)], [torch.arange(5)])
    trained = params.clone(client.initial_model)
    fit_network(
        learner, trained, {}, TrainingTask(client.private, client.public, schedule, [PseudoLabelLoss(labels, weight)])
    )

    start = params.clone(client.initial_model)
    module = learner.bound_module(start)
    parts = []
    for inputs, targets in (
        (client.private.inputs(torch.arange(4)), client.private.labels[:4]),
        (client.public.inputs(torch.arange(5)), labels[:5]),
    ):
        loss = cross_entropy(module(inputs), targets)
        parts.append(torch.autograd.grad(loss, list(module.parameters())))
    for name, private, public in zip(start, *parts, strict=True):
        assert torch.allclose(start[name] - trained[name], private + weight * public, rtol=0, atol=1e-12)


def test_local_training_equals_fedavg_with_one_client():
    toy = TOYS["alone"].changed(init="common")
    assert same(models(Local(), toy), models(FedAvg(), toy))


def test_centralized_equals_fedavg_with_one_client_that_holds_all_data():
    toy = TOYS["epochs"].changed(init="common")
    everything = np.concatenate([shard.train for shard in toy.partition.shards])
    owner = Shard(0, everything, toy.partition.shards[0].test)
    pooled = toy.changed(partition=Partition(toy.partition.settings, 0, (owner,), toy.partition.public))
    assert same(models(Centralized(), toy), models(FedAvg(), pooled))


def test_centralized_takes_as_many_steps_as_all_clients_together():
    toy = TOYS["even"]
    federation = toy.federation(Centralized())
    federation.state.clients[0].begin_round(1)
    assert len(federation.state.clients[0]._private_batches("private")) == 3 * toy.train["local_steps"]


def test_fedavg_with_full_gradient_steps_equals_gradient_descent_on_pooled_data():
    toy = TOYS["uneven"].changed(optimizer="sgd", lr=0.2, local_steps=1, batch_size=1000)
    [averaged] = models(FedAvg(), toy)[:1]

    federation = toy.federation(Centralized())
    client, learner = federation.state.clients[0], federation.state.clients[0].learner
    expected = params.clone(federation.ctx.initial_model)
    for _ in range(3):
        module = learner.bound_module(expected)
        loss = cross_entropy(module(client.private.inputs(slice(None))), client.private.labels)
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        expected = {name: expected[name] - 0.2 * g for name, g in zip(expected, gradients, strict=True)}
    assert close([averaged], [expected])


def test_fedavg_weights_clients_by_number_of_examples():
    class Uniform(FedAvg):
        def aggregate(self, server, uploads, ctx):
            uploaded = [upload["model"] for upload in uploads.values()]
            server.state["model"] = params.weighted_mean(uploaded, [1] * len(uploads))

    assert not close(models(FedAvg(), TOYS["uneven"]), models(Uniform(), TOYS["uneven"]), 1e-6)
    assert close(models(FedAvg(), TOYS["even"]), models(Uniform(), TOYS["even"]))


def test_duplicated_examples_double_the_weight_of_a_client():
    toy = TOYS["uneven"].changed(optimizer="sgd", lr=0.2, local_steps=1, batch_size=1000)
    first, *others = toy.partition.shards
    duplicated = (replace(first, train=np.repeat(first.train, 2)), *others)
    doubled = toy.changed(partition=replace(toy.partition, shards=duplicated))
    [ours] = models(FedAvg(), doubled, rounds=1)[:1]
    # The step of the client itself does not change, because its mean gradient is the same.
    copies = uploads(FedAvg(), toy)[1]
    assert close([ours], [params.weighted_mean(list(copies.values()), [6, 6, 11])])
    assert not close([ours], [params.weighted_mean(list(copies.values()), [3, 6, 11])], 1e-6)


def test_fedavg_is_evaluated_with_the_average_not_with_the_trained_copies():
    federation = run_toy(FedAvg(), TOYS["uneven"])
    personal = personal_models(federation)
    assert all(personal[client] is federation.state.server.state["model"] for client in personal)


def test_mean_of_equal_models_is_that_model():
    model = TOYS["even"].federation(Local()).ctx.initial_model
    assert close([params.weighted_mean([model] * 3, [1, 5, 2])], [model])


def test_first_consensus_of_one_client_is_its_own_prediction():
    federation = run_toy(FedCT(), TOYS["alone"], rounds=1)
    client = federation.state.clients[0]
    predictions = client.predict_public(client.state["model"]).argmax(dim=1)
    assert torch.equal(federation.state.server.state["labels"], predictions)


def test_initial_models_are_equal_across_methods_and_differ_between_clients():
    toy = TOYS["even"]
    local = models(Local(), toy, rounds=0)
    assert same(local, models(FedMosaic(), toy, rounds=0))
    assert not same(local[:1], local[1:2])
    common = models(Local(), toy.changed(init="common"), rounds=0)
    assert same(common[:1], common[1:2])


def test_flipped_client_is_evaluated_on_flipped_labels():
    toy = TOYS["flipped"]
    shards = tuple(replace(shard, has_flipped_labels=False) for shard in toy.partition.shards)
    unflipped = toy.changed(partition=replace(toy.partition, shards=shards))
    flipped = toy.federation(Local()).eval_tasks[0].test.labels
    assert torch.equal(flipped, 2 - unflipped.federation(Local()).eval_tasks[0].test.labels)


def skewed() -> Toy:
    """Return a toy of three clients with mostly one class each, so that expertise differs between classes."""
    toy = make_toy([9, 9, 9], public=30)
    pool = np.concatenate([shard.train for shard in toy.partition.shards])
    by_class = pool[np.argsort(toy.dataset.labels[pool], kind="stable")]
    parts = [by_class[:12], by_class[12:19], by_class[19:]]
    shards = tuple(replace(shard, train=np.sort(part)) for shard, part in zip(toy.partition.shards, parts, strict=True))
    return toy.changed(partition=replace(toy.partition, shards=shards))


@pytest.mark.parametrize("kind", ["frequency", "entropy"])
def test_consensus_is_the_vote_weighted_by_decoded_expertise(kind):
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
    assert torch.equal(federation.state.server.state["labels"], scores.argmax(dim=1))
    assert not torch.equal(scores.argmax(dim=1), majority.argmax(dim=1)), "a plain majority gives the same labels"


def test_stabilised_trust_equals_its_formula():
    federation = make_toy([9, 9, 9], public=12).federation(FedMosaic(trust="stabilised"))
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 4) for row in done.rows if done.number > 1]
    for row in rows:
        private, public = row["loss_private"], row["loss_public"]
        assert row["lambda"] == pytest.approx(min(1, math.exp(-(public - private) / (private + 0.3))), rel=1e-12)


@pytest.mark.parametrize("rule", ["paper", "stabilised"])
def test_client_with_flipped_labels_has_the_lowest_trust(rule):
    toy = make_toy([30] * 5, public=30, flipped=(0,)).changed(local_steps=20)
    federation = toy.federation(FedMosaic(trust=rule, expertise="entropy"))
    with federation.worker_pool:
        last = list(run_rounds(federation, 4))[-1].rows
    assert last[0]["lambda"] < min(row["lambda"] for row in last[1:])


def test_scaling_logits_does_not_change_uploaded_labels():
    federation = run_toy(FedCT(), TOYS["even"], rounds=1)
    client = federation.state.clients[0]
    logits = client.predict_public(client.state["model"])
    uploads = [
        FedCT().make_label_upload((f * logits).log_softmax(dim=1), client, federation.ctx)["opinion"]
        for f in (1.0, 7.5)
    ]
    assert np.array_equal(*(upload.labels for upload in uploads))


def test_every_round_ends_with_an_exchange():
    federation = TOYS["even"].federation(FedCT())
    with federation.worker_pool:
        uploads_of_round = [sum(row["bits_up"] > 0 for row in done.rows) for done in run_rounds(federation, 4)]
    assert uploads_of_round == [3] * 4


def test_flipped_client_trains_and_votes_on_flipped_labels():
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
    # Plain SGD has no state to reset.
    assert same(models(method, sgd), models(method, sgd.changed(optimizer_state="reset")))
