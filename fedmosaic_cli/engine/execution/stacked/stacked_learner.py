"""A network runner that trains and evaluates several clients of one architecture together.

It is for GPUs, and for networks so small that calling a kernel takes longer than running it. Clients submit requests in
lockstep (see `engine.execution.lockstep`); requests of the same kind are computed on stacked weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from fedmosaic_cli.engine.execution.lockstep import current_group
from fedmosaic_cli.engine.execution.stacked.batch_table import masked_means, padding_mask
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.engine.execution.stacked.stacked_steps import (
    StackedSteps,
    have_equal_numbers,
    rule_key,
    step_client,
)
from fedmosaic_cli.engine.execution.stacked.stacked_trainer import (
    StackedClient,
    StackedTrainer,
    make_stacks,
    merge_stacks,
    read_step_counts,
    training_steps,
)
from fedmosaic_cli.engine.execution.transfers import copy_to_device
from fedmosaic_cli.engine.learner import Fit
from fedmosaic_cli.engine.losses import count_and_log_prob
from fedmosaic_cli.engine.network_learner import NetworkLearner
from fedmosaic_cli.engine.training import trains_batch_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters, State
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.execution.lockstep import LockstepGroup
    from fedmosaic_cli.engine.execution.stacked.stacked_steps import MeanLoss, StackedStepClient
    from fedmosaic_cli.engine.learner import TrainingLosses, TrainingTask
    from fedmosaic_cli.engine.step_rules import StepTask

T = TypeVar("T")
R = TypeVar("R")

# Examples of all clients in one forward pass of an evaluation.
STACKED_EVAL_EXAMPLES = 4096


class StackedNetworkLearner(NetworkLearner):
    """Computes the requests of a lockstep group together; outside a group it equals `NetworkLearner`."""

    @property
    def stack_key(self) -> Hashable:
        return self

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        if current_group() is None or self._is_unstackable(task):
            return super().fit(parameters, optimizer_state, task)
        return self.fit_all([Fit(parameters, optimizer_state, task)])[0]

    def fit_all(self, fits: Sequence[Fit]) -> list[TrainingLosses]:
        group = current_group()
        if group is None or any(self._is_unstackable(fit.task) for fit in fits):
            return super().fit_all(fits)
        losses: list[TrainingLosses] = []
        pending = [self._stacked_client(fit) for fit in fits]
        while pending:
            trained: list[TrainingLosses] = group.submit((self, "fit"), partial(self._fit_group, group), pending)
            losses += trained
            pending = pending[len(trained) :]
        return losses

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        group = current_group()
        if group is None:
            return super().predict(parameters, examples)
        logits: Tensor = group.submit((self, "predict"), self._predict_group, (parameters, examples))
        return logits

    def evaluate(self, parameters: Parameters, examples: Examples) -> tuple[float, float]:
        group = current_group()
        if group is None:
            return super().evaluate(parameters, examples)
        scores: tuple[float, float] = group.submit((self, "evaluate"), self._evaluate_group, (parameters, examples))
        return scores

    def gradient(
        self, parameters: Parameters, inputs: Tensor, labels: Tensor, update_running_stats: bool
    ) -> tuple[Tensor, Parameters]:
        group = current_group()
        if group is None:
            return super().gradient(parameters, inputs, labels, update_running_stats)
        loss_and_gradient: tuple[Tensor, Parameters] = group.submit(
            (self, "gradient", update_running_stats),
            partial(self._stacked_gradients, update_running_stats),
            (parameters, inputs, labels),
        )
        return loss_and_gradient

    def take_steps(self, task: StepTask) -> float | None:
        group = current_group()
        if group is not None:
            client = step_client(task, skip_singletons=bool(self.batch_norm_names))
            loss: MeanLoss | None = group.submit((self, "steps", rule_key(task)), self._take_stacked_steps, client)
            if loss is not None:
                return loss.value
        return super().take_steps(task)

    def _take_stacked_steps(self, clients: list[StackedStepClient]) -> list[MeanLoss | None]:
        """Take the steps of several clients. Returns None for clients whose steps cannot be stacked."""
        if not have_equal_numbers(clients):
            return [None] * len(clients)
        return [*apply_sorted(clients, lambda client: -len(client.numbers), lambda own: StackedSteps(self, own).run())]

    def _is_unstackable(self, task: TrainingTask) -> bool:
        """Whether a task cannot be stacked: a loss term calls the network, or no parameter is trained."""
        uses_module = any(getattr(term, "uses_module", False) for term in task.terms)
        return uses_module or not any(map(task.options.is_trained, self.trainable_names))

    def _stacked_client(self, fit: Fit) -> StackedClient:
        steps = training_steps(fit.task, skip_singletons=trains_batch_norm(self, fit.task.options))
        return StackedClient(fit.parameters, fit.optimizer_state, fit.task, steps)

    def _fit_group(self, group: LockstepGroup, requests: list[list[StackedClient]]) -> list[list[TrainingLosses]]:
        """Train the models that clients submit at the same time, each client at least its first one.

        If all clients of the group submit the same kinds of tasks, all models are trained.
        """
        kinds = [[client.group_key for client in clients] for clients in requests]
        is_uniform = len(requests) == group.num_waiting and all(own == kinds[0] for own in kinds)
        num_trained = len(kinds[0]) if is_uniform else 1
        read_step_counts([client for clients in requests for client in clients[:num_trained]])
        stacks = [
            stack for number in range(num_trained) for stack in make_stacks([clients[number] for clients in requests])
        ]
        # The clients of a group are the same in every round, unless they are sampled.
        keep_views = len(requests) == group.num_clients and self.train_settings.clients_per_round is None
        losses: dict[int, TrainingLosses] = {}
        for merged in merge_stacks(stacks) if self._is_linear else [[stack] for stack in stacks]:
            results = StackedTrainer(self, merged, keep_views).run()
            losses |= zip((id(client) for stack in merged for client in stack), results, strict=True)
        return [[losses[id(client)] for client in clients[:num_trained]] for clients in requests]

    @cached_property
    def _is_linear(self) -> bool:
        """Whether results for one client do not depend on how many are stacked, apart from the optimizer."""
        return all(isinstance(layer, nn.Linear | nn.ReLU | nn.Flatten) for layer in self.template.body.children())

    def _predict_group(self, requests: list[tuple[Parameters, Examples]]) -> list[Tensor]:
        models, sets = zip(*requests, strict=True)
        if all(model is models[0] for model in models):
            # All clients use the same (e.g. averaged) model: predict the union of their examples.
            union = replace(sets[0], indices=torch.cat([examples.indices for examples in sets]), labels=None)
            return list(super().predict(models[0], union).split([len(examples) for examples in sets]))
        return apply_sorted(requests, lambda request: -len(request[1]), self._predict_stacked)

    def _evaluate_group(self, requests: list[tuple[Parameters, Examples]]) -> list[tuple[float, float]]:
        """Results of `evaluate`. Sets of one size are scored together, and all values are read at once."""
        by_size: dict[int, list[int]] = {}
        for position, (_, examples) in enumerate(requests):
            by_size.setdefault(len(examples), []).append(position)
        logits, scores = self._predict_group(requests), []
        for positions in by_size.values():
            own = torch.stack([logits[position] for position in positions])
            labels = torch.stack([requests[position][1].targets for position in positions])
            num_correct, log_prob = count_and_log_prob(own, labels)
            scores.append(torch.stack([num_correct.to(log_prob.dtype), log_prob], dim=1))
        order = [position for positions in by_size.values() for position in positions]
        results = dict(zip(order, torch.cat(scores).tolist(), strict=True))
        return [(results[position][0], -results[position][1]) for position in range(len(requests))]

    def _predict_stacked(self, requests: list[tuple[Parameters, Examples]]) -> list[Tensor]:
        """Logits of requests sorted by decreasing set size. Passes leave out clients without remaining examples."""
        models, sets = zip(*requests, strict=True)
        weights = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        empty = torch.empty(0, self.num_classes, dtype=self.dtype, device=self.device)
        parts: list[list[Tensor]] = [[empty] for _ in sets]
        batch_size = max(1, STACKED_EVAL_EXAMPLES // len(sets))
        network = StackedNetwork(self.template)
        with torch.inference_mode():
            for start in range(0, len(sets[0]), batch_size):
                num_clients = sum(len(examples) > start for examples in sets)
                images = self._stacked_images(sets[:num_clients], slice(start, start + batch_size))
                context = ForwardContext(num_clients)
                leading = {name: tensor[:num_clients] for name, tensor in weights.items()}
                with self.autocast():
                    features = network.features(leading, images, context)
                    logits = network.head(leading, features, context)
                for part, examples, client_logits in zip(parts, sets, logits.to(self.dtype), strict=False):
                    part.append(client_logits[: len(examples) - start])
        return [torch.cat(part) for part in parts]

    def _stacked_images(self, sets: Sequence[Examples], cells: slice) -> Tensor:
        """Some images of every set [batch, clients, ...], padded."""
        first = sets[0]
        if all(examples.indices is first.indices for examples in sets):  # the public set
            images = first.inputs(cells)[:, None]
            return images.expand(-1, len(sets), *images.shape[2:])
        return first.normalised_images(pad_sequence([examples.indices[cells] for examples in sets]))

    def _stacked_gradients(
        self, update_running_stats: bool, requests: list[tuple[Parameters, Tensor, Tensor]]
    ) -> list[tuple[Tensor, Parameters]]:
        """The mean cross-entropy of each model on its batch, and its gradient; see `training.batch_gradient`."""
        models, inputs, labels = zip(*requests, strict=True)
        stack = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        weights = {name: t if name in self.buffer_names else t.requires_grad_() for name, t in stack.items()}
        sizes = [len(batch) for batch in labels]
        counts = copy_to_device(torch.tensor(sizes), self.device)
        mask = padding_mask(sizes, counts)
        context = ForwardContext(len(models), True, mask)
        network = StackedNetwork(self.template)
        with self.autocast():
            logits = network.head(weights, network.features(weights, pad_sequence(list(inputs)), context), context)
            losses = cross_entropy(logits.flatten(0, 1), pad_sequence(list(labels)).T.flatten(), reduction="none")
            values = masked_means(losses.view(len(models), -1), mask, counts)
        stacked = torch.autograd.grad(values.sum(), [weights[name] for name in self.trainable_names])
        if update_running_stats:
            for name in self.buffer_names:
                torch._foreach_copy_([model[name] for model in models], list(stack[name].unbind()))
        rows = zip(*(gradient.unbind() for gradient in stacked), strict=True)
        gradients = [dict(zip(self.trainable_names, row, strict=True)) for row in rows]
        return list(zip(values.detach().unbind(), gradients, strict=True))


def apply_sorted(items: list[T], key: Callable[[T], Any], function: Callable[[list[T]], list[R]]) -> list[R]:
    """Apply `function` to the items sorted by `key`. Results are in the original order."""
    order = sorted(range(len(items)), key=lambda index: key(items[index]))
    results = dict(zip(order, function([items[index] for index in order]), strict=True))
    return [results[index] for index in range(len(items))]
