"""One queue of batches over all evaluated clients: a worker without a client helps the others with theirs.

The batches are those of a prediction by one worker, so results do not depend on who computes which of them.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.network_learner import NetworkLearner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import ClientPredictor, Learner


@dataclass(eq=False)
class SharedPrediction:
    """A prediction whose batches several workers compute."""

    learner: NetworkLearner
    parameters: Parameters
    examples: Examples
    next_batch: int = 0
    outputs: dict[int, Tensor] = field(default_factory=dict)
    error: BaseException | None = None

    @property
    def num_batches(self) -> int:
        return -(-len(self.examples) // self.learner.eval_batch_size)

    @property
    def has_batches_left(self) -> bool:
        return self.next_batch < self.num_batches and self.error is None

    @property
    def is_done(self) -> bool:
        return not self.has_batches_left and (self.error is not None or len(self.outputs) == self.num_batches)

    def predict_batch(self, number: int) -> Tensor:
        size = self.learner.eval_batch_size
        indices = torch.arange(number * size, min((number + 1) * size, len(self.examples)))
        return self.learner.predict(self.parameters, self.examples.subset(indices))


class EvaluationQueue:
    """Lets workers that have no client compute batches of other clients.

    Args:
        num_clients: How many clients will be evaluated, each within `evaluating`.
    """

    def __init__(self, num_clients: int) -> None:
        self._num_unfinished = num_clients
        self._open: list[SharedPrediction] = []
        self._changed = threading.Condition()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The evaluation of one client; helpers stop after the last one."""
        try:
            yield
        finally:
            with self._changed:
                self._num_unfinished -= 1
                self._changed.notify_all()

    def predict(self, learner: Learner, parameters: Parameters, examples: Examples) -> Tensor:
        """Return what `learner.predict` returns, with the help of workers that have nothing else to do."""
        is_stacked = learner.stack_key is not None
        if is_stacked or not isinstance(learner, NetworkLearner) or len(examples) <= learner.eval_batch_size:
            return learner.predict(parameters, examples)
        prediction = SharedPrediction(learner, parameters, examples)
        with self._changed:
            self._open.append(prediction)
            self._changed.notify_all()
        while (number := self._claim(prediction)) is not None:
            self._compute(prediction, number)
        with self._changed:
            self._changed.wait_for(lambda: prediction.is_done)
            self._open.remove(prediction)
        if prediction.error is not None:
            raise prediction.error
        return torch.cat([prediction.outputs[number] for number in range(prediction.num_batches)])

    def help(self) -> None:
        """Compute batches of other workers' clients until all clients are evaluated."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._num_unfinished or self._find_open() is not None)
                prediction = self._find_open()
            if prediction is None:
                return
            number = self._claim(prediction)
            if number is not None:
                self._compute(prediction, number)

    def _find_open(self) -> SharedPrediction | None:
        return next((prediction for prediction in self._open if prediction.has_batches_left), None)

    def _claim(self, prediction: SharedPrediction) -> int | None:
        """Return the number of a batch that nobody else computes, or None."""
        with self._changed:
            if not prediction.has_batches_left:
                return None
            prediction.next_batch += 1
            return prediction.next_batch - 1

    def _compute(self, prediction: SharedPrediction, number: int) -> None:
        try:
            output = prediction.predict_batch(number)
        except BaseException as error:
            with self._changed:
                prediction.error = error
                self._changed.notify_all()
            return
        with self._changed:
            prediction.outputs[number] = output
            if prediction.is_done:
                self._changed.notify_all()


@dataclass(frozen=True)
class QueuedPredictor:
    """Implements `engine.context.Predictor` with a queue. `queue` None computes everything in this thread."""

    predictor: ClientPredictor
    queue: EvaluationQueue | None = None

    def predict(self, parameters: Parameters, examples: Examples, network: str | None = None) -> Tensor:
        if self.queue is None:
            return self.predictor.predict(parameters, examples, network)
        learner = self.predictor.learner if network is None else self.predictor.networks[network]
        return self.queue.predict(learner, parameters, examples)

    def features(self, parameters: Parameters, examples: Examples, network: str | None = None) -> Tensor:
        return self.predictor.features(parameters, examples, network)
