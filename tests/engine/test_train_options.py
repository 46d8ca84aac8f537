"""Options of `Client.train`: each equals an explicit loop, in threads and stacked."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.local import Local
from tests.methods.problems import by_hand_logits
from tests.toys import TOYS, close, make_toy, models, personal_models, run_toy, same

HEAD, BODY = {"head.weight", "head.bias"}, {"body.1.weight", "body.1.bias"}
CASES = {
    "default": {},
    "head": {"parameters": HEAD},
    "body": {"parameters": BODY},
    "one tensor": {"parameters": ["body.1.weight"]},
    "epochs": {"epochs": 3},
    "steps": {"steps": 5},
    "no steps": {"steps": 0},
    "no epochs": {"epochs": 0},
    "learning rate": {"lr": 0.4},
    "adam": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd"},
    "clipped": {"max_grad_norm": 0.1},
    "decayed": {"weight_decay": 0.3},
    "corrected": {"correction": True},
    "stream": {"stream": "other"},
    "many": {"parameters": BODY, "epochs": 2, "lr": 0.2, "max_grad_norm": 0.2, "weight_decay": 0.1, "correction": True},
}
RUNS = {
    "sgd": TOYS["uneven"].changed(optimizer="sgd", lr=0.1),
    "momentum": TOYS["uneven"].changed(optimizer="sgd", lr=0.1, momentum=0.5),
    "adam": TOYS["uneven"],
    "epochs": make_toy([5, 7, 1]).changed(local_steps=None, local_epochs=2),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES)
EVERY_RUN = pytest.mark.parametrize("toy", RUNS.values(), ids=RUNS)


def options(case, client):
    """Return the options of a case; a correction is different for every client."""
    values = dict(CASES[case])
    if "correction" in values:
        model, random = client.initial_model, torch.Generator().manual_seed(client.id)
        values["correction"] = {
            n: 0.1 * torch.randn(t.shape, generator=random, dtype=torch.float64) for n, t in model.items()
        }
    return values


@hyperparameters
class Trains(Local):
    """Trains with the options of a case."""

    case: str = "default"

    def local_round(self, client, received, ctx):
        result = client.train("model", **options(self.case, client))
        client.log(num_steps=result.num_steps, used_lr=result.lr, loss_returned=result.loss)
        return {}


@hyperparameters
class TrainsNothingFirst(Local):
    """Trains without any parameter, and then normally."""

    def local_round(self, client, received, ctx):
        before, result = params.clone(client.state["model"]), client.train("model", parameters=[])
        client.log(changed=not same([before], [client.state["model"]]), num_steps=result.num_steps)
        return super().local_round(client, received, ctx)


def explicit_models(case, toy, rounds):
    """Return models after explicit loops of one of torch's optimizers over the same batches."""
    federation, trained_models = toy.federation(Local()), []
    for client in federation.state.clients:
        values = options(case, client)
        model = {name: tensor.clone().requires_grad_() for name, tensor in client.initial_model.items()}
        names = [name for name in model if name in values.get("parameters", model)]
        own = {"lr": values.get("lr", toy.train["lr"]), "weight_decay": values.get("weight_decay", 0.0)}
        if values.get("optimizer", toy.train.get("optimizer", "adam")) == "adam":
            optimizer = torch.optim.Adam([model[name] for name in names], **own)
        else:
            optimizer = torch.optim.SGD([model[name] for name in names], momentum=toy.train.get("momentum", 0), **own)
        for number in range(1, rounds + 1):
            client.begin_round(number)
            stream, epochs, steps = (values.get(key) for key in ("stream", "epochs", "steps"))
            for batch in client._private_batches(stream or "private", None, epochs, steps):
                loss = cross_entropy(by_hand_logits(model, client.private.inputs(batch)), client.private.labels[batch])
                gradients = dict(zip(names, torch.autograd.grad(loss, [model[name] for name in names]), strict=True))
                if "correction" in values:
                    gradients = {name: g + values["correction"][name] for name, g in gradients.items()}
                norm = sum(gradient.square().sum() for gradient in gradients.values()).sqrt().item()
                for name, gradient in gradients.items():
                    model[name].grad = gradient * min(1.0, values.get("max_grad_norm", norm) / norm)
                optimizer.step()
        trained_models.append({name: tensor.detach() for name, tensor in model.items()})
    return trained_models


