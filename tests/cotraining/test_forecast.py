"""Features of an exchange against loops, and the model of the expected gain."""

from __future__ import annotations

from math import inf, log10

import numpy as np
import pytest

from fedmosaic_cli.cotraining.forecast import (
    NO_GAIN,
    ExpectedGain,
    ForecastModel,
    ResidualRange,
    confirmed_votes,
    forecast_features,
    vote_coverage,
    vote_evidence,
)
from fedmosaic_cli.cotraining.vote_shares import ConfidenceVotes, agreement_kappa, vote_sums
from fedmosaic_cli.runner.forecast import load_forecast_model

NUM_EXAMPLES, NUM_CLASSES, NUM_CLIENTS = 300, 5, 6


def voters(error: float = 0.3, seed: int = 0) -> dict[int, ConfidenceVotes]:
    """Clients that err independently with this probability."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(NUM_CLASSES, size=NUM_EXAMPLES)
    votes = {}
    for client in range(NUM_CLIENTS):
        is_wrong = rng.random(NUM_EXAMPLES) < error
        labels = np.where(is_wrong, rng.integers(NUM_CLASSES, size=NUM_EXAMPLES), truth)
        votes[client] = ConfidenceVotes(labels, rng.random(NUM_EXAMPLES))
    return votes


def counts_of(votes: dict[int, ConfidenceVotes]) -> dict[int, np.ndarray]:
    """Clients with 40 examples of two classes, the second one three times as frequent."""
    counts = {}
    for client in votes:
        counts[client] = np.zeros(NUM_CLASSES, dtype=np.int64)
        counts[client][[client % NUM_CLASSES, (client + 1) % NUM_CLASSES]] = 10, 30
    return counts


@pytest.mark.parametrize(
    ("confidence", "coverage"),
    [([0.3] * 8, 1.0), ([0, 0, 0.7, 0], 0.25), ([0.0] * 4, 0.0), ([1, 1, 0, 0], 0.5), ([3.0, 1.0], 16 / 20)],
)
def test_coverage_is_the_fraction_of_examples_that_count(confidence, coverage):
    assert vote_coverage(np.array(confidence, dtype=float)) == pytest.approx(coverage)


def test_confirmed_votes_are_those_of_a_loop():
    votes = voters()
    sums = vote_sums(votes, NUM_CLASSES)
    confirmed, total = np.zeros(NUM_CLASSES), np.zeros(NUM_CLASSES)
    for example in range(NUM_EXAMPLES):
        others = np.zeros(NUM_CLASSES)
        for client, own in votes.items():
            if client != 2:
                others[own.labels[example]] += own.confidence[example] / own.confidence.mean()
        label, weight = votes[2].labels[example], votes[2].confidence[example] / votes[2].confidence.mean()
        total[label] += weight
        confirmed[label] += weight * (others.argmax() == label)
    found = confirmed_votes(votes[2], sums)
    assert found[0] == pytest.approx(confirmed, rel=1e-12)
    assert found[1] == pytest.approx(total, rel=1e-12)


def test_reliability_is_that_of_the_other_clients_for_the_classes_of_the_client():
    votes = voters()
    sums, counts = vote_sums(votes, NUM_CLASSES), counts_of(votes)
    evidence = vote_evidence(votes, counts)[1]
    others = [confirmed_votes(own, sums) for client, own in votes.items() if client != 1]
    by_class = sum(confirmed for confirmed, _ in others) / sum(total for _, total in others)
    assert evidence.class_reliability == pytest.approx(by_class)
    assert evidence.reliability == pytest.approx(0.25 * by_class[1] + 0.75 * by_class[2])
    assert evidence.agreement == agreement_kappa(votes[1], sums, 1.0)
    assert evidence.public_size == NUM_EXAMPLES


def test_a_class_that_receives_no_vote_has_no_reliability():
    votes = {
        client: ConfidenceVotes(np.minimum(own.labels, NUM_CLASSES - 2), own.confidence)
        for client, own in voters().items()
    }
    evidence = vote_evidence(votes, counts_of(votes))
    assert np.isnan(evidence[3].class_reliability).tolist() == [False] * 4 + [True]
    assert evidence[3].reliability == pytest.approx(0.25 * evidence[3].class_reliability[3])


def test_better_voters_are_more_reliable():
    def mean_evidence(error, name):
        return np.mean([getattr(each, name) for each in vote_evidence(voters(error), counts_of(voters())).values()])

    for name in ("reliability", "agreement"):
        values = [mean_evidence(error, name) for error in (0.8, 0.5, 0.2, 0.0)]
        assert values == sorted(values)
    assert mean_evidence(0.0, "reliability") == 1


def test_votes_at_random_and_a_contradicting_client_keep_the_own_model():
    rng = np.random.default_rng(5)
    noise = {
        client: ConfidenceVotes(rng.integers(NUM_CLASSES, size=NUM_EXAMPLES), rng.random(NUM_EXAMPLES))
        for client in range(NUM_CLIENTS)
    }
    assert {each.guard for each in vote_evidence(noise, counts_of(noise)).values()} == {
        "voters do not agree with each other"
    }
    votes = voters()
    votes[4] = ConfidenceVotes((votes[4].labels + 1) % NUM_CLASSES, votes[4].confidence)
    guards = [each.guard for each in vote_evidence(votes, counts_of(votes)).values()]
    assert guards == ["", "", "", "", "contradicts the others", ""]


def test_features_are_computed_from_votes_and_class_counts():
    votes = voters()
    counts = counts_of(votes)
    evidence = vote_evidence(votes, counts)[0]
    features = forecast_features(evidence, counts[0])
    assert features["reliability"] == evidence.reliability
    assert features["inverse_root_examples"] == pytest.approx(40**-0.5)
    assert features["log10_public"] == pytest.approx(log10(NUM_EXAMPLES))


MODEL = ForecastModel(
    least_fraction=0.02,
    constant=0.1,
    coefficients={"reliability": 0.5},
    residuals=(ResidualRange(0.005, -0.01, 0.02), ResidualRange(inf, -0.03, 0.06)),
    mean_residuals=(ResidualRange(inf, -0.001, 0.002),),
)


def test_expected_gain_is_the_corrected_fraction_of_errors():
    gain = MODEL.expected_gain({"reliability": 0.4, "coverage": 9.0}, own_accuracy=0.8)
    assert gain == pytest.approx((0.06, 0.03, 0.12))
    assert MODEL.expected_gain({"reliability": 0.4}, own_accuracy=1.0) == pytest.approx((0, -0.01, 0.02))
    assert MODEL.corrected_fraction({"reliability": 9.0}) == 1
    assert MODEL.corrected_fraction({"reliability": -9.0}) == 0.02


def test_mean_gain_has_an_interval_of_its_own():
    gains = [ExpectedGain(0.02, 0, 1), NO_GAIN]
    assert MODEL.expected_mean(gains) == pytest.approx((0.01, 0.009, 0.012))
    assert MODEL.expected_mean([NO_GAIN, NO_GAIN]) == NO_GAIN


def test_advice_depends_on_the_expected_gain():
    assert ExpectedGain(0.005, -0.1, 0.1).advice == "collaborate"
    assert ExpectedGain(0.004, -0.1, 0.1).advice == "little to expect"
    assert ExpectedGain(0.001, -0.1, 0.004).advice == "little to expect"
    assert NO_GAIN.advice == "stay local"


def test_only_a_guard_advises_to_stay_local():
    model = load_forecast_model().to_model()
    features = {"reliability": 0.6, "inverse_root_examples": 0.2}
    given = [model.expected_gain(features, own_accuracy=accuracy).advice for accuracy in (0.3, 0.99, 1.0)]
    assert given == ["collaborate", "little to expect", "little to expect"]
