"""The one evaluator: scores of any model on any examples, leaving no trace in either."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.objective import mean_cross_entropy

if TYPE_CHECKING:
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import Parameters


@dataclass(frozen=True)
class Score:
    """A model on a set of examples."""

    accuracy: float
    loss: float
    count: int


def score(learner: Learner, parameters: Parameters, examples: Examples) -> Score:
    """Accuracy over all classes and mean cross-entropy."""
    logits, labels = learner.predict(parameters, examples), examples.targets
    correct = (logits.argmax(dim=1) == labels).sum()
    return Score(correct.item() / len(examples), mean_cross_entropy(logits.log_softmax(dim=1), labels), len(examples))


def averages(accuracies: list[float], sizes: list[int]) -> dict[str, float]:
    """The accuracies of all clients in a few numbers."""
    return {
        "client_mean": fmean(accuracies),
        "sample_weighted": fmean(accuracies, weights=sizes),
        "client_std": pstdev(accuracies),
        "worst": min(accuracies),
    }
