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

from fedmosaic_cli.engine.batching import has_singleton_batch
from fedmosaic_cli.engine.execution.stacked.batch_table import BatchTable, StepBatch
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.engine.execution.stacked.stacked_losses import StackedOutputs, StackedTerm
from fedmosaic_cli.engine.learner import TrainingLosses
from fedmosaic_cli.engine.optim import optimizer_step

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from fedmosaic_cli.engine.learner import TrainingTask
    from fedmosaic_cli.engine.method import LossTerm, Parameters, State
    from fedmosaic_cli.engine.network_runner import NetworkRunner


@dataclass(frozen=True)
class StackedClient:
    """A client that trains: its model, its optimizer's memory, and its steps, each a private and a public batch."""

    parameters: Parameters
    optimizer_state: State
    task: TrainingTask
    steps: list[tuple[Tensor, Tensor | None]]

    @cached_property
    def sort_key(self) -> tuple[int, float]:
        """Who has more steps comes first; whose optimizers are of one age stand together."""
        remembered: State = next(iter(self.optimizer_state.values()), {"step": -1.0})
        return -len(self.steps), float(remembered.get("step", 0.0))


def training_steps(task: TrainingTask, skip_singletons: bool) -> list[tuple[Tensor, Tensor | None]]:
    """The steps that the trainer would take; see `training.fit`."""
    with_public = any(term.uses_public for term in task.terms)
    public = task.schedule.public_batches if with_public else [None] * len(task.schedule.private_batches)
    pairs = zip(task.schedule.private_batches, public, strict=True)
    return [pair for pair in pairs if not (skip_singletons and has_singleton_batch(*pair))]


def task_group_key(task: TrainingTask) -> Hashable:
    """What lessons must have in common to be taken together. Data, weights and the lengths of batches may differ."""
    terms = tuple((type(term), *sorted(term_options(term).items())) for term in task.terms)
    return terms, task.proximal is not None


def term_options(term: LossTerm) -> dict[str, object]:
    return {key: value for key, value in vars(term).items() if key != "weight" and not isinstance(value, torch.Tensor)}


