"""Metrics of models on example sets."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.losses import count_and_loss, mean_cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner

EVAL_METRICS = {
    "accuracy": False,
    "loss": True,
    "macro_f1": False,
    "balanced_accuracy": False,
    "calibration_error": True,
}
"""Metrics of an evaluated client, and whether a larger value is worse."""
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Score:
    """Accuracy and mean cross-entropy on a set of examples."""

    accuracy: float
    loss: float
    num_examples: int


@dataclass(frozen=True)
class ClassificationMetrics:
    """All metrics. `confusion` has a row per true class and a column per predicted class; None if not requested."""

    accuracy: float
    loss: float
    macro_f1: float
    balanced_accuracy: float
    calibration_error: float
    confusion: list[list[int]] | None


def evaluate_model(learner: Learner, parameters: Parameters, examples: Examples) -> Score:
    """Accuracy over all classes and mean cross-entropy."""
    num_correct, loss = learner.evaluate(parameters, examples)
    return Score(num_correct / len(examples), loss, len(examples))


def score_logits(logits: Tensor, examples: Examples) -> Score:
    """Accuracy and mean cross-entropy of predictions."""
    num_correct, loss = count_and_loss(logits, examples.targets)
    return Score(num_correct / len(examples), loss, len(examples))


def classification_metrics(logits: Tensor, labels: Tensor, with_confusion: bool = True) -> ClassificationMetrics:
    """All metrics of predictions.

    macro_f1 is the mean of 2 TP / (2 TP + FP + FN) over the classes that occur among labels or predictions.
    balanced_accuracy is the mean recall over the classes that occur among labels.

    Args:
        logits: Predictions [examples, classes], on the CPU.
        labels: True classes [examples], on the CPU.
        with_confusion: Compute the confusion matrix.
    """
    num_classes, predicted = logits.shape[1], logits.argmax(dim=1)
    correct = labels[predicted == labels]
    correct_counts, label_counts, predicted_counts = (
        values.bincount(minlength=num_classes).double() for values in (correct, labels, predicted)
    )
    occurring, present = label_counts + predicted_counts > 0, label_counts > 0
    confusion = None
    if with_confusion:
        pairs = (labels * num_classes + predicted).bincount(minlength=num_classes**2)
        confusion = pairs.reshape(num_classes, num_classes).tolist()
    return ClassificationMetrics(
        accuracy=len(correct) / len(labels),
        loss=mean_cross_entropy(logits.log_softmax(dim=1), labels),
        macro_f1=(2 * correct_counts[occurring] / (label_counts + predicted_counts)[occurring]).mean().item(),
        balanced_accuracy=(correct_counts[present] / label_counts[present]).mean().item(),
        calibration_error=calibration_error(logits, labels),
        confusion=confusion,
    )


def calibration_error(logits: Tensor, labels: Tensor, num_bins: int = CALIBRATION_BINS) -> float:
    """The expected calibration error: sum_b n_b / n |mean confidence - accuracy| over bins of equal width.

    A bin contains its upper edge and not its lower one.
    """
    import torch

    confidence, predicted = logits.double().softmax(dim=1).max(dim=1)
    bins = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    excess = confidence - (predicted == labels).double()
    excess_by_bin = torch.zeros(num_bins, dtype=excess.dtype).index_add(0, bins, excess)
    return excess_by_bin.abs().sum().item() / len(labels)


def client_averages(values: list[float], num_examples: list[int], larger_is_worse: bool = False) -> dict[str, float]:
    """Summarise one metric over clients.

    Args:
        values: The metric per client.
        num_examples: Number of examples per client, for the weighted mean.
        larger_is_worse: Whether the worst clients have the largest values.

    Returns:
        Mean, weighted mean, standard deviation, worst value, and the mean of the worst tenth of the clients, rounded
        up.
    """
    worst_first = sorted(values, reverse=larger_is_worse)
    return {
        "client_mean": fmean(values),
        "sample_weighted": fmean(values, weights=num_examples),
        "client_std": pstdev(values),
        "worst": worst_first[0],
        "worst_decile": fmean(worst_first[: -(-len(values) // 10)]),
    }
