"""Rules of single steps give the same results for one client and for the stacked models of several ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.execution.lockstep import LockstepGroup
from fedmosaic_cli.engine.execution.stacked import stacked_learner
from fedmosaic_cli.engine.execution.stacked.stacked_steps import StackedSteps, rule_key
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.engine.network_learner import GLOBAL_RNG_LOCK
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.step_rules import StepTask
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.models.registered_models import MODELS
from tests.engine.test_stacked import assert_rows_close, check
from tests.toys import TOYS, close, make_toy, models, personal_models, run_toy, same

STACKED = {"execution": "stacked"}


@hyperparameters
class LoopedFedAvg(FedAvg):
    """FedAvg with a loop over steps."""

    def train_local_model(self, client, received):
        for step in client.steps():
            client.optimizer_step("model", step.gradient(client.state["model"]))


@hyperparameters
class RuledFedAvg(FedAvg):
    """FedAvg with a step rule."""

    def train_local_model(self, client, received):
        client.take_steps(self.take_step, ["model"])

    def take_step(self, step, state):
        step.optimizer_step("model", step.gradient(state["model"]))


@hyperparameters
class Counting(RuledFedAvg):
    """Also counts the steps and the squared distance to the received model, in numbers of every client."""

    def train_local_model(self, client, received):
        client.state |= {"start": params.clone(received), "steps": 0.0, "distance": 0.0}
        client.take_steps(self.take_step, ["model", "start", "steps", "distance"])
        client.log(distance=client.state["distance"], steps=client.state["steps"])

    def take_step(self, step, state):
        super().take_step(step, state)
        moved = params.add_scaled(state["model"], state["start"], -1.0)
        state["steps"] = state["steps"] + 1
        state["distance"] = step.dot(moved, moved)


@pytest.fixture
def stack_sizes(monkeypatch):
    """The numbers of clients of all stacks that take steps of a rule."""
    sizes, original = [], StackedSteps.run

    def note(steps):
        sizes.append(steps.num_clients)
        return original(steps)

    monkeypatch.setattr(StackedSteps, "run", note)
    return sizes


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_rule_equals_a_loop_over_steps_and_training(toy):
    looped, ruled = run_toy(LoopedFedAvg(), toy), run_toy(RuledFedAvg(), toy)
    assert same(list(personal_models(looped).values()), list(personal_models(ruled).values()))
    assert [client.metrics for client in looped.state.clients] == [client.metrics for client in ruled.state.clients]
    assert same(models(RuledFedAvg(), toy), models(FedAvg(), toy))


@pytest.mark.parametrize("optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.5}])
def test_stacked_rule_equals_a_stacked_loop_bit_for_bit(stack_sizes, optimizer):
    for name in ("even", "uneven", "epochs", "forgetful"):
        toy = TOYS[name].changed(**STACKED, **optimizer)
        assert same(models(RuledFedAvg(), toy), models(LoopedFedAvg(), toy))
    assert stack_sizes == [3] * 12


def test_every_client_has_its_own_numbers(stack_sizes):
    toy = TOYS["epochs"].changed(local_epochs=1)
    expected, seen = toy.federation(Counting()), toy.changed(**STACKED).federation(Counting())
    with expected.worker_pool, seen.worker_pool:
        for left, right in zip(run_rounds(expected, 2), run_rounds(seen, 2), strict=True):
            for row, stacked_row in zip(left.rows, right.rows, strict=True):
                assert_rows_close(row, stacked_row)
    assert [client.state["steps"] for client in seen.state.clients] == [2.0, 2.0, 2.0]
    assert len({client.state["distance"] for client in seen.state.clients}) == 3
    assert stack_sizes == [3, 3]


@pytest.mark.usefixtures("with_batch_norm")
def test_clients_whose_step_numbers_differ_take_their_steps_themselves(stack_sizes):
    """The first client skips its only batch of an epoch with one example, so its steps have other numbers."""
    toy = make_toy([5, 8, 8]).changed(local_steps=None, local_epochs=2, optimizer="sgd")
    for method in (APFL(), PerFedAvg()):
        assert close(models(method, toy, rounds=2), models(method, toy.changed(**STACKED), rounds=2), 1e-9)
    assert stack_sizes == []


@pytest.mark.parametrize("method", [LoopedFedAvg(), RuledFedAvg()], ids=["loop", "rule"])
def test_clients_with_a_plugin_network_hold_no_lock_while_they_wait_for_each_other(method, monkeypatch):
    def network(num_classes):
        return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()), 3, num_classes)

    submit = LockstepGroup.submit

    def submit_without_lock(*arguments):
        assert not GLOBAL_RNG_LOCK.locked(), "the other clients would wait for it"
        return submit(*arguments)

    monkeypatch.setitem(MODELS, "own", network)
    monkeypatch.setattr(LockstepGroup, "submit", submit_without_lock)
    monkeypatch.setattr(stacked_learner, "have_equal_numbers", lambda clients: False)
    toy = TOYS["even"].changed(models={client: ModelSettings(name="own") for client in range(3)})
    assert close(models(method, toy), models(method, toy.changed(**STACKED)), 1e-9)


@hyperparameters
class Alternating(RuledFedAvg):
    """Updates the head and the body in turn."""

    def take_step(self, step, state):
        gradient = step.gradient(state["model"])
        is_head = step.number % 2 == 0
        step.optimizer_step("model", {name: g for name, g in gradient.items() if name.startswith("head") == is_head})


@hyperparameters
class Constant(RuledFedAvg):
    """Sets a number of every client to a constant in the second step."""

    def train_local_model(self, client, received):
        client.state["alpha"] = client.id / 4
        client.take_steps(self.take_step, ["model", "alpha"])
        client.log(alpha=client.state["alpha"])

    def take_step(self, step, state):
        if step.number == 2:
            state["alpha"] = 0.125
        gradient = step.gradient(state["model"])
        step.optimizer_step("model", params.scaled(gradient, 1 + state["alpha"]))


@hyperparameters
class Integers(RuledFedAvg):
    """Counts the steps of all rounds in an integer, from different numbers."""

    def train_local_model(self, client, received):
        client.state.setdefault("count", client.id % 2)
        client.take_steps(self.take_step, ["model", "count"])
        assert type(client.state["count"]) is int
        client.log(count=client.state["count"])

    def take_step(self, step, state):
        super().take_step(step, state)
        state["count"] = state["count"] + 1


@hyperparameters
class WithoutGradient(RuledFedAvg):
    """Shrinks the weights."""

    def take_step(self, step, state):
        state["model"] = params.scaled(state["model"], 0.9)


@pytest.mark.parametrize("optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.5}], ids=str)
@pytest.mark.parametrize("toy", ["even", "uneven", "epochs"])
@pytest.mark.parametrize("rule", [Alternating, Constant, Integers, WithoutGradient])
def test_stacked_rule_has_the_models_and_logs_of_single_clients(rule, toy, optimizer):
    check(rule(), TOYS[toy].changed(**optimizer))


@hyperparameters
class Vector(RuledFedAvg):
    """Replaces a number by a tensor."""

    def train_local_model(self, client, received):
        client.state["alpha"] = 0.5
        client.take_steps(self.take_step, ["model", "alpha"])

    def take_step(self, step, state):
        state["alpha"] = torch.ones(2, 2)


@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_entries_that_are_no_models_or_numbers_are_refused_in_one_line(execution):
    with pytest.raises(FedMosaicError, match=r"^[^\n]*alpha[^\n]*client.take_steps[^\n]*$"):
        run_toy(Vector(), TOYS["even"].changed(execution=execution), rounds=1)


def test_only_the_same_rule_on_the_same_entries_is_stacked():
    examples = TOYS["even"].federation(RuledFedAvg()).state.clients[0].private

    def key(method, **state):
        return rule_key(StepTask(method.take_step, state, dict, examples, {"private": []}, 0))

    first, second = RuledFedAvg(), RuledFedAvg()
    assert key(first, model={}) == key(first, model={})
    assert key(first, model={}) != key(second, model={})
    assert key(first, model={}) != key(first, model={}, alpha=0.5)
    assert key(first, alpha=0.25) == key(first, alpha=0.5)
    assert key(first, count=1) != key(first, count=2)


def test_interpolation_and_scaling_with_a_number_per_client_equal_those_of_single_models_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(5, generator=generator, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        first, second = ({"w": torch.randn(5, 7, 3, generator=generator).to(dtype)} for _ in range(2))
        mixed, scaled = params.interpolate(first, second, numbers), params.scaled(first, numbers)
        for row, number in enumerate(numbers.tolist()):
            one, other = {"w": first["w"][row]}, {"w": second["w"][row]}
            assert torch.equal(mixed["w"][row], params.interpolate(one, other, number)["w"])
            assert torch.equal(scaled["w"][row], params.scaled(one, number)["w"])
    assert params.clamp(2.5, 0.0, 1.0) == 1.0
    assert params.clamp(numbers, 0.25, 0.5).tolist() == [params.clamp(x, 0.25, 0.5) for x in numbers.tolist()]
