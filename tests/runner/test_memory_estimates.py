"""Estimates count the tensors that a step really holds."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.memory_estimates import LiveMemory, NetworkShape, prediction_bytes, training_bytes

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


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-bn", "cnn3-bn"])
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


def test_the_activations_of_a_hidden_layer_are_counted():
    shape = NetworkShape(ModelSettings(name="mlp", hidden=(64,)), (1, 8, 8), 10)
    examples = 100
    inputs, hidden, logits = (4 * examples * width for width in (64, 64, 10))
    assert prediction_bytes(shape, examples) >= inputs + 2 * hidden
    assert prediction_bytes(shape, examples) <= inputs + 2 * hidden + 2 * logits
