"""Stacked clients: rounds of whole methods against clients one by one, and gradients against `torch.func.vmap`.

Rounds: 8x8 images, a small mlp, 15 clients, the settings of the quickstart presets; CPU and wall time per round, in
interleaved repetitions, with a duplicate of the stacked federation as control. Clients one by one use two workers, on
the same two cores. Gradients: a forward and backward pass for all clients, with a duplicate of the stacked layers as
control. Prints medians and median ratios. Run it with `python benchmarks/stacking.py`; `--only rounds` or `gradients`
selects a part.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import ours
import torch
from measuring import measure_interleaved, timed
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from workload import make_images, split_task

from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.model_settings import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CLIENTS, BATCH, CLASSES = 10, 32, 10
METHODS = ["fedavg", "ditto", "fedmosaic", "student", "gated", "perfedavg", "pfedme", "apfl"]
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


def measure_rounds(methods: list[str], repetitions: int, rounds: int) -> None:
    """Print the time of a round one by one and stacked."""
    task = split_task(make_images(1_797, side=8, channels=1), clients=15, train=75, test=24, public=300)
    for method in methods:
        settings = {**ours.QUICKSTART, "rounds": 100_000}  # with this many rounds the gate stays open
        federations = {
            "one by one": ours.federation(
                method, task, ours.TINY_MLP, **{**settings, "workers": 2}, execution="threads"
            ),
            "stacked": ours.federation(method, task, ours.TINY_MLP, **settings, execution="stacked"),
            "duplicate": ours.federation(method, task, ours.TINY_MLP, **settings, execution="stacked"),
        }
        for federation in federations.values():
            ours.run_rounds(federation, 3)  # a candidate and a consensus exist from the third round on
        variants = {
            label: partial(timed, partial(ours.run_rounds, federation, rounds))
            for label, federation in federations.items()
        }
        samples = measure_interleaved(variants, repetitions, per=rounds, warm_up=False)
        for label, own in samples.items():
            columns = []
            for clock in ("cpu", "wall"):
                pairs = zip(own, samples["stacked"], strict=True)
                ratio = statistics.median(sample.on(clock) / stacked.on(clock) for sample, stacked in pairs)
                milliseconds = 1e3 * statistics.median(sample.on(clock) for sample in own)
                columns.append(f"{clock} {milliseconds:7.1f} ms per round, ratio {ratio:.2f}")
            print(f"{method:10} {label:11} {'; '.join(columns)}", flush=True)


def measure_gradients(repetitions: int, num_steps: int) -> None:
    """Print what the gradients of all clients take."""
    for name, (settings, shape) in NETWORKS.items():
        functions = gradient_functions(settings, shape)
        expected, mapped = functions["stacked layers"](), functions["vmap"]()
        for key, gradient in expected.items():
            torch.testing.assert_close(mapped[key], gradient, rtol=1e-3, atol=1e-5)
        times: dict[str, list[float]] = {label: [] for label in functions}
        for _ in range(repetitions):
            for label, function in functions.items():
                start = time.process_time()
                for _ in range(num_steps):
                    function()
                times[label].append((time.process_time() - start) / num_steps)
        reference = times["stacked layers"]
        for label, values in times.items():
            ratio = statistics.median(a / b for a, b in zip(values, reference, strict=True))
            print(f"{name:10} {label:15} {1e3 * statistics.median(values):8.3f} ms per step, ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["rounds", "gradients"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=8, help="Rounds per repetition.")
    parser.add_argument("--steps", type=int, default=40, help="Gradients per repetition.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only != "gradients":
        measure_rounds(options.methods, options.repetitions, options.rounds)
    if options.only != "rounds":
        measure_gradients(options.repetitions, options.steps)


if __name__ == "__main__":
    main()
