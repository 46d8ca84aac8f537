"""The interface of a client's learner: a network, or another model with `fit` and `predict`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.context import LossTerm, Parameters, ProximalTerm, State
    from fedmosaic_cli.engine.examples import Examples


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of a round: positions in the private and in the public set per step, each [batch].

    With augmentation they are [batch, 2]; see `engine.augmentation.add_windows`.
    """

    private_batches: list[Tensor]
    public_batches: list[Tensor]


@dataclass(frozen=True)
class StepOptions:
    """How a method changes the optimizer steps of a training; see `engine.context.Participant.train`."""

    parameters: frozenset[str] | None = None
    lr: float | None = None
    optimizer: Literal["adam", "sgd"] | None = None
    max_grad_norm: float | None = None
    weight_decay: float = 0.0

    def is_trained(self, name: str) -> bool:
        """Return whether an entry of the model is trained."""
        return self.parameters is None or name in self.parameters


@dataclass(frozen=True)
class TrainingTask:
    """One round of local training: the data, the batches and the loss."""

    private: Examples
    public: Examples
    schedule: BatchSchedule
    terms: Sequence[LossTerm] = ()
    proximal: ProximalTerm | None = None
    private_weight: float = 1.0
    options: StepOptions = field(default_factory=StepOptions)
    correction: Parameters | None = None
    seed: int = 0
    """Seeds layers that draw random numbers, such as dropout."""


@dataclass(frozen=True)
class Fit:
    """A model to train, in place: its parameters, its optimizer state and the task."""

    parameters: Parameters
    optimizer_state: State
    task: TrainingTask


@dataclass(frozen=True)
class TrainingLosses:
    """The mean private loss over a round and the mean loss of each term; None without a step."""

    private: float | None
    terms: list[float | None]
    num_steps: int = 0


@dataclass(frozen=True)
class ClientPredictor:
    """Implements `engine.context.Predictor` for a client's learner and its additional networks."""

    learner: Learner
    networks: Mapping[str, Learner]

    def predict(self, parameters: Parameters, examples: Examples, network: str | None = None) -> Tensor:
        return self._learner(network).predict(parameters, examples)

    def features(self, parameters: Parameters, examples: Examples, network: str | None = None) -> Tensor:
        return self._learner(network).features(parameters, examples)

    def _learner(self, network: str | None) -> Learner:
        return self.learner if network is None else self.networks[network]


class Learner(Protocol):
    """Trains and evaluates parameters, which belong to clients."""

    @property
    def stack_key(self) -> Hashable:
        """Clients with equal keys can be trained together; None if the client is trained alone."""

    def initial_parameters(self, seed: int) -> Parameters:
        """Initial parameters, determined by `seed`."""

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        """Train `parameters` for one round. Parameters and optimizer state are updated in place."""

    def fit_all(self, fits: Sequence[Fit]) -> list[TrainingLosses]:
        """Train several models of a client, which share no tensors, as one after the other."""

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        """Logits [examples, classes] in evaluation mode, without side effects."""

    def evaluate(self, parameters: Parameters, examples: Examples) -> tuple[float, float]:
        """Number of correct predictions and mean cross-entropy on labelled examples, in evaluation mode."""

    def features(self, parameters: Parameters, examples: Examples) -> Tensor:
        """Inputs of the head [examples, width] in evaluation mode, without side effects."""
