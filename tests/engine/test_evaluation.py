"""Evaluation metrics, compared with scikit-learn and with manual computations."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics

from fedmosaic_cli.engine.evaluation import (
    EVAL_METRICS,
    calibration_error,
    classification_metrics,
    client_averages,
    evaluate_model,
)
from fedmosaic_cli.methods.local import Local
from tests.toys import TOYS, run_toy


def logits_and_labels(seed: int, examples: int, classes: int, present: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits with an accuracy of about one half, and labels of the first `present` classes."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, present, examples))
    logits = torch.from_numpy(rng.normal(size=(examples, classes)))
    logits[torch.arange(examples), labels] += 1.5
    return logits, labels


@pytest.mark.parametrize(("examples", "classes", "present"), [(200, 10, 10), (50, 10, 3), (7, 5, 1), (1, 4, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_those_of_scikit_learn(seed, examples, classes, present):
    logits, labels = logits_and_labels(seed, examples, classes, present)
    result, predicted = classification_metrics(logits, labels), logits.argmax(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about predicted classes without examples, which are intended here
        balanced = metrics.balanced_accuracy_score(labels, predicted)
    assert result.balanced_accuracy == pytest.approx(balanced, rel=1e-12)
    assert result.macro_f1 == pytest.approx(
        metrics.f1_score(labels, predicted, average="macro", zero_division=0), rel=1e-12
    )
    assert result.accuracy == metrics.accuracy_score(labels, predicted)
    assert result.confusion == metrics.confusion_matrix(labels, predicted, labels=range(classes)).tolist()
    probabilities = logits.softmax(dim=1)
    assert result.loss == pytest.approx(metrics.log_loss(labels, probabilities, labels=range(classes)), rel=1e-9)


def test_confusion_rows_are_true_classes_and_columns_predictions():
    logits = torch.eye(3)[[1, 1, 2]]
    assert classification_metrics(logits, torch.tensor([0, 0, 2])).confusion == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_confusion_matrix_is_computed_on_request_only():
    """With 60000 classes the matrix would not fit in memory."""
    logits = torch.zeros(2, 60_000)
    result = classification_metrics(logits, torch.tensor([0, 5]), with_confusion=False)
    assert result.confusion is None
    assert result.balanced_accuracy == 0.5


def test_classification_metrics_equal_evaluate_model_bit_for_bit():
    client = run_toy(Local(), TOYS["even"]).state.clients[0]
    model, examples = client.state["model"], client.private
    result, evaluation = (
        classification_metrics(client.learner.predict(model, examples), examples.targets),
        evaluate_model(client.learner, model, examples),
    )
    assert (result.accuracy, result.loss) == (evaluation.accuracy, evaluation.loss)


def logits_of(*confidences: float) -> torch.Tensor:
    """Return logits of two classes that give class 0 these probabilities."""
    return torch.tensor([[math.log(p), math.log(1 - p)] for p in confidences], dtype=torch.float64)


def test_calibration_error_equals_a_manual_computation():
    """Three predictions are in (9/15, 10/15], one of them correct; two are in (13/15, 14/15], both correct."""
    logits, labels = logits_of(0.61, 0.63, 0.65, 0.9, 0.92), torch.tensor([0, 1, 1, 0, 0])
    expected = 3 / 5 * abs(0.63 - 1 / 3) + 2 / 5 * abs(0.91 - 1)
    assert calibration_error(logits, labels) == pytest.approx(expected, rel=1e-12)


def test_over_and_underconfidence_cancel_within_a_bin_only():
    same_bin = calibration_error(logits_of(0.62, 0.64), torch.tensor([0, 1]))
    assert same_bin == pytest.approx(abs(0.63 - 0.5), rel=1e-12)
    other_bins = calibration_error(logits_of(0.62, 0.7), torch.tensor([0, 1]))
    assert other_bins == pytest.approx((0.38 + 0.7) / 2, rel=1e-12)


def test_calibration_bins_contain_their_upper_edge():
    """With 2 bins, 0.5 is in the first and larger values are in the second."""
    logits, labels = logits_of(0.5, 0.75), torch.tensor([0, 1])
    assert calibration_error(logits, labels, num_bins=2) == pytest.approx((0.5 + 0.75) / 2, rel=1e-12)
    assert calibration_error(logits, labels, num_bins=1) == pytest.approx(abs(0.625 - 0.5), rel=1e-12)


def test_certain_correct_predictions_are_calibrated():
    certain = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert calibration_error(certain, torch.tensor([0, 1])) == 0
    assert calibration_error(certain, torch.tensor([1, 0])) == 1


@pytest.mark.parametrize(("clients", "worst"), [(1, [0]), (10, [0]), (11, [0, 1]), (20, [0, 1]), (25, [0, 1, 2])])
def test_worst_decile_is_a_tenth_of_the_clients_rounded_up(clients, worst):
    values = [number / clients for number in range(clients)]
    shuffled = values[::2] + values[1::2]
    result = client_averages(shuffled, [1] * clients)
    assert result["worst_decile"] == pytest.approx(sum(values[number] for number in worst) / len(worst))
    assert result["worst"] == 0
    negated = client_averages([-value for value in shuffled], [1] * clients, larger_is_worse=True)
    assert negated["worst_decile"] == pytest.approx(-result["worst_decile"])
    assert negated["worst"] == 0


def test_averages_over_clients_and_over_examples():
    result = client_averages([0.5, 1.0], [30, 10])
    assert result == {
        "client_mean": 0.75,
        "sample_weighted": 0.625,
        "client_std": 0.25,
        "worst": 0.5,
        "worst_decile": 0.5,
    }


def test_larger_loss_and_calibration_error_are_worse():
    assert {name for name, larger_is_worse in EVAL_METRICS.items() if larger_is_worse} == {"loss", "calibration_error"}
    logits, labels = logits_and_labels(0, 20, 3, 3)
    assert EVAL_METRICS.keys() < vars(classification_metrics(logits, labels)).keys()
