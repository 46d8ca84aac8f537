"""The one trainer: a round of local steps on one client's data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import batching, params
from fedmosaic_cli.engine.learner import TrainingLosses
from fedmosaic_cli.engine.optim import optimizer_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from fedmosaic_cli.engine.batching import Batch
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import TrainingTask
    from fedmosaic_cli.engine.method import LossTerm, Parameters, ProximalTerm, State
    from fedmosaic_cli.engine.network_runner import NetworkRunner
    from fedmosaic_cli.models.classifier import Classifier


@dataclass
class BatchOutputs:
    """What terms may look at; see `engine.method.Outputs`."""

    private_indices: Tensor
    private_features: Tensor
    private_logits: Tensor
    public_indices: Tensor
    public_logits: Tensor


def fit_network(
    runner: NetworkRunner, parameters: Parameters, optimizer_state: State, task: TrainingTask
) -> TrainingLosses:
    """Train `parameters` in place, carrying the optimizer's `memory` on."""
    module = runner.bound_module(parameters).train()
    trained = dict(module.named_parameters())
    terms = [term.to_device(runner.device) for term in task.terms]
    with_public = any(term.uses_public for term in terms)
    private = batching.resolve_indices(task.private, task.schedule.private_batches)
    public = (
        batching.resolve_indices(task.public, task.schedule.public_batches) if with_public else [None] * len(private)
    )
    totals = [torch.zeros((), dtype=runner.dtype, device=runner.device) for _ in (None, *terms)]
    seen = 0
    for batch, others in zip(private, public, strict=True):
        if runner.batch_norm_names and batching.has_singleton_batch(batch, others):
            continue
        loss, parts = step_losses(runner, module, task, terms, batch, others)
        module.zero_grad(set_to_none=True)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
        if task.proximal:
            add_proximal_gradient(gradients, trained, task.proximal)
        optimizer_step(runner.train_settings, trained, gradients, optimizer_state)
        for total, part in zip(totals, parts, strict=True):
            total.add_(part.detach() * len(batch))
        seen += len(batch)
    module.zero_grad(set_to_none=True)
    means = [(total / seen).item() if seen else None for total in totals]
    return TrainingLosses(means[0], means[1:])


def step_losses(
    runner: NetworkRunner,
    module: Classifier,
    task: TrainingTask,
    terms: Sequence[LossTerm],
    private_batch: Batch,
    public_batch: Batch | None,
) -> tuple[Tensor, list[Tensor]]:
    """What a step descends on, and what that is made of: the private loss, and that of each term."""
    with runner.autocast():
        outputs = forward(runner, module, task, private_batch, public_batch)
        private = cross_entropy(outputs.private_logits, task.private.targets[private_batch.local_indices])
        values = [term.loss(outputs) for term in terms]
        loss = task.private_weight * private
        for term, value in zip(terms, values, strict=True):
            loss = loss + term.weight * value
    return loss, [private, *values]


def add_proximal_gradient(
    gradients: dict[str, Tensor], parameters: dict[str, nn.Parameter], proximal: ProximalTerm
) -> None:
    """Add the leash's gradient to the loss's."""
    with torch.no_grad():
        drift = torch._foreach_sub(
            [parameters[name] for name in gradients], [proximal.anchor[name] for name in gradients]
        )
        torch._foreach_add_(list(gradients.values()), drift, alpha=proximal.strength)


def forward(
    runner: NetworkRunner, module: Classifier, task: TrainingTask, private_batch: Batch, public_batch: Batch | None
) -> BatchOutputs:
    """The outputs on a private and on a public batch: in one pass, unless batch statistics would mix the two."""
    if public_batch is None:
        features = module.features(task.private.normalised_images(private_batch.image_indices))
        logits = module.head(features)
        return BatchOutputs(private_batch.local_indices, features, logits, private_batch.local_indices[:0], logits[:0])
    if runner.batch_norm_names:
        features = module.features(task.private.normalised_images(private_batch.image_indices))
        private_logits, public_logits = (
            module.head(features),
            module(task.public.normalised_images(public_batch.image_indices)),
        )
    else:
        # Both sets lie in the one array of images.
        features = module.features(
            task.private.normalised_images(torch.cat([private_batch.image_indices, public_batch.image_indices]))
        )
        private_logits, public_logits = module.head(features).split([len(private_batch), len(public_batch)])
        features = features[: len(private_batch)]
    return BatchOutputs(
        private_batch.local_indices, features, private_logits, public_batch.local_indices, public_logits
    )


class ManualStep:
    """A step that a method takes by itself; see `engine.method.Step`."""

    def __init__(self, steps: ManualSteps, number: int) -> None:
        self.number = number
        self._steps = steps
        self._batches: dict[str, tuple[Tensor, Tensor]] = {}

    def gradient(
        self, parameters: Parameters, stream: str = "private", update_running_stats: bool = True
    ) -> Parameters:
        if stream not in self._batches:
            self._batches[stream] = self._steps.batch(stream, self.number - 1)
        inputs, labels = self._batches[stream]
        loss, gradient = self._steps.runner.gradient(parameters, inputs, labels, update_running_stats)
        self._steps.record_loss(loss, len(labels))
        return gradient


class ManualSteps:
    """The steps of a round as a method with its own step rule walks them."""

    def __init__(self, runner: NetworkRunner, private: Examples, batches_by_stream: dict[str, list[Tensor]]) -> None:
        self.runner = runner
        self._private = private
        self._batches_by_stream = {
            stream: batching.resolve_indices(private, drawn) for stream, drawn in batches_by_stream.items()
        }
        self._loss_total = torch.zeros((), dtype=runner.dtype, device=runner.device)
        self._num_seen = 0

    def __iter__(self) -> Iterator[ManualStep]:
        for number, drawn in enumerate(zip(*self._batches_by_stream.values(), strict=True), start=1):
            if not (self.runner.batch_norm_names and any(len(batch) == 1 for batch in drawn)):
                yield ManualStep(self, number)

    def batch(self, stream: str, step_index: int) -> tuple[Tensor, Tensor]:
        batch = self._batches_by_stream[stream][step_index]
        return self._private.normalised_images(batch.image_indices), self._private.targets[batch.local_indices]

    def record_loss(self, loss: Tensor, num_examples: int) -> None:
        self._loss_total += loss * num_examples
        self._num_seen += num_examples

    def mean_loss(self) -> float | None:
        """Over all batches that a gradient was taken on, if there were any."""
        return (self._loss_total / self._num_seen).item() if self._num_seen else None


def batch_gradient(
    runner: NetworkRunner, parameters: Parameters, inputs: Tensor, labels: Tensor, update_running_stats: bool
) -> tuple[Tensor, Parameters]:
    """The mean cross-entropy on a batch and its gradient."""
    if not update_running_stats:
        parameters = {**parameters, **params.clone(params.select(parameters, runner.buffer_names))}
    module = runner.bound_module(parameters).train()
    module.zero_grad(set_to_none=True)
    with runner.autocast():
        loss = cross_entropy(module(inputs), labels)
    loss.backward()
    gradient = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    return loss.detach(), gradient
