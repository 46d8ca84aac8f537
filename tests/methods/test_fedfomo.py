"""FedFomo."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedfomo import FedFomo
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import by_hand_descent, by_hand_logits, full_batch_toy
from tests.toys import TOYS, close, make_toy, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)

CTX = TOYS["even"].federation(FedFomo()).ctx


class NothingHelps(FedFomo):
    """Every received model has a larger validation loss than the client's own."""

    def scores(self, client, own, others, ctx):
        return dict.fromkeys(others, -1.0)


class SendsOwnModel(FedFomo):
    """Wrong: a client's own model is among those that it receives."""

    def broadcast(self, server, client_id, ctx):
        models = server.state["models"]
        return {"models": {int(client): models[client] for client in list(models)[: self.num_models]}} if models else {}


class IgnoresDistance(FedFomo):
    """Wrong: weights are not divided by distances."""

    def scores(self, client, own, others, ctx):
        loss = client.validation_loss(own)
        return {other: loss - client.validation_loss(model) for other, model in others.items()}


def client_and_models():
    """Return a client, and models sorted by decreasing validation loss of the client."""
    client = TOYS["even"].federation(FedFomo()).state.clients[0]
    lengths = (0.0, 1.0, 3.0, 9.0)
    steps = [by_hand_descent(client, client.initial_model, int(length), 0.2) for length in lengths]
    assert sorted(map(client.validation_loss, steps), reverse=True) == list(map(client.validation_loss, steps))
    return client, steps


def mixed(client, own, others):
    """Return the model from which the client would train."""
    scores = FedFomo().scores(client, own, others, CTX)
    return FedFomo().mixture(own, others, {other: max(0.0, score) for other, score in scores.items()})


def test_score_is_the_decrease_of_the_validation_loss_per_distance():
    client, [worst, own, good, best] = client_and_models()
    inputs, labels = client.validation.inputs(slice(None)), client.validation.labels

    def loss(model):
        return cross_entropy(by_hand_logits(model, inputs), labels).item()

    scores = FedFomo().scores(client, own, {1: worst, 2: good, 5: best}, CTX)
    for other, model in {1: worst, 2: good, 5: best}.items():
        distance = sum(((model[name] - own[name]) ** 2).sum() for name in own).sqrt().item()
        assert scores[other] == pytest.approx((loss(own) - loss(model)) / distance, rel=1e-9)
    assert scores[1] < 0 < min(scores[2], scores[5])


def test_model_with_a_larger_validation_loss_has_no_weight():
    client, [worst, own, good, best] = client_and_models()
    both = mixed(client, own, {1: good, 2: best})
    assert same([mixed(client, own, {0: worst, 1: good, 2: best})], [both])
    assert not same([both], [good])
    assert not same([both], [best])


def test_a_single_better_model_replaces_the_own_model():
    client, [worst, own, good, _] = client_and_models()
    assert same([mixed(client, own, {1: good})], [good])
    assert same([mixed(client, own, {0: worst, 1: good})], [good])


def test_without_a_better_model_the_own_model_is_kept():
    client, [worst, own, *_] = client_and_models()
    assert mixed(client, own, {}) is own
    assert mixed(client, own, {1: worst}) is own
    assert mixed(client, own, {1: params.clone(own), 2: worst}) is own, "an equal model has distance 0"


@EVERY_TOY
def test_it_equals_local_training_if_no_other_model_helps(toy):
    common = toy.changed(init="common")
    assert same(models(NothingHelps(), common), models(Local(), common))


def choices(method, scores, rounds):
    """Return the clients whose models client 1 receives in some rounds, given its scores."""
    federation = make_toy([4] * 6).federation(method)
    server, model = federation.state.server, federation.ctx.initial_model
    server.state |= {"models": {str(client): model for client in range(6)}, "scores": {"1": torch.tensor(scores)}}
    for number in rounds:
        server.begin_round(number)
        yield set(method.broadcast(server, 1, federation.ctx)["models"])


