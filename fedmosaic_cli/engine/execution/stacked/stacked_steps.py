"""Custom update rules, applied to the stacked models of several clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.execution.stacked.batch_table import BatchTable
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.engine.learner import StepOptions
from fedmosaic_cli.engine.optim import match_memory_layout, optimizer_step
from fedmosaic_cli.errors import FedMosaicError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters, PerClientScalar, State
    from fedmosaic_cli.engine.execution.stacked.batch_table import StepBatch
    from fedmosaic_cli.engine.network_learner import NetworkLearner
    from fedmosaic_cli.engine.step_rules import StepTask


@dataclass(frozen=True)
class StackedStepClient:
    """A client with its steps: their numbers, from 1, and their batches by stream."""

    task: StepTask
    numbers: list[int]
    batches: dict[str, list[Tensor]]


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss over the steps of a client; None without a gradient."""

    value: float | None


def step_client(task: StepTask, skip_singletons: bool) -> StackedStepClient:
    """The steps that `step_rules.take_steps` would take."""
    steps = list(enumerate(zip(*task.batches.values(), strict=True), start=1))
    if skip_singletons:
        steps = [(number, batches) for number, batches in steps if all(batch.shape[0] > 1 for batch in batches)]
    streams = list(zip(*(batches for _, batches in steps), strict=True)) or [()] * len(task.batches)
    by_stream = {stream: list(batches) for stream, batches in zip(task.batches, streams, strict=True)}
    return StackedStepClient(task, [number for number, _ in steps], by_stream)


def rule_key(task: StepTask) -> Hashable:
    """Equal for clients with the same rule on the same entries, and with equal integers, which are not stacked."""
    owner = getattr(task.rule, "__self__", None)
    function: Any = getattr(task.rule, "__func__", task.rule)
    integers = [(name, type(value), value) for name, value in task.state.items() if isinstance(value, int)]
    return function, id(owner), tuple(task.state), tuple(integers), tuple(task.batches)


def have_equal_numbers(clients: list[StackedStepClient]) -> bool:
    """Whether the n-th step has the same number for all clients that take it. Skipped batches shift the numbers."""
    longest = max((client.numbers for client in clients), key=len)
    return all(client.numbers == longest[: len(client.numbers)] for client in clients)


class StackedSteps:
    """Takes the steps of clients that are sorted by decreasing number of steps."""

    def __init__(self, runner: NetworkLearner, clients: list[StackedStepClient]) -> None:
        self.runner = runner
        self.num_clients = len(clients)
        self._clients = clients
        self._tasks = [client.task for client in clients]
        self._network = StackedNetwork(runner.template)
        self.state = {
            name: stack_entry([task.state[name] for task in self._tasks], runner.device)
            for name in self._tasks[0].state
        }
        self._private_sets = [task.private for task in self._tasks]
        self._labels = torch.cat([examples.targets for examples in self._private_sets])
        self._loss_totals = torch.zeros(self.num_clients, dtype=runner.dtype, device=runner.device)
        self._num_seen = torch.zeros(self.num_clients, dtype=torch.int64, device=runner.device)
        self._num_with_loss = 0
        # The state of the optimizer of each model, by client and parameter.
        self._optimizer_states: dict[str, dict[tuple[int, str], State]] = {}

    def run(self) -> list[MeanLoss]:
        """Take all steps and update the states of all clients.

        Returns:
            The mean loss of each client over all its gradients.
        """
        num_steps = [len(client.numbers) for client in self._clients]
        if num_steps[0]:
            streams = self._tasks[0].batches
            tables = {
                stream: BatchTable(self._private_sets, [client.batches[stream] for client in self._clients])
                for stream in streams
            }
            for index, number in enumerate(self._clients[0].numbers):
                self._finish_clients(sum(count > index for count in num_steps))
                batches = {stream: table.step_batch(index, self.num_clients) for stream, table in tables.items()}
                self._tasks[0].rule(StackedStep(number, self, batches), self.state)
            self._finish_clients(0)
        means = (self._loss_totals / self._num_seen).tolist()
        # Clients are sorted, so those with a loss come first.
        return [MeanLoss(mean if row < self._num_with_loss else None) for row, mean in enumerate(means)]

    def _finish_clients(self, num_active: int) -> None:
        """Give the clients after the first `num_active` their results, and continue with the first ones."""
        if num_active == self.num_clients:
            return
        finished = slice(num_active, self.num_clients)
        for name, entry in self.state.items():
            values = entry_rows(name, entry, finished, self.num_clients)
            for task, value in zip(self._tasks[finished], values, strict=True):
                task.state[name] = value
            if isinstance(entry, dict):
                self.state[name] = {key: tensor[:num_active] for key, tensor in entry.items()}
            elif isinstance(entry, torch.Tensor):
                self.state[name] = entry[:num_active]
        for model, states in self._optimizer_states.items():
            for (row, name), state in states.items():
                if num_active <= row < self.num_clients:
                    self._tasks[row].optimizer_state(model)[name] = state
        self.num_clients = num_active

    def gradient(
        self, parameters: Parameters, inputs: Tensor, batch: StepBatch, update_running_stats: bool
    ) -> Parameters:
        """The gradients of the mean cross-entropy of all clients."""
        runner = self.runner
        if not update_running_stats:
            parameters = {**parameters, **params.clone(params.select(parameters, runner.buffer_names))}
        leaves = {name: parameters[name].detach().requires_grad_() for name in runner.trainable_names}
        weights = {**parameters, **leaves}
        context = ForwardContext(self.num_clients, True, batch.mask)
        with runner.autocast():
            logits = self._network.head(weights, self._network.features(weights, inputs, context), context)
            labels = self._labels[batch.concat_indices].flatten()
            losses = cross_entropy(logits.flatten(0, 1), labels, reduction="none")
            values = batch.client_means(losses.view(self.num_clients, -1))
        stacked = torch.autograd.grad(values, list(leaves.values()), grad_outputs=torch.ones_like(values))
        self._loss_totals[: self.num_clients] += values.detach() * batch.counts
        self._num_seen[: self.num_clients] += batch.counts
        self._num_with_loss = max(self._num_with_loss, self.num_clients)
        return dict(zip(leaves, stacked, strict=True))

    def inputs(self, batch: StepBatch) -> Tensor:
        """The images of a batch. All example sets share one array of images."""
        return self._private_sets[0].normalised_images(batch.image_indices, batch.windows)

    @torch.no_grad()
    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None) -> None:
        """A step of every client with its own optimizer state. Single tensors are passed to the optimizer, because some
        optimizers round the last elements of a tensor in another way."""
        if model not in self._optimizer_states:
            states = [task.optimizer_state(model) for task in self._tasks[: self.num_clients]]
            self._optimizer_states[model] = {
                (row, name): own for row, state in enumerate(states) for name, own in state.items()
            }
        weights = self.state[model]
        gradients = {name: match_memory_layout(tensor, weights[name]) for name, tensor in gradient.items()}
        optimizer_step(
            self.runner.train_settings,
            by_row(weights, gradient),
            by_row(gradients, gradient),
            self._optimizer_states[model],
            StepOptions(lr=lr),
        )


