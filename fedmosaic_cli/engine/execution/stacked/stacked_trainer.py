"""Local training of several clients together, with the results of separate training.

Losses and batch statistics leave out padding. Clients with fewer steps stop earlier. Every client has its own optimizer
state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine.augmentation import join_windows
from fedmosaic_cli.engine.batching import has_singleton_batch, num_rows
from fedmosaic_cli.engine.execution.stacked.batch_table import RoundBatches, StepBatch
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.engine.execution.stacked.stacked_states import split_states, stack_states
from fedmosaic_cli.engine.execution.step_graph import StepGraphs, step_capture
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
    step_counts: list[float] = field(default_factory=list)
    """The values of `step_count_tensors`; see `read_step_counts`."""

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
        values = iter(self.step_counts)
        counts = (-1.0 if own is None else next(values) if "step" in own else 0.0 for own in self._trained_states)
        return -len(self.steps), tuple(counts)

    @property
    def step_count_tensors(self) -> list[Tensor]:
        """The step counts of the optimizer, for the tensors that have one."""
        return [state["step"] for state in self._trained_states if state is not None and "step" in state]

    @cached_property
    def _trained_states(self) -> list[State | None]:
        """The optimizer states of the trained tensors, by name; None for a tensor without one."""
        names = sorted(name for name in self.parameters if self.task.options.is_trained(name))
        return [self.optimizer_state.get(name) for name in names]


def read_step_counts(clients: Sequence[StackedClient]) -> None:
    """Set the step counts of all clients, with one read, because each waits for the device."""
    tensors = [client.step_count_tensors for client in clients]
    flat = [tensor for own in tensors for tensor in own]
    values = iter(torch.stack(flat).tolist() if flat else [])
    for client, own in zip(clients, tensors, strict=True):
        client.step_counts[:] = islice(values, len(own))


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
        self.weight = torch.tensor([term.weight for term in terms], dtype=runner.dtype, device=runner.device)
        first = terms[0]
        self._targets = None
        if isinstance(first, TargetLoss) and not has_other_tensors(first):
            targets = [term.targets for term in terms if isinstance(term, TargetLoss)]
            if len({own.device for own in targets}) > 1:
                targets = [own.to(runner.device) for own in targets]
            # The targets of all clients are joined in the first term, so that one copy moves them.
            joined = replace(first, targets=torch.cat(targets)).to_device(runner.device)
            self._terms: list[LossTerm] = [joined]
            self._targets = joined.targets
        else:
            self._terms = [term.to_device(runner.device) for term in terms]

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
        """The losses of a term with other values than targets, computed client by client."""
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


def has_other_tensors(term: TargetLoss) -> bool:
    """Whether a term has tensors besides its targets, such as class weights, which may differ between clients."""
    return any(isinstance(value, torch.Tensor) for name, value in vars(term).items() if name != "targets")


class StackedTrainer:
    """Trains clients that are sorted by `sort_key`, so that those with steps left always come first.

    Several stacks take the same steps. Each has its own optimizer steps: some optimizers round the last elements of a
    tensor in another way, so that stacking other clients would change the results.

    Args:
        runner: The learner of the clients.
        stacks: Clients by stack.
        keep_views: Whether the same clients are trained together in every round; see `stacked_states`.
    """

    def __init__(self, runner: NetworkLearner, stacks: list[list[StackedClient]], keep_views: bool = False) -> None:
        clients = [client for stack in stacks for client in stack]
        self._keep_views = keep_views
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
            own = [client.parameters[name] for name in self._stacked_weights for client in self._clients]
            torch._foreach_copy_(own, [row for tensor in self._stacked_weights.values() for row in tensor.unbind()])
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
        batches = RoundBatches([client.task for client in self._clients], [client.steps for client in self._clients])
        num_steps = [len(client.steps) for client in self._clients]
        num_active = [sum(count > step for count in num_steps) for step in range(num_steps[0])]
        capture = step_capture(self._runner.train_settings, self._clients[0].task.private)
        shapes = [batches.shape(step, count) for step, count in enumerate(num_active)] if capture else []
        # Kept until the losses are read: the last replay may still run when this function returns.
        self._graphs = StepGraphs(capture, shapes, self._runner.device)
        weights = self._stacked_weights
        for step, num_clients in enumerate(num_active):
            if step == 0 or num_clients != num_active[step - 1]:
                weights = self._leading_weights(num_clients)
            self._graphs.take_step(step, partial(self._batch_step, weights, batches, step, num_clients))

    def _batch_step(
        self, weights: Parameters, batches: RoundBatches, step: int, num_clients: int, position: Tensor | None
    ) -> None:
        """Take a step of the first clients; for `position` see `batch_table.step_cells`."""
        self._step(weights, *batches.step(step, num_clients, position))

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
        """Stack the optimizer states of each block."""
        for block, name in self._parameter_blocks:
            states = [self._clients[client].optimizer_state for client in block]
            if name in states[0]:
                self._optimizer_states[block, name] = stack_states([state[name] for state in states])

    def _save_optimizer_states(self) -> None:
        states_by_block: dict[range, dict[str, State]] = {block: {} for block in self._client_blocks}
        for (block, name), state in self._optimizer_states.items():
            states_by_block[block][name] = state
        for block, states in states_by_block.items():
            split = split_states(list(states.values()), len(block), self._keep_views)
            for client, client_states in zip(block, split, strict=True):
                self._clients[client].optimizer_state.update(zip(states, client_states, strict=True))

    def _client_vector(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self._runner.dtype, device=self._runner.device)
