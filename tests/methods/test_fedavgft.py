"""FedAvg with fine-tuning."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedavgft import TUNED_KEY, FedAvgFT
from tests.methods.problems import by_hand_descent, by_hand_mean, full_batch_toy, server_model
from tests.toys import TOYS, close, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
HEAD = {"head.weight", "head.bias"}


class TunesTheReceivedTensors(FedAvgFT):
    """Wrong: the received model is trained in place."""

    def finalize(self, client, received, ctx):
        client.state[TUNED_KEY] = received["model"]
        client.train(TUNED_KEY, epochs=self.epochs, stream="finetune")


class TunesInEveryRound(FedAvgFT):
    """Wrong: clients upload what they have fine-tuned."""

    def train_local_model(self, client, received):
        client.train("model")
        client.train("model", epochs=self.epochs, stream="finetune")


class KeepsMomentum(FedAvgFT):
    """Wrong: fine-tuning continues with the optimizer state of the local copy."""

    def finalize(self, client, received, ctx):
        client.state[f"{TUNED_KEY}.optimizer"] = deepcopy(client.state["model.optimizer"])
        super().finalize(client, received, ctx)


@EVERY_TOY
@pytest.mark.parametrize("parameters", ["all", "head"])
def test_without_fine_tuning_it_equals_fedavg(toy, parameters):
    assert same(models(FedAvgFT(epochs=0, parameters=parameters), toy), models(FedAvg(), toy))
    assert not same(models(FedAvgFT(epochs=1, parameters=parameters), toy), models(FedAvg(), toy))


@EVERY_TOY
def test_rounds_before_the_last_equal_fedavg(toy):
    assert same(models(FedAvgFT(), toy, rounds=2), models(FedAvg(), toy, rounds=2))


@EVERY_TOY
def test_fine_tuning_does_not_change_the_global_model(toy):
    assert same([server_model(FedAvgFT(), toy)], [server_model(FedAvg(), toy)])


@pytest.mark.parametrize("wrong", [TunesTheReceivedTensors(), TunesInEveryRound()])
def test_fine_tuning_that_reaches_the_server_is_detected(wrong):
    assert not same([server_model(wrong, TOYS["even"])], [server_model(FedAvg(), TOYS["even"])])


def test_global_model_is_still_evaluated_after_the_last_round():
    rounds = []
    for method in (FedAvgFT(), FedAvg()):
        federation = TOYS["uneven"].federation(method)
        with federation.worker_pool:
            rounds.append(list(run_rounds(federation, 3)))
    for tuned, plain in zip(*rounds, strict=True):
        assert [row["global_accuracy"] for row in tuned.rows] == [row["accuracy"] for row in plain.rows]
    assert [row["test_loss"] for row in rounds[0][-1].rows] != [row["test_loss"] for row in rounds[1][-1].rows]


def test_every_client_fine_tunes_once_whether_it_took_part_or_not():
    federation = TOYS["even"].changed(clients_per_round=1).federation(FedAvgFT())
    with federation.worker_pool:
        for done in run_rounds(federation, 3):
            assert all((TUNED_KEY in client.state) == (done.number == 3) for client in federation.state.clients)
    tuned = list(personal_models(federation).values())
    assert not any(same([model], [federation.state.server.state["model"]]) for model in tuned)


def test_fine_tuning_of_the_head_keeps_the_global_body():
    federation = run_toy(FedAvgFT(parameters="head"), TOYS["uneven"])
    shared = federation.state.server.state["model"]
    for model in personal_models(federation).values():
        assert {name for name in model if not torch.equal(model[name], shared[name])} == HEAD


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize(("parameters", "moves"), [("all", True), ("head", False)])
def test_running_statistics_adapt_unless_the_body_is_frozen(parameters, moves):
    federation = run_toy(FedAvgFT(parameters=parameters), TOYS["even"])
    shared = federation.state.server.state["model"]
    for model in personal_models(federation).values():
        for name in ("body.2.running_mean", "body.2.running_var", "body.2.num_batches_tracked"):
            assert torch.equal(model[name], shared[name]) is not moves


def oracle(toy, epochs, names=None):
    """Return the fine-tuned models after two rounds of FedAvg: plain gradient steps on all examples."""
    federation = toy.federation(FedAvg())
    clients, shared, train = federation.state.clients, federation.ctx.initial_model, toy.train
    for _ in range(2):
        copies = [by_hand_descent(client, shared, train["local_steps"], train["lr"]) for client in clients]
        shared = by_hand_mean(copies, [len(client.private) for client in clients])
    return [by_hand_descent(client, shared, epochs, train["lr"], names) for client in clients]


@pytest.mark.parametrize("parameters", ["all", "head"])
def test_fine_tuning_equals_a_computation_by_hand(parameters):
    toy = full_batch_toy(rounds=2)
    expected = oracle(toy, 3, HEAD if parameters == "head" else None)
    assert close(models(FedAvgFT(epochs=3, parameters=parameters), toy, rounds=2), expected)


def test_fine_tuning_starts_with_a_new_optimizer_state():
    """The first step of SGD with momentum is a plain step."""
    toy = full_batch_toy(rounds=2, momentum=0.5, local_steps=1)
    shared = server_model(FedAvg(), toy, rounds=2)
    clients = toy.federation(FedAvg()).state.clients
    expected = [by_hand_descent(client, shared, 1, toy.train["lr"]) for client in clients]
    assert close(models(FedAvgFT(epochs=1), toy, rounds=2), expected)
    assert not close(models(KeepsMomentum(epochs=1), toy, rounds=2), expected, 1e-6)
