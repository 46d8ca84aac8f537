"""The one trainer: a round of local steps on one client's data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import batching, params
from fedmosaic_cli.engine.learner import Losses
from fedmosaic_cli.engine.optim import descend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from fedmosaic_cli.engine.batching import Batch
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Lesson
    from fedmosaic_cli.engine.method import Leash, Parameters, State, Term
    from fedmosaic_cli.engine.network_runner import Workspace
    from fedmosaic_cli.models.classifier import Classifier


@dataclass
class BatchOutputs:
    """What terms may look at; see `engine.method.Outputs`."""

    private_index: Tensor
    private_features: Tensor
    private_logits: Tensor
    public_index: Tensor
    public_logits: Tensor


def fit(workspace: Workspace, parameters: Parameters, memory: State, lesson: Lesson) -> Losses:
    """Train `parameters` in place, carrying the optimizer's `memory` on."""
    module = workspace.module(parameters).train()
    trained = dict(module.named_parameters())
    terms = [term.on(workspace.device) for term in lesson.terms]
    with_public = any(term.uses_public for term in terms)
    private = batching.located(lesson.private, lesson.draw.private)
    public = batching.located(lesson.public, lesson.draw.public) if with_public else [None] * len(private)
    totals = [torch.zeros((), dtype=workspace.dtype, device=workspace.device) for _ in (None, *terms)]
    seen = 0
    for batch, others in zip(private, public, strict=True):
        if workspace.batch_norm and batching.too_short(batch, others):
            continue
        loss, parts = losses(workspace, module, lesson, terms, batch, others)
        module.zero_grad(set_to_none=True)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
        if lesson.leash:
            pull(gradients, trained, lesson.leash)
        descend(workspace.train, trained, gradients, memory)
        for total, part in zip(totals, parts, strict=True):
            total.add_(part.detach() * len(batch))
        seen += len(batch)
    module.zero_grad(set_to_none=True)
    means = [(total / seen).item() if seen else None for total in totals]
    return Losses(means[0], means[1:])


def losses(
    workspace: Workspace,
    module: Classifier,
    lesson: Lesson,
    terms: Sequence[Term],
    batch: Batch,
    others: Batch | None,
) -> tuple[Tensor, list[Tensor]]:
    """What a step descends on, and what that is made of: the private loss, and that of each term."""
    with workspace.precision():
        outputs = look(workspace, module, lesson, batch, others)
        private = cross_entropy(outputs.private_logits, lesson.private.targets[batch.positions])
        values = [term.loss(outputs) for term in terms]
        loss = lesson.private_weight * private
        for term, value in zip(terms, values, strict=True):
            loss = loss + term.weight * value
    return loss, [private, *values]


def pull(gradients: dict[str, Tensor], trained: dict[str, nn.Parameter], leash: Leash) -> None:
    """Add the leash's gradient to the loss's."""
    with torch.no_grad():
        drift = torch._foreach_sub([trained[name] for name in gradients], [leash.anchor[name] for name in gradients])
        torch._foreach_add_(list(gradients.values()), drift, alpha=leash.strength)


def look(workspace: Workspace, module: Classifier, lesson: Lesson, batch: Batch, others: Batch | None) -> BatchOutputs:
    """The outputs on a private and on a public batch: in one pass, unless batch statistics would mix the two."""
    if others is None:
        features = module.features(lesson.private.shown(batch.places))
        logits = module.head(features)
        return BatchOutputs(batch.positions, features, logits, batch.positions[:0], logits[:0])
    if workspace.batch_norm:
        features = module.features(lesson.private.shown(batch.places))
        private_logits, public_logits = module.head(features), module(lesson.public.shown(others.places))
    else:
        # Both sets lie in the one array of images.
        features = module.features(lesson.private.shown(torch.cat([batch.places, others.places])))
        private_logits, public_logits = module.head(features).split([len(batch), len(others)])
        features = features[: len(batch)]
    return BatchOutputs(batch.positions, features, private_logits, others.positions, public_logits)


class OwnStep:
    """A step that a method takes by itself; see `engine.method.Step`."""

    def __init__(self, owner: OwnSteps, number: int) -> None:
        self.number = number
        self._owner = owner
        self._batches: dict[str, tuple[Tensor, Tensor]] = {}

    def gradient(self, parameters: Parameters, stream: str = "private", keep_statistics: bool = True) -> Parameters:
        if stream not in self._batches:
            self._batches[stream] = self._owner.batch(stream, self.number - 1)
        inputs, labels = self._batches[stream]
        loss, gradient = self._owner.workspace.gradient(parameters, inputs, labels, keep_statistics)
        self._owner.note(loss, len(labels))
        return gradient


class OwnSteps:
    """The steps of a round as a method with its own step rule walks them."""

    def __init__(self, workspace: Workspace, private: Examples, draws: dict[str, list[Tensor]]) -> None:
        self.workspace = workspace
        self._private = private
        self._draws = {stream: batching.located(private, drawn) for stream, drawn in draws.items()}
        self._total = torch.zeros((), dtype=workspace.dtype, device=workspace.device)
        self._seen = 0

    def __iter__(self) -> Iterator[OwnStep]:
        for number, drawn in enumerate(zip(*self._draws.values(), strict=True), start=1):
            if not (self.workspace.batch_norm and any(len(batch) == 1 for batch in drawn)):
                yield OwnStep(self, number)

    def batch(self, stream: str, number: int) -> tuple[Tensor, Tensor]:
        batch = self._draws[stream][number]
        return self._private.shown(batch.places), self._private.targets[batch.positions]

    def note(self, loss: Tensor, count: int) -> None:
        self._total += loss * count
        self._seen += count

    def mean_loss(self) -> float | None:
        """Over all batches that a gradient was taken on, if there were any."""
        return (self._total / self._seen).item() if self._seen else None


def gradient_at(
    workspace: Workspace, parameters: Parameters, inputs: Tensor, labels: Tensor, keep_statistics: bool
) -> tuple[Tensor, Parameters]:
    """The mean cross-entropy on a batch and its gradient."""
    if not keep_statistics:
        parameters = {**parameters, **params.copy(params.only(parameters, workspace.buffers))}
    module = workspace.module(parameters).train()
    module.zero_grad(set_to_none=True)
    with workspace.precision():
        loss = cross_entropy(module(inputs), labels)
    loss.backward()
    gradient = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    return loss.detach(), gradient
