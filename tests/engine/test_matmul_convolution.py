"""Convolutions of stacked clients as matrix products equal grouped ones up to rounding."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedmosaic_cli.engine.execution.stacked.matmul_convolution import (
    MatmulConv2d,
    stacked_matmul_convolution,
    use_matrix_products,
)
from fedmosaic_cli.engine.execution.stacked.stacked_layers import (
    ForwardContext,
    StackedLayer,
    StackedNetwork,
    is_stackable,
    num_multiplications,
    stacked_convolution,
)
from fedmosaic_cli.models.architectures import build_network
from tests.engine.test_stacked import NETWORKS
from tests.federation.sites import export_shards, make_config, run

CLIENTS, BATCH = 3, 4
CONVOLUTIONS = {
    "plain": nn.Conv2d(2, 5, 3),
    "one by one": nn.Conv2d(2, 5, 1),
    "padded": nn.Conv2d(2, 5, 3, padding=1),
    "strided": nn.Conv2d(2, 5, 3, stride=2, padding=2),
    "dilated": nn.Conv2d(2, 5, 2, dilation=2),
    "oblong": nn.Conv2d(2, 5, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(1, 2)),
    "without bias": nn.Conv2d(2, 5, 3, bias=False),
    "grouped": nn.Conv2d(2, 4, 3, groups=2),
    "same": nn.Conv2d(2, 5, 3, padding="same"),
}


def weights_of(layer: nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {name: (CLIENTS, *tensor.shape) for name, tensor in layer.state_dict().items()}
    return {n: torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for n, s in shapes.items()}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_outputs_and_gradients_equal_those_of_a_grouped_convolution(name):
    layer, context = CONVOLUTIONS[name], ForwardContext(CLIENTS, training=True)
    images = torch.randn(BATCH, CLIENTS * 2, 9, 8, dtype=torch.float64, requires_grad=True)
    weights, results = weights_of(layer), []
    for convolve in (stacked_convolution, stacked_matmul_convolution):
        outputs = convolve(StackedLayer(layer, weights), images, context)
        gradients = torch.autograd.grad(outputs.square().sum(), [images, *weights.values()])
        results.append((outputs, *gradients))
    for grouped, product in zip(*results, strict=True):
        assert grouped.shape == product.shape
        assert torch.allclose(grouped, product, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "mlp"])
def test_networks_equal_those_with_grouped_convolutions(name):
    settings, shape = NETWORKS[name]
    grouped = build_network(settings, shape, 5).double()
    product = copy.deepcopy(grouped)
    use_matrix_products(product)
    assert any(isinstance(layer, MatmulConv2d) for layer in product.modules())
    assert is_stackable(product)
    assert num_multiplications(product, shape[1]) == num_multiplications(grouped, shape[1])
    images = torch.randn(BATCH, CLIENTS, *shape, dtype=torch.float64)
    stack = {name: torch.stack([tensor] * CLIENTS) for name, tensor in grouped.state_dict().items()}
    features = [
        StackedNetwork(network).features(stack, images, ForwardContext(CLIENTS)) for network in (grouped, product)
    ]
    assert torch.allclose(*features, rtol=1e-12, atol=1e-12)
    assert torch.equal(product(images[:, 0]), grouped(images[:, 0])), "alone it is the same layer"


def test_runs_with_matrix_products_equal_those_without(tmp_path):
    shards = export_shards(tmp_path)
    network = ("model.name=cnn3-bn", "model.width=0.25", "train.optimizer=sgd", "train.execution=stacked")
    rows = []
    for kind in ("grouped", "matmul"):
        config = make_config(shards, "fedavg", tmp_path, *network, f"train.stacked_convolution={kind}")
        rows.append(run(config, shards, tmp_path / kind).read_rounds())
    assert rows[0] != rows[1], "another order of sums"
    for grouped, product in zip(*rows, strict=True):
        assert grouped["loss_private"] == pytest.approx(product["loss_private"], rel=1e-4)
        assert grouped["accuracy"] == pytest.approx(product["accuracy"], abs=0.02)
