"""FedRep."""

from __future__ import annotations

import pytest

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedper import FedPer
from fedmosaic_cli.methods.fedrep import FedRep
from tests.methods.problems import by_hand_descent, by_hand_mean, full_batch_toy
from tests.toys import TOYS, close, make_toy, models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
HEAD = {"head.weight", "head.bias"}


class EmptyHead(FedRep):
    """No entry stays with the client."""

    def local_parameter_names(self, ctx):
        return FedAvg.local_parameter_names(self, ctx)


class TrainsBodyWithHead(FedRep):
    """Wrong: the body is trained in the head's phase, too."""

    def train_local_model(self, client, received):
        client.train("model", epochs=self.head_epochs, stream="head")
        client.train("model", parameters=client.state["model"].keys() - client.state["kept"].keys())


class BodyFirst(FedRep):
    """Wrong: the body is trained before the head."""

    def train_local_model(self, client, received):
        head = client.state["kept"].keys()
        client.train("model", parameters=client.state["model"].keys() - head)
        client.train("model", parameters=head, epochs=self.head_epochs, stream="head")


def changed_entries(method, toy, monkeypatch):
    """Return which entries of the model the first and the second training of each client change in round 1."""
    changes, train = {}, InProcessClient.train

    def record(client, model, *args, **options):
        before = params.clone(client.state[model])
        result = train(client, model, *args, **options)
        after = client.state[model]
        changes.setdefault(client.id, []).append({n for n in after if (after[n] != before[n]).any()})
        return result

    monkeypatch.setattr(InProcessClient, "train", record)
    run_toy(method, toy, rounds=1)
    return changes


@EVERY_TOY
def test_without_a_head_it_equals_fedavg(toy):
    assert same(models(EmptyHead(), toy), models(FedAvg(), toy))
    assert same(models(EmptyHead(head_epochs=0), toy), models(FedAvg(), toy))


@EVERY_TOY
def test_without_head_epochs_every_client_keeps_the_initial_head(toy):
    federation = run_toy(FedRep(head_epochs=0), toy)
    initial = params.select(federation.ctx.initial_model, HEAD)
    assert all(same([client.state["kept"]], [initial]) for client in federation.state.clients)


def test_without_head_epochs_the_loss_of_the_body_is_logged():
    federation = TOYS["even"].federation(FedRep(head_epochs=0))
    with federation.worker_pool:
        assert all(row["loss_private"] > 0 for row in next(run_rounds(federation, 1)).rows)


def test_each_phase_changes_its_own_part_only(monkeypatch):
    for head, body in changed_entries(FedRep(), TOYS["uneven"], monkeypatch).values():
        assert head == HEAD
        assert body == {"body.1.weight", "body.1.bias"}


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_running_statistics_of_the_frozen_body_do_not_change(policy, monkeypatch):
    toy = TOYS["even"].changed(bn_buffers=policy)
    statistics = toy.federation(FedRep()).ctx.group("buffers")
    for head, body in changed_entries(FedRep(), toy, monkeypatch).values():
        assert head == HEAD
        assert statistics < body
        assert not body & HEAD


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local"])
def test_head_is_trained_on_a_batch_of_one_example(policy, monkeypatch):
    """Batch statistics of the frozen body are not needed, so the batch is not left out."""
    toy = make_toy([1, 4, 4]).changed(bn_buffers=policy)
    assert changed_entries(FedRep(), toy, monkeypatch)[0] == [HEAD, set()]


def test_training_of_the_frozen_body_is_detected(monkeypatch):
    changes = changed_entries(TrainsBodyWithHead(), TOYS["uneven"], monkeypatch)
    assert all(head > HEAD for head, _ in changes.values())


def test_both_phases_have_separate_optimizer_states():
    """A frozen part takes no step, so Adam counts only the steps of its own phase."""
    toy = TOYS["even"].changed(local_steps=3)
    for client in run_toy(FedRep(head_epochs=2), toy, rounds=1).state.clients:
        steps = {name: state["step"].item() for name, state in client.state["model.optimizer"].items()}
        assert steps == {"head.weight": 4, "head.bias": 4, "body.1.weight": 3, "body.1.bias": 3}


def oracle(toy, rounds, head_epochs):
    """Return personal models: full-batch steps on the head, then on the body, then the mean of bodies by size."""
    federation = toy.federation(FedRep())
    clients, copies = federation.state.clients, [federation.ctx.initial_model] * len(toy.partition.shards)
    body, lr = set(copies[0]) - HEAD, toy.train["lr"]
    for _ in range(rounds):
        trained = []
        for client, copy in zip(clients, copies, strict=True):
            with_head = by_hand_descent(client, copy, head_epochs, lr, HEAD)
            trained.append(by_hand_descent(client, with_head, toy.train["local_steps"], lr, body))
        mean = by_hand_mean(trained, [len(client.private) for client in clients])
        copies = [{name: own[name] if name in HEAD else mean[name] for name in own} for own in trained]
    return copies


@pytest.mark.parametrize("head_epochs", [1, 3])
def test_rounds_equal_a_computation_by_hand(head_epochs):
    toy = full_batch_toy()
    expected = oracle(toy, 3, head_epochs)
    assert close(models(FedRep(head_epochs=head_epochs), toy), expected)
    for wrong in (TrainsBodyWithHead(head_epochs=head_epochs), BodyFirst(head_epochs=head_epochs), FedPer()):
        assert not close(models(wrong, toy), expected, 1e-6)
