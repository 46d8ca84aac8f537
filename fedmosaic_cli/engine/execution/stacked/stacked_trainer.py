"""Local training of several clients together, with the results of separate training.

Losses and batch statistics leave out padding. Clients with fewer steps stop earlier. Every client has its own optimizer
state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine.augmentation import join_windows
from fedmosaic_cli.engine.batching import has_singleton_batch, num_rows
from fedmosaic_cli.engine.execution.stacked.batch_table import BatchTable, StepBatch
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.engine.learner import TrainingLosses
from fedmosaic_cli.engine.losses import TargetLoss
from fedmosaic_cli.engine.optim import clip_gradients, optimizer_step
from fedmosaic_cli.engine.training import BatchOutputs

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.context import LossTerm, Parameters, State
    from fedmosaic_cli.engine.learner import TrainingTask
    from fedmosaic_cli.engine.network_learner import NetworkLearner

# Models that are trained in one pass, of several models per client. It limits memory.
MAX_MERGED_MODELS = 64


@dataclass(frozen=True)
class StackedClient:
    """A client in training: its model, its optimizer state, and the private and public batch of every step."""

    parameters: Parameters
    optimizer_state: State
    task: TrainingTask
    steps: list[tuple[Tensor, Tensor | None]]

    @cached_property
    def group_key(self) -> Hashable:
        """Equal for clients that can be trained together."""
        return task_group_key(self.task)

    @cached_property
    def batch_shapes(self) -> tuple[tuple[int, int], ...]:
        """The sizes of the private and the public batch of every step."""
        return tuple((num_rows(private), 0 if public is None else num_rows(public)) for private, public in self.steps)

    @cached_property
    def sort_key(self) -> tuple[int, tuple[float, ...]]:
        """Sorts clients by decreasing number of steps, then by the step counts of the optimizer of each tensor."""
        names = sorted(name for name in self.parameters if self.task.options.is_trained(name))
        states = {name: self.optimizer_state[name] for name in names if name in self.optimizer_state}
        counts = [state["step"] for state in states.values() if "step" in state]
        # One read for all tensors, because each waits for the device.
        values = iter(torch.stack(counts).tolist() if counts else [])
        steps = (-1.0 if name not in states else next(values) if "step" in states[name] else 0.0 for name in names)
        return -len(self.steps), tuple(steps)


def training_steps(task: TrainingTask, skip_singletons: bool) -> list[tuple[Tensor, Tensor | None]]:
    """The batches of the steps that `training.fit_network` would take."""
    with_public = any(term.uses_public for term in task.terms)
    public = task.schedule.public_batches if with_public else [None] * len(task.schedule.private_batches)
    pairs = list(zip(task.schedule.private_batches, public, strict=True))
    return [pair for pair in pairs if not has_singleton_batch(*pair)] if skip_singletons else pairs


def task_group_key(task: TrainingTask) -> Hashable:
    """Equal for tasks that can be trained together. Data, loss weights and batch sizes may differ."""

    def options(term: LossTerm) -> list[tuple[str, object]]:
        values = {key: value for key, value in vars(term).items() if not isinstance(value, torch.Tensor)}
        return sorted((key, value) for key, value in values.items() if key != "weight")

    terms = tuple((type(term), *options(term)) for term in task.terms)
    return terms, task.proximal is not None, task.correction is not None, task.options


def make_stacks(clients: Sequence[StackedClient]) -> list[list[StackedClient]]:
    """The clients that can be trained together, sorted."""
    stacks: dict[Hashable, list[StackedClient]] = {}
    for client in clients:
        stacks.setdefault(client.group_key, []).append(client)
    return [sorted(stack, key=lambda client: client.sort_key) for stack in stacks.values()]


def merge_stacks(stacks: list[list[StackedClient]]) -> list[list[list[StackedClient]]]:
    """Lists of stacks that one `StackedTrainer` can train: their batches have one shape, so none is padded."""
    merged: dict[Hashable, list[list[StackedClient]]] = {}
    for number, stack in enumerate(stacks):
        shapes = {client.batch_shapes for client in stack}
        merged.setdefault((stack[0].group_key, *shapes) if len(shapes) == 1 else number, []).append(stack)
    return [
        own[start : start + max(1, MAX_MERGED_MODELS // len(own[0]))]
        for own in merged.values()
        for start in range(0, len(own), max(1, MAX_MERGED_MODELS // len(own[0])))
    ]


@dataclass(frozen=True)
class StackedOutputs:
    """Outputs of all networks on the private batches of a step and, if a term uses them, on the public ones."""

    private_batch: StepBatch
    private_features: Tensor
    private_logits: Tensor
    public_batch: StepBatch | None = None
    public_logits: Tensor | None = None


class StackedTerm:
    """The same loss term of all clients."""

    def __init__(self, terms: Sequence[LossTerm], runner: NetworkLearner) -> None:
        self._terms = [term.to_device(runner.device) for term in terms]
        self.weight = torch.tensor([term.weight for term in terms], dtype=runner.dtype, device=runner.device)
        self._targets = None
        if isinstance(terms[0], TargetLoss):
            self._targets = torch.cat([term.targets for term in self._terms if isinstance(term, TargetLoss)])

    def client_losses(self, outputs: StackedOutputs) -> Tensor:
        """The mean loss over each client's batch [clients]."""
        first = self._terms[0]
        if self._targets is None or not isinstance(first, TargetLoss):
            return self._per_client_losses(outputs)
        batch, logits = outputs.private_batch, outputs.private_logits
        if first.uses_public and outputs.public_batch is not None and outputs.public_logits is not None:
            batch, logits = outputs.public_batch, outputs.public_logits
        losses = first.example_losses(logits.flatten(0, 1), self._targets[batch.concat_indices].flatten(0, 1))
        return batch.client_means(losses.view(len(batch.batch_sizes), -1))

    def _per_client_losses(self, outputs: StackedOutputs) -> Tensor:
        """The losses of a term that is not a mean over examples, computed client by client."""
        values = []
        for client, size in enumerate(outputs.private_batch.batch_sizes):
            indices = outputs.private_batch.local_indices[client, :size]
            logits, features = outputs.private_logits[client, :size], outputs.private_features[client, :size]
            public_indices, public_logits = indices[:0], logits[:0]
            if outputs.public_batch is not None and outputs.public_logits is not None:
                public_indices = outputs.public_batch.local_indices[client]
                public_logits = outputs.public_logits[client]
            client_outputs = BatchOutputs(indices, features, logits, public_indices, public_logits)
            values.append(self._terms[client].loss(client_outputs))
        return torch.stack(values)


