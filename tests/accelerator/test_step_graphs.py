"""Runs with `train.cuda_graphs` on the simulated accelerator equal those without, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedmosaic_cli.engine.execution import step_graph
from fedmosaic_cli.engine.execution.stacked import batch_table
from fedmosaic_cli.engine.execution.step_graph import MIN_REPLAYS
from fedmosaic_cli.engine.losses import UniformTargetLoss
from fedmosaic_cli.engine.method import Method, hyperparameters
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.local import Local
from tests.accelerator.round_costs import round_cost
from tests.accelerator.simulated_device import Operations, record_operations, register
from tests.accelerator.simulated_graph import CAPTURE_WAIT, REPLAY, SimulatedGraphs
from tests.accelerator.test_methods import results
from tests.test_contract import VARIANTS
from tests.toys import CPU, TOYS, Toy, make_toy, same

STEPS = MIN_REPLAYS + 4
STEP_RULES = ("perfedavg", "perfedavg-hf", "pfedme", "apfl")
UNSTACKED = ("centralized",)
"""Methods with a single client."""
SGD = {"optimizer": "sgd", "lr": 0.1}


def graph_toy(name: str = "uneven", **changes: Any) -> Toy:
    """Return a toy with enough steps for a graph."""
    return TOYS[name].changed(**{"execution": "stacked", "local_steps": STEPS, "cuda_graphs": True, **changes})


def run(method: Method, toy: Toy, *devices: torch.device) -> tuple[Any, Operations]:
    """Return the results of two rounds, and what the devices were asked for."""
    with record_operations() as record:
        found = results(method, toy, list(devices) or [register()], rounds=2)
    return found, record


def are_equal(one: Any, other: Any) -> bool:
    return one[0] == other[0] and same(one[1], other[1])


def assert_graphs_change_nothing(method: Method, toy: Toy, *devices: torch.device) -> int:
    """Compare a run with one without graphs. Returns the number of captures."""
    with_graphs, record = run(method, toy, *devices)
    without_graphs, plain = run(method, toy.changed(cuda_graphs=False), *devices)
    assert are_equal(with_graphs, without_graphs)
    assert not plain.kernels[REPLAY]
    captures = record.waits[CAPTURE_WAIT]
    assert record.kernels[REPLAY] >= MIN_REPLAYS * captures
    return captures


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("name", VARIANTS)
def test_results_equal_those_without_graphs(name):
    captures = assert_graphs_change_nothing(VARIANTS[name], graph_toy())
    assert bool(captures) == (name not in (*STEP_RULES, *UNSTACKED))


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.5},
        {"optimizer": "sgd", "lr": 0.1, "optimizer_state": "reset", "momentum": 0.5},
        {"optimizer_state": "reset"},
        {"augment": "crop-flip"},
        {"clients_per_round": 2},
        {"workers": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedmosaic", "student"])
def test_graphs_change_nothing_with_other_settings(name, changes):
    assert assert_graphs_change_nothing(VARIANTS[name], graph_toy(**changes))


@pytest.mark.parametrize("name", ["scaffold", "fedprox"])
def test_corrections_and_proximal_terms_are_part_of_a_graph(name):
    assert assert_graphs_change_nothing(VARIANTS[name], graph_toy(**SGD))


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("toy", ["even", "uneven"])
@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedmosaic"])
def test_running_statistics_are_updated_by_replays(name, toy):
    """With and without padding."""
    assert assert_graphs_change_nothing(VARIANTS[name], graph_toy(toy))


@hyperparameters
class ManyOptions(Local):
    """Trains the head with clipped gradients, then the whole model with a public loss and a weight decay."""

    def local_round(self, client, received, ctx):
        uniform = UniformTargetLoss(torch.zeros(ctx.public_size, dtype=torch.int64), 0.5)
        client.train("model", max_grad_norm=0.1, parameters=ctx.groups["head"])
        client.train("model", [uniform], private_weight=0.7, weight_decay=0.1, lr=0.2, optimizer="sgd", stream="second")
        return {}


def test_clipping_frozen_layers_and_weights_are_part_of_a_graph():
    assert assert_graphs_change_nothing(ManyOptions(), graph_toy()) == 4


def test_clients_on_two_devices_have_graphs_on_both():
    assert assert_graphs_change_nothing(VARIANTS["fedavg"], graph_toy(), register(), register(1)) >= 2


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("name", ["fedavg", "student"])
@pytest.mark.parametrize(
    ("sizes", "graphs"),
    [([5, 7, 6], 2), ([4, 8, 16], 3)],
    ids=["every second batch is smaller", "clients have different numbers of steps"],
)
def test_each_shape_has_a_graph(sizes, graphs, name):
    toy = make_toy(sizes).changed(execution="stacked", cuda_graphs=True, local_epochs=STEPS, local_steps=None)
    captures = assert_graphs_change_nothing(VARIANTS[name], toy)
    if name == "fedavg":
        assert captures == 2 * graphs, "for each of two rounds"


@pytest.mark.parametrize(
    "changes", [{"local_steps": MIN_REPLAYS}, {"images": "host"}, {"execution": "threads"}, {"cuda_graphs": False}]
)
def test_nothing_is_captured_for_few_steps_for_images_on_the_host_or_for_single_clients(changes):
    assert assert_graphs_change_nothing(VARIANTS["fedavg"], graph_toy(**changes)) == 0


def test_one_more_step_is_captured():
    assert assert_graphs_change_nothing(VARIANTS["fedavg"], graph_toy(local_steps=MIN_REPLAYS + 1)) == 2


def test_graphs_have_no_effect_on_a_cpu():
    on_cpu, _ = run(VARIANTS["fedmosaic"], graph_toy(), CPU)
    without, _ = run(VARIANTS["fedmosaic"], graph_toy(cuda_graphs=False), CPU)
    assert are_equal(on_cpu, without)


@pytest.mark.parametrize(
    ("name", "changes", "inputs"),
    [
        ("fedavg", {}, "image_indices"),
        ("fedavg", {}, "labels"),
        ("fedavg", {"augment": "crop-flip"}, "windows"),
        ("perfedckt", {}, "concat_indices"),
        ("fedproto", {}, "local_indices"),
    ],
)
def test_a_graph_that_keeps_the_inputs_of_the_captured_step_gives_other_results(name, changes, inputs, monkeypatch):
    """A replay must read every input of the current step, not of the captured one."""
    toy = graph_toy(**changes)
    expected, _ = run(VARIANTS[name], toy)
    original = batch_table.RoundBatches.step

    def keep(batches, step_index, num_clients, position=None):
        labels, private, public = original(batches, step_index, num_clients, position)
        fixed_labels, fixed_private, fixed_public = original(batches, step_index, num_clients)
        if inputs == "labels":
            return fixed_labels, private, public
        kept = replace(private, **{inputs: getattr(fixed_private, inputs)})
        if public is not None:
            public = replace(public, **{inputs: getattr(fixed_public, inputs)})
        return labels, kept, public

    monkeypatch.setattr(batch_table.RoundBatches, "step", keep)
    assert are_equal(run(VARIANTS[name], toy.changed(cuda_graphs=False))[0], expected)
    assert not are_equal(run(VARIANTS[name], toy)[0], expected)


def test_replays_that_do_not_move_on_give_other_results(monkeypatch):
    expected, _ = run(VARIANTS["fedavg"], graph_toy())
    monkeypatch.setattr(step_graph, "set_position", lambda position, index: None)
    assert not are_equal(run(VARIANTS["fedavg"], graph_toy())[0], expected)


@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_a_further_step_launches_a_copy_of_its_number_and_a_replay(name):
    costs = [round_cost(name, "stacked", steps, 6, cuda_graphs=True) for steps in (STEPS, STEPS + 5)]
    assert costs[1].kernels - costs[0].kernels == 2 * 5
    assert costs[1].waits == costs[0].waits
    plain = [round_cost(name, "stacked", steps, 6) for steps in (STEPS, STEPS + 5)]
    assert plain[1].kernels - plain[0].kernels > 30 * 5
    assert costs[0].waits - plain[0].waits == 1, "the capture"


class ReadingLoss(UniformTargetLoss):
    """A loss that reads a value, against the contract."""

    def example_losses(self, logits, targets):
        return super().example_losses(logits, targets) * (2.0 if logits.sum().item() > 0 else 1.0)


class FailingLoss(UniformTargetLoss):
    def example_losses(self, logits, targets):
        raise RuntimeError("wrong")


@hyperparameters
class WithLoss(Local):
    """Trains with a loss on the public set."""

    loss: Any = None

    def local_round(self, client, received, ctx):
        client.train("model", [self.loss(torch.zeros(ctx.public_size, dtype=torch.int64), 0.5)])
        return {}


def test_a_loss_that_reads_a_value_is_an_error_that_says_what_to_do():
    expected = r"cannot be captured in a CUDA graph \(train.cuda_graphs\): .*_local_scalar_dense: set it to false"
    with pytest.raises(RequestError, match=expected):
        run(WithLoss(ReadingLoss), graph_toy())
    run(WithLoss(ReadingLoss), graph_toy(cuda_graphs=False))


def test_other_errors_of_a_step_are_not_changed():
    with pytest.raises(RuntimeError, match=r"^wrong$"):
        run(WithLoss(FailingLoss), graph_toy())


class TestSimulatedGraph:
    def test_a_capture_computes_nothing_and_a_replay_reads_the_memory_anew(self):
        values, total = torch.ones(3).to(register()), torch.zeros(3).to(register())

        def add():
            total.add_((values * 2).exp().log())

        replay = SimulatedGraphs(register()).capture(add)
        assert total.tolist() == [0, 0, 0]
        replay()
        values.fill_(2)
        replay()
        assert total.tolist() == pytest.approx([6, 6, 6])

    @pytest.mark.parametrize(
        "function",
        [lambda values: values.sum().item(), lambda values: values.cpu(), lambda values: values[values > 0]],
        ids=["read", "copy", "size"],
    )
    def test_waits_cannot_be_captured(self, function):
        values = torch.ones(3).to(register())
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            SimulatedGraphs(register()).capture(lambda: function(values))
        assert function(values) is not None, "the capture has ended"

    def test_a_replay_on_freed_memory_fails(self):
        memory = [torch.ones(3).to(register())]
        replay = SimulatedGraphs(register()).capture(lambda: memory[0].add_(1))
        replay()
        memory.clear()
        with pytest.raises(RuntimeError, match="memory that was freed"):
            replay()
