"""The batch size of evaluations: constant on CPUs, bounded by memory on accelerators."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmosaic_cli.engine.eval_batches import (
    CPU_EVAL_BATCH_SIZE,
    MAX_EVAL_BATCH_SIZE,
    MAX_EVAL_BYTES,
    eval_batch_size,
    largest_operation_bytes,
)
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.models.model_settings import ModelSettings
from tests.toys import CPU

GPU = torch.device("cuda")
SMALL, LARGE = (3, 32, 32), (3, 224, 224)


def network(name: str, shape: tuple[int, int, int]) -> Classifier:
    with torch.device("meta"):
        return build_network(ModelSettings(name=name), shape, 10)


class Unusual(Classifier):
    """A network that does not run on torch's meta device."""

    def __init__(self):
        super().__init__(nn.Flatten(), 4, 3)

    def forward(self, inputs):
        return super().forward(inputs) if inputs.sum().item() > 0 else inputs


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_cpus_have_small_batches(name):
    assert eval_batch_size(network(name, SMALL), SMALL, CPU) == CPU_EVAL_BATCH_SIZE


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_accelerators_have_large_batches(name):
    assert eval_batch_size(network(name, SMALL), SMALL, GPU) == MAX_EVAL_BATCH_SIZE


@pytest.mark.parametrize("name", ["alexnet-bn", "vit"])
def test_large_images_have_batches_that_fit_into_memory(name):
    template = network(name, LARGE)
    size = eval_batch_size(template, LARGE, GPU)
    assert CPU_EVAL_BATCH_SIZE <= size < MAX_EVAL_BATCH_SIZE
    assert size * largest_operation_bytes(template, LARGE) <= MAX_EVAL_BYTES


def test_the_memory_of_a_layer_is_that_of_its_inputs_outputs_and_weights():
    template = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(1000, 2000, bias=False)), 2000, 3)
    per_example = largest_operation_bytes(template, (1, 10, 100))
    assert 4 * 3000 <= per_example <= 4 * 3000 + 4 * 2_000_000 // MAX_EVAL_BATCH_SIZE


def test_networks_that_cannot_be_measured_have_small_batches():
    assert eval_batch_size(Unusual(), (1, 2, 2), GPU) == CPU_EVAL_BATCH_SIZE