def test_choice_is_greedy_or_random():
    scores, rounds = [3.0, 9.0, 1.0, 5.0, -1.0, 4.0], range(1, 41)
    assert list(choices(FedFomo(num_models=2, epsilon=0.0), scores, rounds)) == [{3, 5}] * 40
    random = list(choices(FedFomo(num_models=2, epsilon=1.0, epsilon_decay=0.0), scores, rounds))
    assert len({frozenset(choice) for choice in random}) > 5
    assert {client for choice in random for client in choice} == {0, 2, 3, 4, 5}
    half = list(choices(FedFomo(num_models=2, epsilon=0.5, epsilon_decay=0.0), scores, range(1, 201)))
    assert 80 < half.count({3, 5}) < 140, "half of them, and one in ten random pairs"
    decayed = list(choices(FedFomo(num_models=2, epsilon=1.0, epsilon_decay=0.1), scores, rounds))
    assert decayed[10:] == [{3, 5}] * 30
    assert list(choices(FedFomo(num_models=9), scores, [1])) == [{0, 2, 3, 4, 5}]


@pytest.mark.parametrize(("method", "is_right"), [(FedFomo(num_models=3), True), (SendsOwnModel(num_models=3), False)])
def test_a_client_never_receives_its_own_model(method, is_right):
    federation = run_toy(method, make_toy([5] * 4), rounds=2)
    sent = {client: method.broadcast(federation.state.server, client, federation.ctx)["models"] for client in range(4)}
    assert all(client not in models for client, models in sent.items()) is is_right


def test_scores_are_added_up_over_rounds():
    federation = TOYS["even"].federation(FedFomo())
    server, model = federation.state.server, federation.ctx.initial_model
    for scores in ([0.0, 1.0, -2.0], [0.0, 0.5, 4.0]):
        upload = {"model": model, "scores": {"scores": torch.tensor(scores)}}
        federation.method.aggregate(server, {0: upload}, federation.ctx)
    assert server.state["scores"]["0"].tolist() == [0.0, 1.5, 2.0]
    assert server.state["models"].keys() == {"0"}


def make_federation(method, toy):
    """Return a federation whose clients have the training data of another client for validation."""
    federation = toy.federation(method)
    clients = federation.state.clients
    for client in clients:
        client.validation = clients[client.id - 1].private
    return federation


def oracle(toy, rounds):
    """Return models after rounds in which every client receives all others: mixture, then full-batch steps."""
    federation = make_federation(FedFomo(), toy)
    clients, steps, lr = federation.state.clients, toy.train["local_steps"], toy.train["lr"]
    own = [by_hand_descent(client, federation.ctx.initial_model, steps, lr) for client in clients]
    for _ in range(rounds - 1):
        starts = []
        for client in clients:
            mine, weights = own[client.id], {}
            inputs, labels = client.validation.inputs(slice(None)), client.validation.labels
            losses = [cross_entropy(by_hand_logits(model, inputs), labels).item() for model in own]
            for other in {0, 1, 2, 3} - {client.id}:
                gap = torch.cat([(own[other][name] - mine[name]).flatten() for name in mine])
                weights[other] = max(0.0, losses[client.id] - losses[other]) / gap.norm().item()
            total = sum(weights.values()) or 1.0
            moves = {name: sum(w * (own[o][name] - mine[name]) for o, w in weights.items()) for name in mine}
            starts.append({name: mine[name] + moves[name] / total for name in mine})
        own = [by_hand_descent(client, start, steps, lr) for client, start in zip(clients, starts, strict=True)]
    return own


def test_rounds_equal_a_computation_by_hand():
    toy = full_batch_toy((4, 9, 7, 6), local_steps=4)
    expected = oracle(toy, 3)
    for method in (FedFomo(num_models=3), IgnoresDistance(num_models=3), Local()):
        federation = make_federation(method, toy)
        with federation.worker_pool:
            rounds = list(run_rounds(federation, 3))
        assert close(list(personal_models(federation).values()), expected) is (type(method) is FedFomo)
        if type(method) is FedFomo:
            assert {2, 3} & {row["mixed_models"] for row in rounds[-1].rows}, "several models help"
