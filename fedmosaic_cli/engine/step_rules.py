"""Local steps with a custom update rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.learner import StepOptions
from fedmosaic_cli.engine.optim import optimizer_step
from fedmosaic_cli.engine.training import ManualSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters, PerClientScalar, State, Step, StepRule
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.network_learner import NetworkLearner


@dataclass(frozen=True)
class StepTask:
    """A client's steps with a custom update rule.

    Attributes:
        rule: The update rule, called once per step.
        state: The models and numbers that the rule works on; updated.
        optimizer_state: Returns the optimizer state of a model of `state`.
        private: Training examples.
        batches: The batches of every step by stream.
        seed: Seeds layers that draw random numbers.
    """

    rule: StepRule
    state: State
    optimizer_state: Callable[[str], State]
    private: Examples
    batches: dict[str, list[Tensor]]
    seed: int


def take_steps(learner: NetworkLearner, task: StepTask) -> float | None:
    """Take the steps of one client and return the mean loss; None without a step."""
    steps = ManualSteps(learner, task.private, task.batches, task.seed)
    for step in steps:
        task.rule(SingleStep(learner, task, step), task.state)
    return steps.mean_loss()


@dataclass(frozen=True)
class SingleStep:
    """A step of one client. Implements `engine.context.RuleStep`."""

    learner: NetworkLearner
    task: StepTask
    step: Step

    @property
    def number(self) -> int:
        """The number of the step, from 1."""
        return self.step.number

    def gradient(
        self, parameters: Parameters, stream: str = "private", update_running_stats: bool = True
    ) -> Parameters:
        """Return the gradient of the mean cross-entropy on a batch of this step."""
        return self.step.gradient(parameters, stream, update_running_stats)

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        """Apply one step of the run's optimizer to a model."""
        state, options = self.task.optimizer_state(model), StepOptions(lr=lr)
        optimizer_step(self.learner.train_settings, self.task.state[model], gradient, state, options)

    def dot(self, first: Parameters, second: Parameters) -> PerClientScalar:
        """Return the inner product of two models."""
        return params.dot(first, second)