class StackedTrainer:
    """Trains clients that are sorted by `sort_key`, so that those with steps left always come first.

    Several stacks take the same steps. Each has its own optimizer steps: some optimizers round the last elements of a
    tensor in another way, so that stacking other clients would change the results.
    """

    def __init__(self, runner: NetworkLearner, stacks: list[list[StackedClient]]) -> None:
        clients = [client for stack in stacks for client in stack]
        self._runner = runner
        self._clients = clients
        self._network = StackedNetwork(runner.template)
        self._stacked_weights = {
            name: torch.stack([client.parameters[name] for client in clients]) for name in clients[0].parameters
        }
        self._options = clients[0].task.options
        self._trainable_names = [name for name in runner.trainable_names if self._options.is_trained(name)]
        self._frozen_layers = self._network.layers_without(self._trainable_names)
        # An optimizer treats the weights of clients with equal sort keys as one tensor.
        self._client_blocks: list[range] = []
        for stack in stacks:
            for _, members in groupby(stack, key=lambda client: client.sort_key):
                start = self._client_blocks[-1].stop if self._client_blocks else 0
                self._client_blocks.append(range(start, start + len(list(members))))
        self._parameter_blocks = {
            (block, name): self._stacked_weights[name][block.start : block.stop]
            for block in self._client_blocks
            for name in self._trainable_names
        }
        self._optimizer_states: dict[Any, State] = {}
        tasks = [client.task for client in clients]
        self._terms = [StackedTerm(terms, runner) for terms in zip(*(task.terms for task in tasks), strict=True)]
        private_weights = [task.private_weight for task in tasks]
        self._private_weight = None if set(private_weights) == {1.0} else self._client_vector(private_weights)
        self._proximal: tuple[Parameters, Tensor] | None = None
        if proximal := [task.proximal for task in tasks if task.proximal]:
            anchor = {name: torch.stack([term.anchor[name] for term in proximal]) for name in self._trainable_names}
            self._proximal = anchor, self._client_vector([term.strength for term in proximal])
        self._correction: Parameters = {}
        if corrections := [task.correction for task in tasks if task.correction is not None]:
            self._correction = {name: torch.stack([own[name] for own in corrections]) for name in self._trainable_names}
        self._loss_totals = torch.zeros(1 + len(self._terms), len(clients), dtype=runner.dtype, device=runner.device)

    def run(self) -> list[TrainingLosses]:
        """Train all clients in place.

        Returns:
            The mean losses of each client.
        """
        if self._clients[0].steps and self._trainable_names:
            self._load_optimizer_states()
            self._run_steps()
            self._save_optimizer_states()
            for name, tensor in self._stacked_weights.items():
                torch._foreach_copy_([client.parameters[name] for client in self._clients], list(tensor.unbind()))
        num_seen = [sum(num_rows(private) for private, _ in client.steps) for client in self._clients]
        losses = [
            [total / count if count else None for total in totals]
            for totals, count in zip(self._loss_totals.T.tolist(), num_seen, strict=True)
        ]
        return [
            TrainingLosses(private, terms, len(client.steps))
            for client, (private, *terms) in zip(self._clients, losses, strict=True)
        ]

    def _run_steps(self) -> None:
        private_sets = [client.task.private for client in self._clients]
        private = BatchTable(private_sets, [[batch for batch, _ in client.steps] for client in self._clients])
        public = None
        if self._clients[0].steps[0][1] is not None:
            public = BatchTable(
                [client.task.public for client in self._clients],
                [[batch for _, batch in client.steps if batch is not None] for client in self._clients],
            )
        labels = private.gather(torch.cat([examples.targets for examples in private_sets]))
        num_clients, weights = 0, self._stacked_weights
        num_steps = [len(client.steps) for client in self._clients]
        for step in range(num_steps[0]):
            num_active = sum(count > step for count in num_steps)
            if num_active != num_clients:
                num_clients, weights = num_active, self._leading_weights(num_active)
            public_batch = public.step_batch(step, num_clients) if public else None
            private_batch = private.step_batch(step, num_clients)
            self._step(
                weights, labels[step, :num_clients, : max(private_batch.batch_sizes)], private_batch, public_batch
            )

    def _leading_weights(self, num_clients: int) -> Parameters:
        """The weights of the first clients, sharing memory with the stack."""
        weights = {name: tensor[:num_clients] for name, tensor in self._stacked_weights.items()}
        return {**weights, **{name: weights[name].detach().requires_grad_() for name in self._trainable_names}}

    def _step(
        self, weights: Parameters, labels: Tensor, private_batch: StepBatch, public_batch: StepBatch | None
    ) -> None:
        num_clients = len(private_batch.batch_sizes)
        with self._runner.autocast():
            outputs = self._forward(weights, private_batch, public_batch)
            losses = cross_entropy(outputs.private_logits.flatten(0, 1), labels.flatten(), reduction="none")
            values = [
                private_batch.client_means(losses.view(num_clients, -1)),
                *(term.client_losses(outputs) for term in self._terms),
            ]
            total = values[0] if self._private_weight is None else self._private_weight[:num_clients] * values[0]
            for term, value in zip(self._terms, values[1:], strict=True):
                total = total + term.weight[:num_clients] * value
        # No client's loss depends on another client's weights, so the gradient of the sum contains all gradients.
        own_weights = [weights[name] for name in self._trainable_names]
        stacked = torch.autograd.grad(total, own_weights, grad_outputs=torch.ones_like(total))
        gradients = dict(zip(self._trainable_names, stacked, strict=True))
        with torch.no_grad():
            self._loss_totals[:, :num_clients] += torch.stack(values) * private_batch.counts
            if self._proximal:
                anchor, strength = self._proximal
                for name, gradient in gradients.items():
                    drift = weights[name] - anchor[name][:num_clients]
                    gradient.add_(strength[:num_clients].view(-1, *[1] * (drift.dim() - 1)) * drift)
            for name, correction in self._correction.items():
                gradients[name].add_(correction[:num_clients])
            if self._options.max_grad_norm is not None:
                clip_gradients(gradients, self._options.max_grad_norm, num_clients)
        gradient_blocks = {
            (block, name): gradient[block.start : block.stop]
            for name, gradient in gradients.items()
            for block in self._client_blocks
            if block.stop <= num_clients
        }
        optimizer_step(
            self._runner.train_settings, self._parameter_blocks, gradient_blocks, self._optimizer_states, self._options
        )

    def _forward(self, weights: Parameters, private_batch: StepBatch, public_batch: StepBatch | None) -> StackedOutputs:
        """Outputs on private and public batches: in one pass, or in two if the network has batch normalisation."""
        if public_batch is None or self._runner.batch_norm_names:
            features, logits = self._batch_outputs(weights, private_batch)
            if public_batch is None:
                return StackedOutputs(private_batch, features, logits)
            _, public_logits = self._batch_outputs(weights, public_batch)
            return StackedOutputs(private_batch, features, logits, public_batch, public_logits)
        image_indices = torch.cat([private_batch.image_indices, public_batch.image_indices])
        windows = join_windows(private_batch.windows, public_batch.windows)
        features, logits = self._features_and_logits(weights, image_indices, windows, None)
        sizes = [num_rows(private_batch.image_indices), num_rows(public_batch.image_indices)]
        logits, public_logits = logits.split(sizes, dim=1)
        return StackedOutputs(private_batch, features[:, : sizes[0]], logits, public_batch, public_logits)

    def _batch_outputs(self, weights: Parameters, batch: StepBatch) -> tuple[Tensor, Tensor]:
        return self._features_and_logits(weights, batch.image_indices, batch.windows, batch.mask)

    def _features_and_logits(
        self, weights: Parameters, image_indices: Tensor, windows: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features and logits for `image_indices` [batch, clients], augmented by `windows` [batch, clients]."""
        context = ForwardContext(image_indices.shape[1], True, mask, self._frozen_layers)
        # All example sets share one array of images.
        images = self._clients[0].task.private.normalised_images(image_indices, windows)
        features = self._network.features(weights, images, context)
        return features, self._network.head(weights, features, context)

    def _load_optimizer_states(self) -> None:
        """Stack the optimizer states of each block. The step count is equal within a block and kept once."""
        for block, name in self._parameter_blocks:
            states = [self._clients[client].optimizer_state for client in block]
            if name in states[0]:
                entries = [state[name] for state in states]
                self._optimizer_states[block, name] = {
                    key: torch.stack([entry[key] for entry in entries]) if value.dim() else value.clone()
                    for key, value in entries[0].items()
                }

    def _save_optimizer_states(self) -> None:
        for (block, name), state in self._optimizer_states.items():
            for row, client in enumerate(block):
                self._clients[client].optimizer_state[name] = {
                    key: value[row].clone() if value.dim() else value.clone() for key, value in state.items()
                }

    def _client_vector(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self._runner.dtype, device=self._runner.device)
