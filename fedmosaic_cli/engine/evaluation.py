"""The one evaluator: scores of any model on any examples, leaving no trace in either."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.losses import mean_cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import Parameters

# What a client is examined in, and whether the larger number is the worse one.
EVAL_METRICS = {
    "accuracy": False,
    "loss": True,
    "macro_f1": False,
    "balanced_accuracy": False,
    "calibration_error": True,
}
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Score:
    """A model on a set of examples."""

    accuracy: float
    loss: float
    num_examples: int


@dataclass(frozen=True)
class ClassificationMetrics:
    """The same in full. A row of `confusion`, where it was asked for, is a class, a column what it was taken for."""

    accuracy: float
    loss: float
    macro_f1: float
    balanced_accuracy: float
    calibration_error: float
    confusion: list[list[int]] | None


def evaluate_model(learner: Learner, parameters: Parameters, examples: Examples) -> Score:
    """Accuracy over all classes and mean cross-entropy."""
    logits, labels = learner.predict(parameters, examples), examples.targets
    correct = (logits.argmax(dim=1) == labels).sum()
    return Score(correct.item() / len(examples), mean_cross_entropy(logits.log_softmax(dim=1), labels), len(examples))


def classification_metrics(logits: Tensor, labels: Tensor, with_confusion: bool = True) -> ClassificationMetrics:
    """What logits [examples, classes] for these labels are worth. Both lie with the host: a GPU is not asked again."""
    classes, predicted = logits.shape[1], logits.argmax(dim=1)
    told = labels[predicted == labels]
    right, there, guessed = (each.bincount(minlength=classes).double() for each in (told, labels, predicted))
    return ClassificationMetrics(
        len(told) / len(labels),
        mean_cross_entropy(logits.log_softmax(dim=1), labels),
        macro_f1(right, there, guessed),
        balanced_accuracy(right, there),
        calibration_error(logits, labels),
        confusion_matrix(labels, predicted, classes) if with_confusion else None,
    )


def macro_f1(correct_counts: Tensor, class_counts: Tensor, predicted_counts: Tensor) -> float:
    """The mean over classes of 2 TP / (2 TP + FP + FN), from what was told right, is there, and was guessed of each.

    Classes of which nothing is there and nothing was guessed are left out.
    """
    known = class_counts + predicted_counts > 0
    return (2 * correct_counts[known] / (class_counts + predicted_counts)[known]).mean().item()


def balanced_accuracy(correct_counts: Tensor, class_counts: Tensor) -> float:
    """The mean over the classes that are there of the share of their examples that were told right."""
    return (correct_counts[class_counts > 0] / class_counts[class_counts > 0]).mean().item()


def confusion_matrix(labels: Tensor, predicted: Tensor, num_classes: int) -> list[list[int]]:
    """How many examples of each class were taken for each."""
    counts = (labels * num_classes + predicted).bincount(minlength=num_classes**2)
    matrix: list[list[int]] = counts.reshape(num_classes, num_classes).tolist()
    return matrix


def calibration_error(logits: Tensor, labels: Tensor, num_bins: int = CALIBRATION_BINS) -> float:
    """The expected calibration error: how far the probability of the answers is from the share of right ones.

    Answers are sorted by their probability into `bins` of equal width, each with its upper edge; the distance between
    mean probability and accuracy is averaged over bins, each weighted by its answers.
    """
    import torch

    confidence, predicted = logits.double().softmax(dim=1).max(dim=1)
    places = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    excess = confidence - (predicted == labels).double()
    by_bin = torch.zeros(num_bins, dtype=excess.dtype).index_add(0, places, excess)
    return by_bin.abs().sum().item() / len(labels)


def client_averages(values: list[float], num_examples: list[int], larger_is_worse: bool = False) -> dict[str, float]:
    """The values of all clients, who have so many examples each, in a few numbers.

    The worst decile is the mean over the worst tenth of the clients, rounded up: of one where there are up to ten.
    """
    worst_first = sorted(values, reverse=larger_is_worse)
    return {
        "client_mean": fmean(values),
        "sample_weighted": fmean(values, weights=num_examples),
        "client_std": pstdev(values),
        "worst": worst_first[0],
        "worst_decile": fmean(worst_first[: -(-len(values) // 10)]),
    }
