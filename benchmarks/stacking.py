"""Gradients of several clients: the stacked layers against `torch.func.vmap` over a stacked module state.

Measures the CPU time of a forward and backward pass for all clients, interleaved, with a duplicate of the stacked
layers as control. Prints the median ratio to the stacked layers. Run it with `python benchmarks/stacking.py`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.model_settings import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CLIENTS, BATCH, CLASSES = 10, 32, 10
NETWORKS = {
    "mlp 8x8": (ModelSettings(name="mlp"), (1, 8, 8)),
    "cnn 8x8": (ModelSettings(name="cnn", width=0.25), (1, 8, 8)),
}


def gradient_functions(
    settings: ModelSettings, shape: tuple[int, int, int]
) -> dict[str, Callable[[], dict[str, Tensor]]]:
    """Functions that compute the gradients [clients, ...] of all clients by parameter name."""
    torch.manual_seed(0)
    networks = [build_network(settings, shape, CLASSES) for _ in range(CLIENTS)]
    images, labels = torch.randn(CLIENTS, BATCH, *shape), torch.randint(CLASSES, (CLIENTS, BATCH))
    parameters, buffers = stack_module_state(networks)
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in parameters.items()}
    stack, context = StackedNetwork(networks[0]), ForwardContext(CLIENTS, training=True)
    # The stacked layers expect [batch, clients, channels, height, width] in channels-last memory order.
    folded = images.transpose(0, 1).movedim(2, -1).contiguous().movedim(-1, 2)

    def stacked() -> dict[str, Tensor]:
        logits = stack.head(weights, stack.features(weights, folded, context), context)
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(CLIENTS, -1).mean(dim=1)
        return dict(zip(weights, torch.autograd.grad(losses.sum(), list(weights.values())), strict=True))

    template = copy.deepcopy(networks[0]).to("meta")

    def loss(state: dict[str, Tensor], buffer: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(functional_call(template, (state, buffer), (inputs,)), targets)

    plain = {name: tensor.detach() for name, tensor in weights.items()}
    mapped = vmap(grad(loss))
    return {
        "stacked layers": stacked,
        "duplicate": stacked,
        "vmap": lambda: mapped(plain, buffers, images, labels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10, help="Steps per repetition.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, (settings, shape) in NETWORKS.items():
        functions = gradient_functions(settings, shape)
        expected, mapped = functions["stacked layers"](), functions["vmap"]()
        for key, gradient in expected.items():
            torch.testing.assert_close(mapped[key], gradient, rtol=1e-3, atol=1e-5)
        times: dict[str, list[float]] = {label: [] for label in functions}
        for _ in range(options.repetitions):
            for label, function in functions.items():
                start = time.process_time()
                for _ in range(options.steps):
                    function()
                times[label].append((time.process_time() - start) / options.steps)
        reference = times["stacked layers"]
        for label, values in times.items():
            ratio = statistics.median(a / b for a, b in zip(values, reference, strict=True))
            print(f"{name:10} {label:15} {1e3 * statistics.median(values):8.3f} ms per step, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
