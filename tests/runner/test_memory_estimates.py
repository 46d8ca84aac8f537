"""Estimates count the tensors that a step really holds."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.cost_estimates import DataDimensions, disk_bytes, estimate_costs
from fedmosaic_cli.runner.memory_estimates import (
    LiveMemory,
    NetworkShape,
    concurrent_groups,
    prediction_bytes,
    training_bytes,
)

pytestmark = pytest.mark.unit


def test_live_memory_counts_each_storage_while_it_exists():
    memory = LiveMemory()
    with memory:
        first = torch.zeros(1000, device="meta")
        view = first.view(10, 100)[2:]
        del first
        second = torch.zeros(500, device="meta")
        assert memory.peak_bytes == 6000, "the view keeps its storage, which counts once"
        del view, second
        gc.collect()
        torch.zeros(1400, device="meta")
    assert memory.peak_bytes == 6000


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-bn", "cnn3-bn", "resnet8"])
def test_counts_without_data_equal_those_of_a_real_step(name):
    model, images, size = ModelSettings(name=name), (3, 16, 16), 8
    module = build_network(model, images, 10).train()
    memory = LiveMemory(module.state_dict().values())
    with memory:
        logits = module(torch.empty(size, *images))
        cross_entropy(logits, torch.zeros(size, dtype=torch.int64)).backward()
    counted = training_bytes(NetworkShape(model, images, 10), size, 0)
    assert counted == pytest.approx(memory.peak_bytes, rel=0.02)


def test_public_examples_and_larger_batches_need_more():
    shape = NetworkShape(ModelSettings(name="cnn"), (3, 16, 16), 10)
    assert training_bytes(shape, 8, 0) < training_bytes(shape, 8, 8) == training_bytes(shape, 16, 0)
    assert 1.9 < prediction_bytes(shape, 256) / prediction_bytes(shape, 128) < 2.1


def estimated(*assignments, method="fedavg"):
    """Return memory in MB and disk space in bytes of a run of 40 clients with an mlp, two workers, one by one."""
    layers = ConfigLayers()
    layers.add("preset", {"data": {"dataset": "digits", "clients": 40, "public_size": 0}, "model": {"name": "mlp"}})
    for assignment in ("train.workers=2", "train.execution=threads", *assignments):
        layers.add_assignment(assignment)
    config = resolve_run_config("test", layers, method, 0, DataDirs())
    data = DataDimensions((1, 8, 8), 10, [30] * 40, 0.1)
    return estimate_costs(config, data, torch.device("cpu")), disk_bytes(config, data)


def test_states_on_disk_need_memory_for_the_clients_that_compute_and_disk_space_for_all():
    """FedAvg: a client keeps two optimizer states and uploads a model. Two more models belong to no client."""
    model = 4 * estimated()[0]["parameters"]
    (memory, disk), (stored, stored_disk) = estimated(), estimated("train.client_state=disk")
    states = memory["models_mb"] * 1e6 / model - 40 - 2
    assert states == pytest.approx(40 * 2)
    assert stored["models_mb"] * 1e6 / model == pytest.approx(states * 2 / 40 + 40 + 2, rel=0.01)
    assert stored_disk - disk == pytest.approx(states * model, rel=0.01)
    assert memory["step_mb"] == stored["step_mb"]


def test_stacks_of_different_networks_compute_at_the_same_time():
    """Two stacks of 20 clients are all clients; one worker computes the larger stack only."""
    stacks = ("train.execution=stacked", "clients.20-39.model.hidden=[8]")
    (memory, _), (stored, _), (one_by_one, _) = (
        estimated(*stacks, *more, method="local")
        for more in ((), ("train.client_state=disk",), ("train.client_state=disk", "train.workers=1"))
    )
    assert stored["models_mb"] == memory["models_mb"] > one_by_one["models_mb"]
    assert stored["step_mb"] == memory["step_mb"] > one_by_one["step_mb"]


def test_uploads_are_those_of_the_clients_of_a_round():
    model = 4 * estimated()[0]["parameters"]
    (every, _), (some, _) = estimated(), estimated("train.clients_per_round=10")
    assert (every["models_mb"] - some["models_mb"]) * 1e6 / model == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize(
    ("execution", "participants", "expected"),
    [("threads", 40, (2, 1)), ("threads", 1, (1, 1)), ("stacked", 40, (2, 32)), ("stacked", 5, (1, 5))],
)
def test_clients_that_compute_at_the_same_time(execution, participants, expected):
    layers = ConfigLayers()
    layers.add("preset", {"data": {"dataset": "digits", "clients": 40, "public_size": 0}})
    layers.add_assignment("train.workers=2")
    layers.add_assignment(f"train.clients_per_round={participants}")
    config = resolve_run_config("test", layers, "local", 0, DataDirs())
    assert concurrent_groups(config, 0, torch.device("cpu"), execution) == expected


def test_the_activations_of_a_hidden_layer_are_counted():
    shape = NetworkShape(ModelSettings(name="mlp", hidden=(64,)), (1, 8, 8), 10)
    examples = 100
    inputs, hidden, logits = (4 * examples * width for width in (64, 64, 10))
    assert prediction_bytes(shape, examples) >= inputs + 2 * hidden
    assert prediction_bytes(shape, examples) <= inputs + 2 * hidden + 2 * logits