class StackedTrainer:
    """Pupils in the order of their rank, so that those who still have steps to take always come first."""

    def __init__(self, runner: NetworkRunner, clients: list[StackedClient]) -> None:
        self._runner = runner
        self._clients = clients
        self._network = StackedNetwork(runner.template)
        self._stacked_weights = {
            name: torch.stack([p.parameters[name] for p in clients]) for name in clients[0].parameters
        }
        self._trainable_names = runner.trainable_names
        self._client_blocks = client_blocks(clients)
        self._parameter_blocks = {
            (block, name): self._stacked_weights[name][block.start : block.stop]
            for block in self._client_blocks
            for name in self._trainable_names
        }
        self._optimizer_states: dict[Any, State] = {}
        lessons = [pupil.task for pupil in clients]
        self._terms = [StackedTerm(terms, runner) for terms in zip(*(lesson.terms for lesson in lessons), strict=True)]
        self._private_weight = self._client_vector([lesson.private_weight for lesson in lessons])
        self._proximal = self._stacked_proximal(lessons)
        self._loss_totals = torch.zeros(1 + len(self._terms), len(clients), dtype=runner.dtype, device=runner.device)

    def run(self) -> list[TrainingLosses]:
        """Train everybody in place, and tell the mean losses."""
        if self._clients[0].steps:
            self._load_optimizer_states()
            self._run_steps()
            self._save_optimizer_states()
            for name, tensor in self._stacked_weights.items():
                torch._foreach_copy_([pupil.parameters[name] for pupil in self._clients], list(tensor.unbind()))
        seen = [sum(len(private) for private, _ in pupil.steps) for pupil in self._clients]
        losses = [
            [total / count if count else None for total in totals]
            for totals, count in zip(self._loss_totals.T.tolist(), seen, strict=True)
        ]
        return [TrainingLosses(private, terms) for private, *terms in losses]

    def _run_steps(self) -> None:
        examples = [pupil.task.private for pupil in self._clients]
        private = BatchTable(examples, [[batch for batch, _ in pupil.steps] for pupil in self._clients])
        public = None
        if self._clients[0].steps[0][1] is not None:
            others = [pupil.task.public for pupil in self._clients]
            public = BatchTable(
                others, [[batch for _, batch in pupil.steps if batch is not None] for pupil in self._clients]
            )
        labels = torch.cat([each.targets for each in examples])
        clients, weights = 0, self._stacked_weights
        for number in range(len(self._clients[0].steps)):
            taking_part = sum(len(pupil.steps) > number for pupil in self._clients)
            if taking_part != clients:
                clients, weights = taking_part, self._leading_weights(taking_part)
            self._step(
                weights,
                labels,
                private.step_batch(number, clients),
                public.step_batch(number, clients) if public else None,
            )

    def _leading_weights(self, num_clients: int) -> Parameters:
        """The weights of those who come first, sharing memory with the stack."""
        weights = {name: tensor[:num_clients] for name, tensor in self._stacked_weights.items()}
        return {**weights, **{name: weights[name].detach().requires_grad_() for name in self._trainable_names}}

    def _step(
        self, weights: Parameters, labels: Tensor, private_batch: StepBatch, public_batch: StepBatch | None
    ) -> None:
        clients = len(private_batch.batch_sizes)
        with self._runner.autocast():
            seen = self._forward(weights, private_batch, public_batch)
            losses = cross_entropy(
                seen.private_logits.flatten(0, 1), labels[private_batch.concat_indices].flatten(), reduction="none"
            )
            values = [
                private_batch.client_means(losses.view(clients, -1)),
                *(term.client_losses(seen) for term in self._terms),
            ]
            total = self._private_weight[:clients] * values[0]
            for term, value in zip(self._terms, values[1:], strict=True):
                total = total + term.weight[:clients] * value
        # Nobody's loss depends on another's weights: the gradients of the sum are everybody's own.
        found = torch.autograd.grad(total.sum(), [weights[name] for name in self._trainable_names])
        gradients = dict(zip(self._trainable_names, found, strict=True))
        with torch.no_grad():
            self._loss_totals[:, :clients] += torch.stack(values) * private_batch.counts
            if self._proximal:
                self._add_proximal_gradient(gradients, weights, *self._proximal)
        slopes = {
            (block, name): gradient[block.start : block.stop]
            for name, gradient in gradients.items()
            for block in self._client_blocks
            if block.stop <= clients
        }
        optimizer_step(self._runner.train_settings, self._parameter_blocks, slopes, self._optimizer_states)

    def _add_proximal_gradient(
        self, gradients: Parameters, weights: Parameters, anchor: Parameters, strength: Tensor
    ) -> None:
        """Add the leashes' gradients to those of the losses; see `training.pull`."""
        for name, gradient in gradients.items():
            drift = weights[name] - anchor[name][: len(gradient)]
            gradient.add_(broadcast_per_client(strength[: len(gradient)], drift) * drift)

    def _forward(self, weights: Parameters, private_batch: StepBatch, public_batch: StepBatch | None) -> StackedOutputs:
        """The outputs on private and public batches: in one pass, unless batch statistics would mix the two."""
        if public_batch is None or self._runner.batch_norm_names:
            features, logits = self._features_and_logits(weights, private_batch.image_indices, private_batch.mask)
            if public_batch is None:
                return StackedOutputs(private_batch, features, logits)
            return StackedOutputs(
                private_batch,
                features,
                logits,
                public_batch,
                self._features_and_logits(weights, public_batch.image_indices, public_batch.mask)[1],
            )
        features, logits = self._features_and_logits(
            weights, torch.cat([private_batch.image_indices, public_batch.image_indices]), None
        )
        logits, public_logits = logits.split([len(private_batch.image_indices), len(public_batch.image_indices)], dim=1)
        return StackedOutputs(
            private_batch, features[:, : len(private_batch.image_indices)], logits, public_batch, public_logits
        )

    def _features_and_logits(
        self, weights: Parameters, image_indices: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features and logits on the images at `places` [batch, clients]."""
        way = ForwardContext(image_indices.shape[1], True, mask)
        images = self._clients[0].task.private.normalised_images(
            image_indices
        )  # all sets lie in the one array of images
        features = self._network.features(weights, images, way)
        return features, self._network.head(weights, features, way)

    def _load_optimizer_states(self) -> None:
        for block, name in self._parameter_blocks:
            members = [self._clients[place].optimizer_state for place in block]
            if name in members[0]:
                entries = [memory[name] for memory in members]
                self._optimizer_states[block, name] = {
                    key: stack_state([each[key] for each in entries]) for key in entries[0]
                }

    def _save_optimizer_states(self) -> None:
        for (block, name), remembered in self._optimizer_states.items():
            for row, place in enumerate(block):
                self._clients[place].optimizer_state[name] = {
                    key: unstack_state(value, row) for key, value in remembered.items()
                }

    def _stacked_proximal(self, tasks: list[TrainingTask]) -> tuple[Parameters, Tensor] | None:
        leashes = [lesson.proximal for lesson in tasks if lesson.proximal]
        if not leashes:
            return None
        anchor = {name: torch.stack([leash.anchor[name] for leash in leashes]) for name in self._trainable_names}
        return anchor, self._client_vector([leash.strength for leash in leashes])

    def _client_vector(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self._runner.dtype, device=self._runner.device)


def client_blocks(clients: list[StackedClient]) -> list[range]:
    """Neighbours of one rank: an optimizer treats their weights as one tensor."""
    blocks, start = [], 0
    for _, members in groupby(clients, key=lambda pupil: pupil.sort_key):
        stop = start + len(list(members))
        blocks.append(range(start, stop))
        start = stop
    return blocks


def stack_state(values: list[Tensor]) -> Tensor:
    """What an optimizer remembers of clients of one rank: their tensors stacked; the step, which is the same, once."""
    return torch.stack(values) if values[0].dim() else values[0].clone()


def unstack_state(value: Tensor, row: int) -> Tensor:
    """The reverse, for one of them."""
    return value[row].clone() if value.dim() else value.clone()


def broadcast_per_client(vector: Tensor, tensor: Tensor) -> Tensor:
    """A number for each client, to be multiplied with whatever they have."""
    return vector.view(-1, *[1] * (tensor.dim() - 1))
