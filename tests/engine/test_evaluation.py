"""The numbers of an examination, against scikit-learn and against the hand."""

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


def answers(seed: int, examples: int, classes: int, there: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, right about half of the time, and labels of the first classes only."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, there, examples))
    logits = torch.from_numpy(rng.normal(size=(examples, classes)))
    logits[torch.arange(examples), labels] += 1.5
    return logits, labels


@pytest.mark.parametrize(("examples", "classes", "there"), [(200, 10, 10), (50, 10, 3), (7, 5, 1), (1, 4, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_those_of_scikit_learn(seed, examples, classes, there):
    logits, labels = answers(seed, examples, classes, there)
    found, predicted = classification_metrics(logits, labels), logits.argmax(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a class is guessed that nobody has, which is the point here
        balanced = metrics.balanced_accuracy_score(labels, predicted)
    assert found.balanced_accuracy == pytest.approx(balanced, rel=1e-12)
    assert found.macro_f1 == pytest.approx(
        metrics.f1_score(labels, predicted, average="macro", zero_division=0), rel=1e-12
    )
    assert found.accuracy == metrics.accuracy_score(labels, predicted)
    assert found.confusion == metrics.confusion_matrix(labels, predicted, labels=range(classes)).tolist()
    probabilities = logits.softmax(dim=1)
    assert found.loss == pytest.approx(metrics.log_loss(labels, probabilities, labels=range(classes)), rel=1e-9)


def test_confusion_rows_are_true_classes_and_columns_predictions():
    logits = torch.eye(3)[[1, 1, 2]]
    assert classification_metrics(logits, torch.tensor([0, 0, 2])).confusion == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_confusion_matrix_is_computed_on_request_only():
    """It would have more numbers than memory."""
    logits = torch.zeros(2, 60_000)
    found = classification_metrics(logits, torch.tensor([0, 5]), with_confusion=False)
    assert found.confusion is None
    assert found.balanced_accuracy == 0.5


def test_classification_metrics_equal_evaluate_model_bit_for_bit():
    client = run_toy(Local(), TOYS["even"]).state.clients[0]
    model, examples = client.state["model"], client.private
    found, mark = (
        classification_metrics(client.learner.predict(model, examples), examples.targets),
        evaluate_model(client.learner, model, examples),
    )
    assert (found.accuracy, found.loss) == (mark.accuracy, mark.loss)


def logits_of(*confidences: float) -> torch.Tensor:
    """Answers for class 0 of two, each with a probability."""
    return torch.tensor([[math.log(p), math.log(1 - p)] for p in confidences], dtype=torch.float64)


def test_calibration_error_by_hand():
    """Three answers lie in (9/15, 10/15], two in (13/15, 14/15]; one of the three is right, both of the two are."""
    logits, labels = logits_of(0.61, 0.63, 0.65, 0.9, 0.92), torch.tensor([0, 1, 1, 0, 0])
    by_hand = 3 / 5 * abs(0.63 - 1 / 3) + 2 / 5 * abs(0.91 - 1)
    assert calibration_error(logits, labels) == pytest.approx(by_hand, rel=1e-12)


def test_over_and_underconfidence_cancel_within_a_bin_only():
    same_bin = calibration_error(logits_of(0.62, 0.64), torch.tensor([0, 1]))
    assert same_bin == pytest.approx(abs(0.63 - 0.5), rel=1e-12)
    other_bins = calibration_error(logits_of(0.62, 0.7), torch.tensor([0, 1]))
    assert other_bins == pytest.approx((0.38 + 0.7) / 2, rel=1e-12)


def test_calibration_bins_contain_their_upper_edge():
    """Of 2 bins, 0.5 belongs to the first and all above to the second."""
    logits, labels = logits_of(0.5, 0.75), torch.tensor([0, 1])
    assert calibration_error(logits, labels, num_bins=2) == pytest.approx((0.5 + 0.75) / 2, rel=1e-12)
    assert calibration_error(logits, labels, num_bins=1) == pytest.approx(abs(0.625 - 0.5), rel=1e-12)


def test_certain_correct_predictions_are_calibrated():
    certain = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert calibration_error(certain, torch.tensor([0, 1])) == 0
    assert calibration_error(certain, torch.tensor([1, 0])) == 1


@pytest.mark.parametrize(("clients", "worst"), [(1, [0]), (10, [0]), (11, [0, 1]), (20, [0, 1]), (25, [0, 1, 2])])
def test_the_worst_decile_is_a_tenth_rounded_up(clients, worst):
    values = [number / clients for number in range(clients)]
    mixed = values[::2] + values[1::2]
    found = client_averages(mixed, [1] * clients)
    assert found["worst_decile"] == pytest.approx(sum(values[number] for number in worst) / len(worst))
    assert found["worst"] == 0
    upside_down = client_averages([-value for value in mixed], [1] * clients, larger_is_worse=True)
    assert upside_down["worst_decile"] == pytest.approx(-found["worst_decile"])
    assert upside_down["worst"] == 0


def test_averages_over_clients_and_over_examples():
    found = client_averages([0.5, 1.0], [30, 10])
    assert found == {
        "client_mean": 0.75,
        "sample_weighted": 0.625,
        "client_std": 0.25,
        "worst": 0.5,
        "worst_decile": 0.5,
    }


def test_larger_loss_and_calibration_error_are_worse():
    assert {name for name, larger_is_worse in EVAL_METRICS.items() if larger_is_worse} == {"loss", "calibration_error"}
    logits, labels = answers(0, 20, 3, 3)
    assert EVAL_METRICS.keys() < vars(classification_metrics(logits, labels)).keys()
