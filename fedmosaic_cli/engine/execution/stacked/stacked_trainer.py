"""A round of local steps of several clients together, each as if it were alone.

What differs between clients stays theirs: padding is left out of every loss and of batch statistics, who has fewer
steps stops earlier, and optimizers remember for each client apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine.batching import too_short
from fedmosaic_cli.engine.execution.stacked.batch_table import Slot, Timetable
from fedmosaic_cli.engine.execution.stacked.stacked_layers import Pass, StackedNetwork
from fedmosaic_cli.engine.execution.stacked.stacked_losses import JoinedTerm, Seen
from fedmosaic_cli.engine.learner import Losses
from fedmosaic_cli.engine.optim import descend

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from fedmosaic_cli.engine.learner import Lesson
    from fedmosaic_cli.engine.method import Parameters, State, Term
    from fedmosaic_cli.engine.network_runner import Workspace


@dataclass(frozen=True)
class Pupil:
    """A client that trains: its model, its optimizer's memory, and its steps, each a private and a public batch."""

    parameters: Parameters
    memory: State
    lesson: Lesson
    steps: list[tuple[Tensor, Tensor | None]]

    @cached_property
    def rank(self) -> tuple[int, float]:
        """Who has more steps comes first; whose optimizers are of one age stand together."""
        remembered: State = next(iter(self.memory.values()), {"step": -1.0})
        return -len(self.steps), float(remembered.get("step", 0.0))


def steps_of(lesson: Lesson, skip_single: bool) -> list[tuple[Tensor, Tensor | None]]:
    """The steps that the trainer would take; see `training.fit`."""
    with_public = any(term.uses_public for term in lesson.terms)
    public = lesson.draw.public if with_public else [None] * len(lesson.draw.private)
    pairs = zip(lesson.draw.private, public, strict=True)
    return [pair for pair in pairs if not (skip_single and too_short(*pair))]


def kind_of(lesson: Lesson) -> Hashable:
    """What lessons must have in common to be taken together. Data, weights and the lengths of batches may differ."""
    terms = tuple((type(term), *sorted(settings_of(term).items())) for term in lesson.terms)
    return terms, lesson.leash is not None


def settings_of(term: Term) -> dict[str, object]:
    return {key: value for key, value in vars(term).items() if key != "weight" and not isinstance(value, torch.Tensor)}


