"""Every method has the same results on the simulated accelerator as on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import Parameters
from fedmosaic_cli.engine.losses import DistillationLoss
from fedmosaic_cli.engine.method import Method, hyperparameters
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.accelerator.simulated_device import register
from tests.test_contract import VARIANTS
from tests.toys import CPU, TOYS, Toy, from_disk, mixed, personal_models, same

EXECUTIONS = ("threads", "stacked")
OTHER_CPU = torch.device("cpu", 1)
"""Another name of the CPU, so that its clients have a stack of their own."""


def results(method: Method, toy: Toy, devices: list[torch.device], rounds: int = 3):
    """Return the log and the personal models of a run, on the CPU."""
    federation = toy.federation(method, devices=devices)
    with federation.worker_pool:
        rows = [done.rows for done in run_rounds(federation, rounds)]
    return rows, on_cpu(personal_models(federation))


def on_cpu(models: dict[int, Parameters]) -> list[Parameters]:
    return [params.to_device(model, CPU) for model in models.values()]


def assert_equal_on(method: Method, toy: Toy, devices: list[torch.device]) -> None:
    rows, models = results(method, toy, devices)
    expected_rows, expected_models = results(method, toy, [CPU])
    assert rows == expected_rows
    assert same(models, expected_models)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_results_equal_those_of_the_cpu(name, execution):
    assert_equal_on(VARIANTS[name], TOYS["uneven"].changed(execution=execution), [register()])


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_clients_on_two_devices_have_the_results_of_one(name, execution):
    """Messages, models and labels cross between devices. Stacked results depend on which clients share a stack."""
    toy = TOYS["uneven"].changed(execution=execution)
    rows, models = results(VARIANTS[name], toy, [register(), register(1)])
    expected_rows, expected_models = results(VARIANTS[name], toy, [CPU, OTHER_CPU])
    assert rows == expected_rows
    assert same(models, expected_models)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedmosaic", "student", "scaffold"])
def test_clients_on_the_cpu_and_on_an_accelerator_have_the_results_of_one_device(name):
    assert_equal_on(VARIANTS[name], TOYS["uneven"], [register(), CPU])


@pytest.mark.thinned(every=13)
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_images_on_the_host_give_the_same_results(name, execution, augment):
    """They are gathered on the host, one step ahead where clients are trained one by one."""
    toy = TOYS["uneven"].changed(execution=execution, images="host", augment=augment)
    assert_equal_on(VARIANTS[name], toy, [register()])


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("name", ["fedavg", "fedmosaic"])
def test_images_on_the_host_give_the_same_batch_statistics(name):
    assert_equal_on(VARIANTS[name], TOYS["even"].changed(images="host"), [register()])


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_begun_on_one_device_and_resumed_on_another_equals_that_of_the_cpu(name):
    method, toy = VARIANTS[name], TOYS["uneven"]
    devices = [[register(), register(1)], [CPU]]
    first, second = devices if list(VARIANTS).index(name) % 2 else reversed(devices)
    federation = toy.federation(method, devices=first)
    with federation.worker_pool:
        list(run_rounds(federation, 1))
    resumed = toy.federation(method, devices=second)
    restore_state(resumed, *from_disk(capture_state(federation.state)), 1)
    with resumed.worker_pool:
        list(run_rounds(resumed, 3))
    _, expected = results(method, toy, [CPU])
    assert same(on_cpu(personal_models(resumed)), expected)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", [name for name, method in VARIANTS.items() if method.needs.learners == "anything"])
def test_mixed_models_equal_those_of_the_cpu(name, execution):
    """A network and two classifiers of scikit-learn."""
    toy = mixed(TOYS["uneven"]).changed(execution=execution)
    assert_equal_on(VARIANTS[name], toy, [register(), register(1)])


@hyperparameters
class FixedTeacher(Local):
    """Targets are on the device for the clients `on_device`, and on the host for all others."""

    on_device: tuple[int, ...] = ()

    def local_round(self, client, received, ctx):
        targets = torch.arange(3, dtype=torch.float64).repeat(len(client.train_labels), 1)
        device = register() if client.id in self.on_device else CPU
        client.train("model", [DistillationLoss(targets.to(device), 0.5, 2.0)])
        return {}


@pytest.mark.parametrize("on_device", [(1,), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_targets_may_be_on_the_host_or_on_the_device(execution, on_device):
    toy = TOYS["uneven"].changed(execution=execution)
    rows, models = results(FixedTeacher(on_device=on_device), toy, [register()])
    expected_rows, expected_models = results(FixedTeacher(), toy, [register()])
    assert rows == expected_rows
    assert same(models, expected_models)


@pytest.mark.parametrize("part", ["model", "labels"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_client_with_tensors_on_another_device_fails(execution, part):
    toy = TOYS["even"].changed(execution=execution)
    federation = toy.federation(VARIANTS["local"], devices=[register()])
    client = federation.state.clients[1]
    if part == "model":
        client.state["model"] = params.to_device(client.state["model"], register(1))
    else:
        client.private = replace(client.private, labels=client.private.targets.cpu())
    with federation.worker_pool, pytest.raises(RuntimeError, match=r"(?i)tensors|same device"):
        list(run_rounds(federation, 1))


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedmosaic"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_batch_statistics_equal_those_of_the_cpu(name, execution):
    assert_equal_on(VARIANTS[name], TOYS["even"].changed(execution=execution), [register()])