@EVERY_CASE
@EVERY_RUN
def test_option_equals_an_explicit_loop(case, toy):
    expected = explicit_models(case, toy, rounds=2)
    assert close(models(Trains(case), toy, rounds=2), expected, 1e-7), "Adam amplifies rounding errors"
    if case != "default" and {"optimizer": toy.train.get("optimizer", "adam")} != CASES[case]:
        assert not close(models(Trains(), toy, rounds=2), expected, 1e-4)


@EVERY_CASE
@EVERY_RUN
def test_stacked_execution_has_the_same_options(case, toy):
    check_stacked(Trains(case), toy)


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("case", ["head", "one tensor", "epochs", "clipped", "decayed", "corrected", "stream"])
def test_stacked_execution_has_the_same_options_with_batch_norm(case):
    # SGD, because a bias before a normalisation has only a rounding error as gradient, which Adam would amplify.
    check_stacked(Trains(case), RUNS["momentum"])
    check_stacked(Trains(case), RUNS["epochs"].changed(optimizer="sgd"))


def check_stacked(method, toy):
    separate, stacked = toy.federation(method), toy.changed(execution="stacked").federation(method)
    assert stacked.execution == "stacked"
    with separate.worker_pool, stacked.worker_pool:
        for left, right in zip(run_rounds(separate, 2), run_rounds(stacked, 2), strict=True):
            for expected, seen in zip(left.rows, right.rows, strict=True):
                keys = ("num_steps", "used_lr", "loss_private", "loss_returned")
                assert [seen.get(key) for key in keys] == pytest.approx([expected.get(key) for key in keys])
    assert close(list(personal_models(stacked).values()), list(personal_models(separate).values()), 1e-9)


def test_number_of_steps_and_learning_rate_are_returned():
    def logged(case, toy):
        federation = toy.federation(Trains(case))
        with federation.worker_pool:
            return [(row["num_steps"], row["used_lr"]) for row in next(run_rounds(federation, 1)).rows]

    assert logged("default", RUNS["sgd"]) == [(3, 0.1)] * 3
    assert logged("steps", RUNS["sgd"]) == [(5, 0.1)] * 3
    assert logged("epochs", RUNS["sgd"]) == [(3, 0.1), (6, 0.1), (9, 0.1)], "three epochs of 3, 6 and 11 examples"
    assert logged("learning rate", RUNS["sgd"]) == [(3, 0.4)] * 3
    assert logged("no steps", RUNS["sgd"]) == logged("no epochs", RUNS["sgd"]) == [(0, 0.1)] * 3


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_layers_without_trained_entries_are_in_evaluation_mode(execution):
    toy = RUNS["epochs"].changed(execution=execution)
    before, head = models(Trains(), toy, rounds=0), models(Trains("head"), toy)
    for old, new in zip(before, head, strict=True):
        assert {name for name in new if not torch.equal(old[name], new[name])} == HEAD
    # A client with one example has no batch statistics, but its head can be trained.
    assert same(models(Trains(), toy)[2:], before[2:])


@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_training_of_no_parameter_changes_nothing_and_the_next_training_is_normal(execution):
    toy = RUNS["adam"].changed(execution=execution)
    federation = toy.federation(TrainsNothingFirst())
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 2) for row in done.rows]
    assert [(row["changed"], row["num_steps"]) for row in rows] == [(False, 0)] * 6
    assert same(list(personal_models(federation).values()), models(Local(), toy, rounds=2))


def test_another_optimizer_has_its_own_state():
    client = run_toy(Trains("adam"), RUNS["momentum"], rounds=1).state.clients[0]
    assert client.state.keys() == {"model", "model-adam.optimizer"}
    assert client.state["model-adam.optimizer"]["head.bias"].keys() == {"step", "exp_avg", "exp_avg_sq"}