class Course:
    """Pupils in the order of their rank, so that those who still have steps to take always come first."""

    def __init__(self, workspace: Workspace, pupils: list[Pupil]) -> None:
        self._workspace = workspace
        self._pupils = pupils
        self._network = StackedNetwork(workspace.template)
        self._stack = {name: torch.stack([p.parameters[name] for p in pupils]) for name in pupils[0].parameters}
        self._trained = workspace.trained
        self._blocks = blocks_of(pupils)
        self._moved = {
            (block, name): self._stack[name][block.start : block.stop]
            for block in self._blocks
            for name in self._trained
        }
        self._memory: dict[Any, State] = {}
        lessons = [pupil.lesson for pupil in pupils]
        self._terms = [
            JoinedTerm(terms, workspace) for terms in zip(*(lesson.terms for lesson in lessons), strict=True)
        ]
        self._private_weight = self._vector([lesson.private_weight for lesson in lessons])
        self._leash = self._joined_leash(lessons)
        self._totals = torch.zeros(1 + len(self._terms), len(pupils), dtype=workspace.dtype, device=workspace.device)

    def taken(self) -> list[Losses]:
        """Train everybody in place, and tell the mean losses."""
        if self._pupils[0].steps:
            self._load_memory()
            self._take_steps()
            self._save_memory()
            for name, tensor in self._stack.items():
                torch._foreach_copy_([pupil.parameters[name] for pupil in self._pupils], list(tensor.unbind()))
        seen = [sum(len(private) for private, _ in pupil.steps) for pupil in self._pupils]
        losses = [
            [total / count if count else None for total in totals]
            for totals, count in zip(self._totals.T.tolist(), seen, strict=True)
        ]
        return [Losses(private, terms) for private, *terms in losses]

    def _take_steps(self) -> None:
        examples = [pupil.lesson.private for pupil in self._pupils]
        private = Timetable(examples, [[batch for batch, _ in pupil.steps] for pupil in self._pupils])
        public = None
        if self._pupils[0].steps[0][1] is not None:
            others = [pupil.lesson.public for pupil in self._pupils]
            public = Timetable(
                others, [[batch for _, batch in pupil.steps if batch is not None] for pupil in self._pupils]
            )
        labels = torch.cat([each.targets for each in examples])
        clients, weights = 0, self._stack
        for number in range(len(self._pupils[0].steps)):
            taking_part = sum(len(pupil.steps) > number for pupil in self._pupils)
            if taking_part != clients:
                clients, weights = taking_part, self._weights_of(taking_part)
            self._step(weights, labels, private.step(number, clients), public.step(number, clients) if public else None)

    def _weights_of(self, clients: int) -> Parameters:
        """The weights of those who come first, sharing memory with the stack."""
        weights = {name: tensor[:clients] for name, tensor in self._stack.items()}
        return {**weights, **{name: weights[name].detach().requires_grad_() for name in self._trained}}

    def _step(self, weights: Parameters, labels: Tensor, batch: Slot, others: Slot | None) -> None:
        clients = len(batch.lengths)
        with self._workspace.precision():
            seen = self._look(weights, batch, others)
            losses = cross_entropy(seen.logits.flatten(0, 1), labels[batch.joined].flatten(), reduction="none")
            values = [batch.means(losses.view(clients, -1)), *(term.values(seen) for term in self._terms)]
            total = self._private_weight[:clients] * values[0]
            for term, value in zip(self._terms, values[1:], strict=True):
                total = total + term.weight[:clients] * value
        # Nobody's loss depends on another's weights: the gradients of the sum are everybody's own.
        found = torch.autograd.grad(total.sum(), [weights[name] for name in self._trained])
        gradients = dict(zip(self._trained, found, strict=True))
        with torch.no_grad():
            self._totals[:, :clients] += torch.stack(values) * batch.counts
            if self._leash:
                self._pull(gradients, weights, *self._leash)
        slopes = {
            (block, name): gradient[block.start : block.stop]
            for name, gradient in gradients.items()
            for block in self._blocks
            if block.stop <= clients
        }
        descend(self._workspace.train, self._moved, slopes, self._memory)

    def _pull(self, gradients: Parameters, weights: Parameters, anchor: Parameters, strength: Tensor) -> None:
        """Add the leashes' gradients to those of the losses; see `training.pull`."""
        for name, gradient in gradients.items():
            drift = weights[name] - anchor[name][: len(gradient)]
            gradient.add_(across(strength[: len(gradient)], drift) * drift)

    def _look(self, weights: Parameters, batch: Slot, others: Slot | None) -> Seen:
        """The outputs on private and public batches: in one pass, unless batch statistics would mix the two."""
        if others is None or self._workspace.batch_norm:
            features, logits = self._outputs(weights, batch.places, batch.present)
            if others is None:
                return Seen(batch, features, logits)
            return Seen(batch, features, logits, others, self._outputs(weights, others.places, others.present)[1])
        features, logits = self._outputs(weights, torch.cat([batch.places, others.places]), None)
        logits, public_logits = logits.split([len(batch.places), len(others.places)], dim=1)
        return Seen(batch, features[:, : len(batch.places)], logits, others, public_logits)

    def _outputs(self, weights: Parameters, places: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features and logits on the images at `places` [batch, clients]."""
        way = Pass(places.shape[1], True, present)
        images = self._pupils[0].lesson.private.shown(places)  # all sets lie in the one array of images
        features = self._network.features(weights, images, way)
        return features, self._network.head(weights, features, way)

    def _load_memory(self) -> None:
        for block, name in self._moved:
            members = [self._pupils[place].memory for place in block]
            if name in members[0]:
                entries = [memory[name] for memory in members]
                self._memory[block, name] = {key: together([each[key] for each in entries]) for key in entries[0]}

    def _save_memory(self) -> None:
        for (block, name), remembered in self._memory.items():
            for row, place in enumerate(block):
                self._pupils[place].memory[name] = {key: apart(value, row) for key, value in remembered.items()}

    def _joined_leash(self, lessons: list[Lesson]) -> tuple[Parameters, Tensor] | None:
        leashes = [lesson.leash for lesson in lessons if lesson.leash]
        if not leashes:
            return None
        anchor = {name: torch.stack([leash.anchor[name] for leash in leashes]) for name in self._trained}
        return anchor, self._vector([leash.strength for leash in leashes])

    def _vector(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self._workspace.dtype, device=self._workspace.device)


def blocks_of(pupils: list[Pupil]) -> list[range]:
    """Neighbours of one rank: an optimizer treats their weights as one tensor."""
    blocks, start = [], 0
    for _, members in groupby(pupils, key=lambda pupil: pupil.rank):
        stop = start + len(list(members))
        blocks.append(range(start, stop))
        start = stop
    return blocks


def together(values: list[Tensor]) -> Tensor:
    """What an optimizer remembers of clients of one rank: their tensors stacked; the step, which is the same, once."""
    return torch.stack(values) if values[0].dim() else values[0].clone()


def apart(value: Tensor, row: int) -> Tensor:
    """The reverse, for one of them."""
    return value[row].clone() if value.dim() else value.clone()


def across(vector: Tensor, tensor: Tensor) -> Tensor:
    """A number for each client, to be multiplied with whatever they have."""
    return vector.view(-1, *[1] * (tensor.dim() - 1))
