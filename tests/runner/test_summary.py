"""The best round of a run."""

from __future__ import annotations

import pytest

from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.runner.summary import accuracy_sections, planned_evaluations

SIZES = [10, 30]
# Test accuracy is highest in round 1, validation accuracy in round 2.
TEST = {1: (0.9, 0.7), 2: (0.5, 0.3), 3: (0.6, 0.6)}
VALIDATION = {1: (0.2, 0.2), 2: (0.8, 0.6), 3: (0.4, 0.4)}


def best_round(test, validation=None):
    """Return the section about the best round, for accuracies of two clients by round."""
    by_round = {
        number: [
            {"accuracy": accuracy, **({} if validation is None else {"val_accuracy": validation[number][client]})}
            for client, accuracy in enumerate(accuracies)
        ]
        for number, accuracies in test.items()
    }
    return accuracy_sections(by_round, len(by_round), list(test[max(test)]), SIZES)["best_round"]


def test_best_round_is_that_of_validation_data_where_test_data_disagree():
    """Its accuracy is that on test data. The choice by test data would be optimistic."""
    best = best_round(TEST, VALIDATION)
    assert best == {"round": 2, "client_mean": pytest.approx(0.4), "chosen_on": "validation"}
    assert best_round(TEST)["client_mean"] > best["client_mean"]


def test_best_round_without_validation_data_is_chosen_on_test_data_and_says_so():
    assert best_round(TEST) == {"round": 1, "client_mean": pytest.approx(0.8), "chosen_on": "test"}


def test_best_round_does_not_depend_on_test_data():
    other = {1: (0.0, 0.1), 2: (0.2, 0.1), 3: (1.0, 1.0)}
    assert best_round(other, VALIDATION)["round"] == best_round(TEST, VALIDATION)["round"] == 2


def test_first_of_equally_good_rounds_is_the_best():
    equal = dict.fromkeys(VALIDATION, (0.5, 0.5))
    assert best_round(TEST, equal)["round"] == 1


def test_an_additional_evaluation_of_a_continued_run_is_not_chosen():
    """A run of one round was continued to four."""
    by_round = {number: [{"accuracy": value} for value in values] for number, values in TEST.items()}
    planned = planned_evaluations({**by_round, 4: by_round[2]}, TrainSettings(rounds=4, eval_every=3))
    assert list(planned) == [3, 4]
    best = accuracy_sections(planned, 4, list(TEST[2]), SIZES)["best_round"]
    assert (best["round"], best["chosen_among"]) == (3, 2), "round 1 has a higher accuracy"


def test_results_are_those_of_the_last_round():
    by_round = {number: [{"accuracy": value} for value in values] for number, values in TEST.items()}
    accuracy = accuracy_sections(by_round, len(by_round), list(TEST[3]), SIZES)["accuracy"]
    assert accuracy["per_client"] == [0.6, 0.6]
