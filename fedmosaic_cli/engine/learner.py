"""What learns behind a client: a network, or anything else that can be fitted and asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import LossTerm, Parameters, ProximalTerm, State


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of a round: positions in the private and in the public set, step by step."""

    private_batches: list[Tensor]
    public_batches: list[Tensor]


@dataclass(frozen=True)
class TrainingTask:
    """What there is to learn in a round: the data, the order to take it in, and what the method adds to the loss."""

    private: Examples
    public: Examples
    schedule: BatchSchedule
    terms: Sequence[LossTerm] = ()
    proximal: ProximalTerm | None = None
    private_weight: float = 1.0


@dataclass(frozen=True)
class TrainingLosses:
    """The mean private loss over a round and that of each term; None where there was no batch to take a step on."""

    private: float | None
    terms: list[float | None]


class Learner(Protocol):
    """Clients own parameters; a learner knows what to do with them."""

    @property
    def stack_key(self) -> Hashable:
        """Clients of one team can be trained together; None stands for nobody but oneself."""

    def initial_parameters(self, seed: int) -> Parameters:
        """The starting point that `seed` names."""

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        """Train `parameters` in place, carrying the optimizer's `memory` on."""

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        """Logits [examples, classes], in evaluation mode. Nothing is changed."""
