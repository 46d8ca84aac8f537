"""Local training of a network on one client's data."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import batching, params
from fedmosaic_cli.engine.execution.transfers import read_scalars, read_values
from fedmosaic_cli.engine.image_prefetch import with_prefetched_images
from fedmosaic_cli.engine.learner import TrainingLosses
from fedmosaic_cli.engine.optim import clip_gradients, optimizer_step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import Tensor, nn

    from fedmosaic_cli.engine.batching import Batch
    from fedmosaic_cli.engine.context import Parameters, State
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import StepOptions, TrainingTask
    from fedmosaic_cli.engine.network_learner import NetworkLearner
    from fedmosaic_cli.models.classifier import Classifier


@dataclass
class BatchOutputs:
    """Implements `engine.context.StepOutputs`."""

    private_indices: Tensor
    private_features: Tensor
    private_logits: Tensor
    public_indices: Tensor
    public_logits: Tensor
    module: nn.Module | None = None
    private_inputs: Tensor | None = None


def fit_network(
    runner: NetworkLearner, parameters: Parameters, optimizer_state: State, task: TrainingTask
) -> TrainingLosses:
    """Train a network for one round.

    Args:
        runner: Provides the module that runs on `parameters`.
        parameters: Model; updated in place.
        optimizer_state: Optimizer state per parameter; updated in place.
        task: Data, batches and loss.

    Returns:
        The mean losses over the round, weighted by batch size.
    """
    options = task.options
    module = runner.bound_module(parameters).train()
    trained = {name: tensor for name, tensor in module.named_parameters() if options.is_trained(name)}
    if not trained:
        return TrainingLosses(None, [None] * len(task.terms))
    with frozen_parameters(module, options.parameters):
        return run_steps(runner, module, trained, optimizer_state, task)


def run_steps(
    runner: NetworkLearner,
    module: Classifier,
    trained: dict[str, nn.Parameter],
    optimizer_state: State,
    task: TrainingTask,
) -> TrainingLosses:
    """Take the steps of a training on the parameters `trained` of a module."""
    options = task.options
    terms = [term.to_device(runner.device) for term in task.terms]
    uses_module = any(getattr(term, "uses_module", False) for term in terms)
    needs_pairs = trains_batch_norm(runner, options)
    private_batches = batching.resolve_indices(task.private, task.schedule.private_batches)
    public_batches: list[Batch] | list[None] = [None] * len(private_batches)
    if any(term.uses_public for term in terms):
        public_batches = batching.resolve_indices(task.public, task.schedule.public_batches)
    totals = [torch.zeros((), dtype=runner.dtype, device=runner.device) for _ in (None, *terms)]
    num_seen = num_steps = 0
    steps = [
        step
        for step in zip(private_batches, public_batches, strict=True)
        if not (needs_pairs and batching.has_singleton_batch(*step))
    ]
    for private_batch, public_batch in with_prefetched_images(task.private, steps):
        # Autocast keeps rounded weights until it ends, and the optimizer changes them: one context per step.
        with runner.autocast():
            outputs = forward(runner, module, task, private_batch, public_batch)
            if uses_module:
                outputs.module = module
                outputs.private_inputs = task.private.batch_inputs(private_batch)
            private_loss = cross_entropy(outputs.private_logits, task.private.targets[private_batch.local_indices])
            term_losses = [term.loss(outputs) for term in terms]
            loss = task.private_weight * private_loss
            for term, term_loss in zip(terms, term_losses, strict=True):
                loss = loss + term.weight * term_loss
        module.zero_grad(set_to_none=True)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
        if task.proximal:
            with torch.no_grad():
                anchor = [task.proximal.anchor[name] for name in gradients]
                drift = torch._foreach_sub([trained[name] for name in gradients], anchor)
                torch._foreach_add_(list(gradients.values()), drift, alpha=task.proximal.strength)
        if task.correction is not None:
            with torch.no_grad():
                torch._foreach_add_(list(gradients.values()), [task.correction[name] for name in gradients])
        if options.max_grad_norm is not None:
            clip_gradients(gradients, options.max_grad_norm)
        optimizer_step(runner.train_settings, trained, gradients, optimizer_state, options)
        num_steps += 1
        for total, part in zip(totals, (private_loss, *term_losses), strict=True):
            total.add_(part.detach() * len(private_batch))
        num_seen += len(private_batch)
    module.zero_grad(set_to_none=True)
    # One read for all losses, because each waits for the device.
    means = read_values(torch.stack(totals) / num_seen) if num_seen else [None] * len(totals)
    return TrainingLosses(means[0], means[1:], num_steps)


@contextmanager
def frozen_parameters(module: nn.Module, trained: Collection[str] | None) -> Iterator[None]:
    """Compute no gradients for other parameters than `trained`, and put modules without any in evaluation mode.

    None freezes nothing. Afterwards all parameters require gradients as before.
    """
    if trained is None:
        yield
        return
    set_eval_mode(module, trained)
    frozen = [p for name, p in module.named_parameters() if p.requires_grad and name not in trained]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_()


def set_eval_mode(module: nn.Module, trained: Collection[str], prefix: str = "") -> None:
    """Put the modules without trained parameters in evaluation mode."""
    names = {f"{prefix}{name}" for name, _ in module.named_parameters()}
    if names and names.isdisjoint(trained):
        module.eval()
        return
    for name, child in module.named_children():
        set_eval_mode(child, trained, f"{prefix}{name}.")


def trains_batch_norm(runner: NetworkLearner, options: StepOptions) -> bool:
    """Return whether a batch-normalisation layer is in training mode, so that a batch needs two examples."""
    if options.parameters is None:
        return bool(runner.batch_norm_names)
    return not (runner.batch_norm_names - runner.buffer_names).isdisjoint(options.parameters)


def forward(
    runner: NetworkLearner, module: Classifier, task: TrainingTask, private_batch: Batch, public_batch: Batch | None
) -> BatchOutputs:
    """Outputs on a private and a public batch: in one pass, or in two if the network has batch normalisation."""
    if public_batch is None:
        features = module.features(task.private.batch_inputs(private_batch))
        logits = module.head(features)
        return BatchOutputs(private_batch.local_indices, features, logits, private_batch.local_indices[:0], logits[:0])
    if runner.batch_norm_names:
        features = module.features(task.private.batch_inputs(private_batch))
        private_logits = module.head(features)
        public_logits = module(task.public.batch_inputs(public_batch))
    else:
        # Private and public examples share one array of images.
        features = module.features(task.private.batch_inputs(private_batch, public_batch))
        private_logits, public_logits = module.head(features).split([len(private_batch), len(public_batch)])
        features = features[: len(private_batch)]
    return BatchOutputs(
        private_batch.local_indices, features, private_logits, public_batch.local_indices, public_logits
    )


class ManualStep:
    """Implements `engine.context.Step`."""

    def __init__(self, steps: ManualSteps, number: int) -> None:
        self.number = number
        self._steps = steps
        self._batches: dict[str, tuple[Tensor, Tensor]] = {}

    def gradient(
        self, parameters: Parameters, stream: str = "private", update_running_stats: bool = True
    ) -> Parameters:
        if stream not in self._batches:
            self._batches[stream] = self._steps.load_batch(stream, self.number - 1)
        inputs, labels = self._batches[stream]
        with self._steps.runner.seeded_layers(self._steps.seed + self.number):
            loss, gradient = self._steps.runner.gradient(parameters, inputs, labels, update_running_stats)
        self._steps.record_loss(loss, len(labels))
        return gradient


class ManualSteps:
    """The steps of a round for a method with its own step rule."""

    def __init__(
        self, runner: NetworkLearner, private: Examples, batches_by_stream: dict[str, list[Tensor]], seed: int = 0
    ) -> None:
        self.runner = runner
        self.seed = seed
        self._private = private
        self._batches_by_stream = {
            stream: batching.resolve_indices(private, batches) for stream, batches in batches_by_stream.items()
        }
        self._loss_total = torch.zeros((), dtype=runner.dtype, device=runner.device)
        self._num_seen = 0

    def __iter__(self) -> Iterator[ManualStep]:
        for number, batches in enumerate(zip(*self._batches_by_stream.values(), strict=True), start=1):
            if not (self.runner.batch_norm_names and any(len(batch) == 1 for batch in batches)):
                yield ManualStep(self, number)

    def load_batch(self, stream: str, step_index: int) -> tuple[Tensor, Tensor]:
        batch = self._batches_by_stream[stream][step_index]
        return self._private.batch_inputs(batch), self._private.targets[batch.local_indices]

    def record_loss(self, loss: Tensor, num_examples: int) -> None:
        self._loss_total += loss * num_examples
        self._num_seen += num_examples

    def mean_loss(self) -> float | None:
        """The mean over all batches on which a gradient was computed; None without any."""
        return read_scalars(self._loss_total / self._num_seen)[0] if self._num_seen else None


def batch_gradient(
    runner: NetworkLearner, parameters: Parameters, inputs: Tensor, labels: Tensor, update_running_stats: bool
) -> tuple[Tensor, Parameters]:
    """The mean cross-entropy on a batch and its gradient."""
    if not update_running_stats:
        parameters = {**parameters, **params.clone(params.select(parameters, runner.buffer_names))}
    module = runner.bound_module(parameters).train()
    module.zero_grad(set_to_none=True)
    with runner.autocast():
        loss = cross_entropy(module(inputs), labels)
    loss.backward()
    gradient = {name: tensor.grad for name, tensor in module.named_parameters() if tensor.grad is not None}
    module.zero_grad(set_to_none=True)
    return loss.detach(), gradient
