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

from fedmosaic_cli.engine.execution.lockstep import my_gang
from fedmosaic_cli.engine.execution.stacked.stacked_gradients import gradients_together
from fedmosaic_cli.engine.execution.stacked.stacked_layers import Pass, StackedNetwork
from fedmosaic_cli.engine.execution.stacked.stacked_trainer import Course, Pupil, kind_of, steps_of
from fedmosaic_cli.engine.network_runner import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Lesson, Losses
    from fedmosaic_cli.engine.method import Parameters, State

T = TypeVar("T")
R = TypeVar("R")

# So many examples of all clients together are predicted in one pass.
EVALUATION_EXAMPLES = 4096


class StackedWorkspace(Workspace):
    """A workspace that trains and asks the members of a gang together, where they want the same."""

    @property
    def team(self) -> Hashable:
        return self

    def fit(self, parameters: Parameters, memory: State, lesson: Lesson) -> Losses:
        gang = my_gang()
        if gang is None:
            return super().fit(parameters, memory, lesson)
        pupil = Pupil(parameters, memory, lesson, steps_of(lesson, skip_single=bool(self.batch_norm)))
        losses: Losses = gang.ask((self, "fit", kind_of(lesson)), self._fit_together, pupil)
        return losses

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        gang = my_gang()
        if gang is None:
            return super().predict(parameters, examples)
        logits: Tensor = gang.ask((self, "predict"), self._predict_together, (parameters, examples))
        return logits

    def gradient(
        self, parameters: Parameters, inputs: Tensor, labels: Tensor, keep_statistics: bool
    ) -> tuple[Tensor, Parameters]:
        gang = my_gang()
        if gang is None:
            return super().gradient(parameters, inputs, labels, keep_statistics)
        answer = partial(gradients_together, self, keep_statistics)
        found: tuple[Tensor, Parameters] = gang.ask(
            (self, "gradient", keep_statistics), answer, (parameters, inputs, labels)
        )
        return found

    def _fit_together(self, pupils: list[Pupil]) -> list[Losses]:
        return in_order(pupils, lambda pupil: pupil.rank, lambda ranked: Course(self, ranked).taken())

    def _predict_together(self, questions: list[tuple[Parameters, Examples]]) -> list[Tensor]:
        models, sets = zip(*questions, strict=True)
        if all(model is models[0] for model in models):
            # One model for all, as where it was averaged: then their examples are one set.
            together = replace(sets[0], index=torch.cat([each.index for each in sets]), labels=None)
            return list(super().predict(models[0], together).split([len(each) for each in sets]))
        return in_order(questions, lambda question: -len(question[1]), self._predict_stacked)

    def _predict_stacked(self, questions: list[tuple[Parameters, Examples]]) -> list[Tensor]:
        """For sets in the order of their length: whose is used up is left out of the passes that remain."""
        models, sets = zip(*questions, strict=True)
        weights = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        parts: list[list[Tensor]] = [
            [torch.empty(0, self.num_classes, dtype=self.dtype, device=self.device)] for _ in sets
        ]
        batch = max(1, EVALUATION_EXAMPLES // len(sets))
        network = StackedNetwork(self.template)
        with torch.inference_mode():
            for start in range(0, len(sets[0]), batch):
                clients = sum(len(each) > start for each in sets)
                places = pad_sequence([each.index[start : start + batch] for each in sets[:clients]])
                way, theirs = Pass(clients), {name: tensor[:clients] for name, tensor in weights.items()}
                with self.precision():
                    logits = network.head(theirs, network.features(theirs, sets[0].shown(places), way), way)
                for part, each, mine in zip(parts, sets, logits.to(self.dtype), strict=False):
                    part.append(mine[: len(each) - start])
        return [torch.cat(part) for part in parts]


def in_order(items: list[T], key: Callable[[T], Any], together: Callable[[list[T]], list[R]]) -> list[R]:
    """The results of `together`, which wants the items in the order of `key`, in the order in which they came."""
    order = sorted(range(len(items)), key=lambda place: key(items[place]))
    results = dict(zip(order, together([items[place] for place in order]), strict=True))
    return [results[place] for place in range(len(items))]
