"""Training several clients of one architecture together, as if each were alone.

For a GPU, and for networks so small that calling a kernel costs more than running it. Clients ask for the same things
at the same time (see `engine.execution.lockstep`); here they are done on stacked weights. What differs between clients stays theirs:
batches of other lengths are padded and the padding is left out of every loss; who has fewer steps stops earlier;
optimizers remember for each client apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from fedmosaic_cli.engine.execution.lockstep import current_group
from fedmosaic_cli.engine.execution.stacked.stacked_gradients import compute_stacked_gradients
from fedmosaic_cli.engine.execution.stacked.stacked_layers import ForwardContext, StackedNetwork
from fedmosaic_cli.engine.execution.stacked.stacked_trainer import (
    StackedClient,
    StackedTrainer,
    task_group_key,
    training_steps,
)
from fedmosaic_cli.engine.network_runner import NetworkRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import TrainingLosses, TrainingTask
    from fedmosaic_cli.engine.method import Parameters, State

T = TypeVar("T")
R = TypeVar("R")

# So many examples of all clients together are predicted in one pass.
STACKED_EVAL_EXAMPLES = 4096


class StackedNetworkRunner(NetworkRunner):
    """A workspace that trains and asks the members of a gang together, where they want the same."""

    @property
    def stack_key(self) -> Hashable:
        return self

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        gang = current_group()
        if gang is None:
            return super().fit(parameters, optimizer_state, task)
        pupil = StackedClient(
            parameters, optimizer_state, task, training_steps(task, skip_singletons=bool(self.batch_norm_names))
        )
        losses: TrainingLosses = gang.submit((self, "fit", task_group_key(task)), self._fit_stacked, pupil)
        return losses

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        gang = current_group()
        if gang is None:
            return super().predict(parameters, examples)
        logits: Tensor = gang.submit((self, "predict"), self._predict_group, (parameters, examples))
        return logits

    def gradient(
        self, parameters: Parameters, inputs: Tensor, labels: Tensor, update_running_stats: bool
    ) -> tuple[Tensor, Parameters]:
        gang = current_group()
        if gang is None:
            return super().gradient(parameters, inputs, labels, update_running_stats)
        answer = partial(compute_stacked_gradients, self, update_running_stats)
        found: tuple[Tensor, Parameters] = gang.submit(
            (self, "gradient", update_running_stats), answer, (parameters, inputs, labels)
        )
        return found

    def _fit_stacked(self, clients: list[StackedClient]) -> list[TrainingLosses]:
        return apply_sorted(clients, lambda pupil: pupil.sort_key, lambda ranked: StackedTrainer(self, ranked).run())

    def _predict_group(self, requests: list[tuple[Parameters, Examples]]) -> list[Tensor]:
        models, sets = zip(*requests, strict=True)
        if all(model is models[0] for model in models):
            # One model for all, as where it was averaged: then their examples are one set.
            together = replace(sets[0], indices=torch.cat([each.indices for each in sets]), labels=None)
            return list(super().predict(models[0], together).split([len(each) for each in sets]))
        return apply_sorted(requests, lambda question: -len(question[1]), self._predict_stacked)

    def _predict_stacked(self, requests: list[tuple[Parameters, Examples]]) -> list[Tensor]:
        """For sets in the order of their length: whose is used up is left out of the passes that remain."""
        models, sets = zip(*requests, strict=True)
        weights = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        parts: list[list[Tensor]] = [
            [torch.empty(0, self.num_classes, dtype=self.dtype, device=self.device)] for _ in sets
        ]
        batch = max(1, STACKED_EVAL_EXAMPLES // len(sets))
        network = StackedNetwork(self.template)
        with torch.inference_mode():
            for start in range(0, len(sets[0]), batch):
                clients = sum(len(each) > start for each in sets)
                places = pad_sequence([each.indices[start : start + batch] for each in sets[:clients]])
                way, theirs = ForwardContext(clients), {name: tensor[:clients] for name, tensor in weights.items()}
                with self.autocast():
                    logits = network.head(theirs, network.features(theirs, sets[0].normalised_images(places), way), way)
                for part, each, mine in zip(parts, sets, logits.to(self.dtype), strict=False):
                    part.append(mine[: len(each) - start])
        return [torch.cat(part) for part in parts]


def apply_sorted(items: list[T], key: Callable[[T], Any], function: Callable[[list[T]], list[R]]) -> list[R]:
    """The results of `together`, which wants the items in the order of `key`, in the order in which they came."""
    order = sorted(range(len(items)), key=lambda place: key(items[place]))
    results = dict(zip(order, function([items[place] for place in order]), strict=True))
    return [results[place] for place in range(len(items))]
