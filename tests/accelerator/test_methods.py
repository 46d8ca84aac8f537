"""Every method has the same results on the simulated accelerator as on the CPU."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.engine.rounds import run_rounds
from tests.accelerator.simulated_device import register
from tests.test_contract import VARIANTS
from tests.toys import CPU, TOYS, Toy, personal_models, same

EXECUTIONS = ("threads", "stacked")


def results(method: Method, toy: Toy, devices: list[torch.device], rounds: int = 3):
    """Return the log and the personal models of a run, on the CPU."""
    federation = toy.federation(method, devices=devices)
    with federation.worker_pool:
        rows = [done.rows for done in run_rounds(federation, rounds)]
    models = [{name: tensor.cpu() for name, tensor in model.items()} for model in personal_models(federation).values()]
    return rows, models


def assert_equal_on(method: Method, toy: Toy, devices: list[torch.device]) -> None:
    rows, models = results(method, toy, devices)
    expected_rows, expected_models = results(method, toy, [CPU])
    assert rows == expected_rows
    assert same(models, expected_models)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_results_equal_those_of_the_cpu(name, execution):
    assert_equal_on(VARIANTS[name], TOYS["uneven"].changed(execution=execution), [register()])


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedmosaic", "student", "scaffold"])
def test_clients_on_two_devices_have_the_results_of_one(name):
    """One client in two is on the CPU, so every message, model and label crosses between devices."""
    assert_equal_on(VARIANTS[name], TOYS["uneven"], [register(), CPU])


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedmosaic"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_batch_statistics_equal_those_of_the_cpu(name, execution):
    assert_equal_on(VARIANTS[name], TOYS["even"].changed(execution=execution), [register()])
