"""A round of local steps of several clients together, each as if it were alone.

What differs between clients stays theirs: padding is left out of every loss and of batch statistics, who has fewer
steps stops earlier, and optimizers remember for each client apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from fedmosaic_cli.engine.learner import Losses
from fedmosaic_cli.engine.objective import Targets
from fedmosaic_cli.engine.optimizers import descend
from fedmosaic_cli.engine.stacked.layers import Pass, StackedNetwork
from fedmosaic_cli.engine.stacked.timetable import Slot, Timetable, means, presence
from fedmosaic_cli.engine.training import BatchOutputs

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.learner import Lesson
    from fedmosaic_cli.engine.method import Parameters, State, Term
    from fedmosaic_cli.engine.workspace import Workspace


@dataclass(frozen=True)
class Pupil:
    """A client that trains: its model, its optimizer's memory, and its steps, each a private and a public batch."""

    parameters: Parameters
    memory: State
    lesson: Lesson
    steps: list[tuple[Tensor, Tensor | None]]

    @property
    def rank(self) -> tuple[int, float]:
        """Who has more steps comes first; whose optimizers are of one age stand together."""
        remembered: State = next(iter(self.memory.values()), {"step": -1.0})
        return -len(self.steps), float(remembered.get("step", 0.0))


def steps_of(lesson: Lesson, skip_single: bool) -> list[tuple[Tensor, Tensor | None]]:
    """The steps that the trainer would take; see `training.fit`."""
    with_public = any(term.uses_public for term in lesson.terms)
    public = lesson.draw.public if with_public else [None] * len(lesson.draw.private)
    pairs = zip(lesson.draw.private, public, strict=True)
    return [pair for pair in pairs if not (skip_single and 1 in (len(pair[0]), 0 if pair[1] is None else len(pair[1])))]


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
        self._trained = [name for name in self._stack if name not in workspace.buffers]
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
        means = [
            [total / count if count else None for total in totals]
            for totals, count in zip(self._totals.T.tolist(), seen, strict=True)
        ]
        return [Losses(private, terms) for private, *terms in means]

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
            features, logits, public_logits = self._look(weights, batch, others)
            losses = cross_entropy(logits.flatten(0, 1), labels[batch.joined].flatten(), reduction="none")
            values = [batch.means(losses.view(clients, -1))]
            values += [term.values(batch, features, logits, others, public_logits) for term in self._terms]
            total = self._private_weight[:clients] * values[0]
            for term, value in zip(self._terms, values[1:], strict=True):
                total = total + term.weight[:clients] * value
        gradients = self._gradients(total.sum(), weights)
        with torch.no_grad():
            self._totals[:, :clients] += torch.stack(values) * batch.counts
            if self._leash:
                anchor, strength = self._leash
                for name in gradients:
                    pull = weights[name] - anchor[name][:clients]
                    gradients[name] += across(strength[:clients], pull) * pull
        slopes = {
            (block, name): gradient[block.start : block.stop]
            for name, gradient in gradients.items()
            for block in self._blocks
            if block.stop <= clients
        }
        descend(self._workspace.train, self._moved, slopes, self._memory)

    def _gradients(self, loss: Tensor, weights: Parameters) -> Parameters:
        found = torch.autograd.grad(loss, [weights[name] for name in self._trained])
        return dict(zip(self._trained, found, strict=True))

    def _look(self, weights: Parameters, batch: Slot, others: Slot | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features and logits on the private batches, logits on the public ones; see `training.look`."""
        network, examples = self._network, self._pupils[0].lesson.private
        clients = len(batch.lengths)
        way = Pass(clients, True, batch.present)
        if others is None or self._workspace.batch_norm:
            features = network.features(weights, examples.shown(batch.places), way)
            logits = network.head(weights, features, way)
            if others is None:
                return features, logits, None
            way = Pass(clients, True, others.present)
            public = network.features(weights, examples.shown(others.places), way)
            return features, logits, network.head(weights, public, way)
        features = network.features(weights, examples.shown(torch.cat([batch.places, others.places])), way)
        logits, public_logits = network.head(weights, features, way).split(
            [len(batch.places), len(others.places)], dim=1
        )
        return features[:, : len(batch.places)], logits, public_logits

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


class JoinedTerm:
    """The same term of all pupils: its mean over each one's batch."""

    def __init__(self, terms: Sequence[Term], workspace: Workspace) -> None:
        self._terms = [term.on(workspace.device) for term in terms]
        self.weight = torch.tensor([term.weight for term in terms], dtype=workspace.dtype, device=workspace.device)
        self._targets = None
        if isinstance(terms[0], Targets):
            self._targets = torch.cat([term.targets for term in self._terms if isinstance(term, Targets)])

    def values(
        self, batch: Slot, features: Tensor, logits: Tensor, others: Slot | None, public_logits: Tensor | None
    ) -> Tensor:
        first = self._terms[0]
        if self._targets is None or not isinstance(first, Targets):
            return self._one_by_one(batch, features, logits, others, public_logits)
        if first.uses_public and others is not None and public_logits is not None:
            batch, logits = others, public_logits
        losses = first.values(logits.flatten(0, 1), self._targets[batch.joined].flatten(0, 1))
        return batch.means(losses.view(len(batch.lengths), -1))

    def _one_by_one(
        self, batch: Slot, features: Tensor, logits: Tensor, others: Slot | None, public_logits: Tensor | None
    ) -> Tensor:
        """For terms that look at a batch as a whole."""
        values = []
        for place, length in enumerate(batch.lengths):
            positions, seen = batch.positions[place, :length], logits[place, :length]
            index, said = positions[:0], seen[:0]
            if others is not None and public_logits is not None:
                index, said = others.positions[place], public_logits[place]
            values.append(self._terms[place].loss(BatchOutputs(positions, features[place, :length], seen, index, said)))
        return torch.stack(values)


def gradients_together(
    workspace: Workspace, keep_statistics: bool, questions: list[tuple[Parameters, Tensor, Tensor]]
) -> list[tuple[Tensor, Parameters]]:
    """Of each model on a batch of its own, the mean cross-entropy and its gradient; see `training.gradient_at`."""
    models, inputs, labels = zip(*questions, strict=True)
    stack = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    weights = {name: t if name in workspace.buffers else t.requires_grad_() for name, t in stack.items()}
    lengths = [len(each) for each in labels]
    counts = torch.tensor(lengths, device=workspace.device)
    way = Pass(len(models), True, presence(lengths, counts))
    network = StackedNetwork(workspace.template)
    with workspace.precision():
        logits = network.head(weights, network.features(weights, pad_sequence(list(inputs)), way), way)
        losses = cross_entropy(logits.flatten(0, 1), pad_sequence(list(labels)).T.flatten(), reduction="none")
        values = means(losses.view(len(models), -1), way.present, counts)
    trained = [name for name in weights if name not in workspace.buffers]
    found = torch.autograd.grad(values.sum(), [weights[name] for name in trained])
    if keep_statistics:
        for name in workspace.buffers:
            torch._foreach_copy_([model[name] for model in models], list(stack[name].unbind()))
    gradients = zip(*(gradient.unbind() for gradient in found), strict=True)
    rows = [dict(zip(trained, mine, strict=True)) for mine in gradients]
    return list(zip(values.detach().unbind(), rows, strict=True))


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