@dataclass(frozen=True)
class StackedStep:
    """A step of all clients of a stack. Implements `engine.context.RuleStep`."""

    number: int
    steps: StackedSteps
    batches: dict[str, StepBatch]
    inputs: dict[str, Tensor] = field(default_factory=dict)

    def gradient(
        self, parameters: Parameters, stream: str = "private", update_running_stats: bool = True
    ) -> Parameters:
        """Return the stacked gradients of the mean cross-entropy on the batches of this step."""
        batch = self.batches[stream]
        if stream not in self.inputs:
            self.inputs[stream] = self.steps.inputs(batch)
        return self.steps.gradient(parameters, self.inputs[stream], batch, update_running_stats)

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        """Apply one step of the run's optimizer to the models of all clients."""
        self.steps.optimizer_step(model, gradient, lr)

    def dot(self, first: Parameters, second: Parameters) -> PerClientScalar:
        """Return the inner products of the clients' models [clients], on their device."""
        pairs = [(first[name], tensor) for name, tensor in second.items() if tensor.is_floating_point()]
        products = [(one * other).reshape(len(other), -1).sum(dim=1) for one, other in pairs]
        return torch.as_tensor(sum(products)).to(number_type(self.steps.runner.device))


def stack_entry(values: list[Any], device: torch.device) -> Any:
    """Models [clients, ...] by name, numbers [clients] on a device, or an integer that all clients share."""
    first = values[0]
    if isinstance(first, dict):
        return {name: torch.stack([value[name] for value in values]) for name in first}
    return first if isinstance(first, int) else torch.tensor(values, dtype=number_type(device)).to(device)


def number_type(device: torch.device) -> torch.dtype:
    """Double precision, as for a single client, where the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def entry_rows(name: str, entry: Any, rows: slice, num_clients: int) -> list[Any]:
    """The models or numbers of some clients. A number that is no tensor is that of all clients."""
    num_rows = len(range(num_clients)[rows])
    if isinstance(entry, dict):
        # The model has the entries that the rule made, in its order.
        return [{key: tensor[row].clone() for key, tensor in entry.items()} for row in range(num_clients)[rows]]
    if not isinstance(entry, torch.Tensor):
        return [entry] * num_rows
    if entry.shape != (num_clients,):
        raise FedMosaicError(
            f"the step rule sets '{name}' of {num_clients} clients to a tensor of shape {tuple(entry.shape)} "
            "(client.take_steps): use elementwise operations"
        )
    numbers: list[Any] = entry[rows].tolist()
    return numbers


def by_row(stacked: Parameters, names: Parameters) -> dict[tuple[int, str], Tensor]:
    """The tensors of single clients by client and name, for the entries `names`."""
    columns = [(name, stacked[name].unbind()) for name in names]
    return {(row, name): tensors[row] for row in range(len(columns[0][1])) for name, tensors in columns}
