"""Rules of single steps give the same results for one client and for the stacked models of several ones."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.execution.stacked.stacked_steps import StackedSteps, rule_key
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.step_rules import StepTask
from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from tests.engine.test_stacked import assert_rows_close
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


def test_only_the_same_rule_on_the_same_entries_is_stacked():
    examples = TOYS["even"].federation(RuledFedAvg()).state.clients[0].private

    def key(method, **state):
        return rule_key(StepTask(method.take_step, state, dict, examples, {"private": []}, 0))

    first, second = RuledFedAvg(), RuledFedAvg()
    assert key(first, model={}) == key(first, model={})
    assert key(first, model={}) != key(second, model={})
    assert key(first, model={}) != key(first, model={}, alpha=0.5)


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
