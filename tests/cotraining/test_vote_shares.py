"""Sums of votes with confidence, and the tests of whether they mean anything."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fedmosaic_cli.cotraining.vote_shares import (
    ConfidenceVotes,
    agreement_z,
    agreement_z_by_client,
    contradicts_others,
    effective_classes,
    holdout_z,
    sharpened_shares,
    vote_reputations,
    vote_sums,
)

NUM_EXAMPLES, NUM_CLASSES = 400, 10


def voters(num_clients: int, error: float = 0.4, seed: int = 0) -> tuple[np.ndarray, dict[int, ConfidenceVotes]]:
    """True labels, and clients that err independently and are a little less confident where they do."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(NUM_CLASSES, size=NUM_EXAMPLES)
    votes = {}
    for client in range(num_clients):
        is_wrong = rng.random(NUM_EXAMPLES) < error
        labels = np.where(is_wrong, rng.integers(NUM_CLASSES, size=NUM_EXAMPLES), truth)
        votes[client] = ConfidenceVotes(labels, rng.random(NUM_EXAMPLES) * np.where(is_wrong, 0.5, 1.0))
    return truth, votes


def changed(votes: dict[int, ConfidenceVotes], clients: range, labels, confidence=None) -> dict[int, ConfidenceVotes]:
    return {
        client: ConfidenceVotes(labels(own.labels), own.confidence if confidence is None else confidence(own))
        if client in clients
        else own
        for client, own in votes.items()
    }


def flip(labels):
    return NUM_CLASSES - 1 - labels


def test_sums_are_those_of_a_loop():
    _, votes = voters(4)
    sums = vote_sums(votes, NUM_CLASSES)
    for example in (0, 17, 399):
        expected = np.zeros(NUM_CLASSES)
        for own in votes.values():
            expected[own.labels[example]] += own.confidence[example] / own.confidence.mean()
        assert sums[example] == pytest.approx(expected, rel=1e-12)


def test_claiming_more_confidence_everywhere_changes_nothing():
    """A version without division by the mean lets two clients decide all labels."""
    _, votes = voters(20)
    loud = changed(votes, range(2), lambda labels: labels, lambda own: 1000 * own.confidence)
    assert vote_sums(loud, NUM_CLASSES) == pytest.approx(vote_sums(votes, NUM_CLASSES), rel=1e-9)


def test_two_hostile_voters_with_maximal_confidence_do_not_decide_the_labels():
    truth, votes = voters(20, error=0.6)
    hostile = changed(votes, range(2), flip, lambda own: np.full(NUM_EXAMPLES, 100.0))
    honest = (vote_sums(votes, NUM_CLASSES).argmax(axis=1) == truth).mean()
    assert (vote_sums(hostile, NUM_CLASSES).argmax(axis=1) == truth).mean() > honest - 0.1
    unweighted = sum(np.eye(NUM_CLASSES)[own.labels] * own.confidence[:, None] for own in hostile.values())
    assert (unweighted.argmax(axis=1) == truth).mean() < honest - 0.5


def test_client_without_confidence_has_no_weight():
    _, votes = voters(3)
    silent = {**votes, 3: ConfidenceVotes(votes[0].labels, np.zeros(NUM_EXAMPLES))}
    assert (vote_sums(silent, NUM_CLASSES) == vote_sums(votes, NUM_CLASSES)).all()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 50.0])
def test_shares_are_powers_of_the_sums(power):
    sums = np.array([[3.0, 1.0, 0.0], [1e-200, 1e-200, 0.0], [0.0, 0.0, 0.0]])
    shares = sharpened_shares(sums, power)
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert shares[0] == pytest.approx(np.array([3.0**power, 1.0, 0.0]) / (3.0**power + 1))
    assert shares[1] == pytest.approx([0.5, 0.5, 0.0])  # no underflow
    assert shares[2] == pytest.approx([1 / 3] * 3)


def test_z_has_the_moments_of_all_permutations():
    rng = np.random.default_rng(1)
    count, classes = 6, 3
    votes = ConfidenceVotes(rng.integers(classes, size=count), rng.random(count))
    others = rng.random((count, classes))
    leaders = others.argmax(axis=1)
    agreements = [votes.confidence[votes.labels == leaders[list(order)]].sum() for order in permutations(range(count))]
    observed = votes.confidence[votes.labels == leaders].sum()
    expected = (observed - np.mean(agreements)) / np.std(agreements)
    assert agreement_z(votes, others) == pytest.approx(expected, rel=1e-9)


def test_bits_of_exact_labels_count_as_the_labels():
    _, votes = voters(5)
    bits = {c: ConfidenceVotes(np.eye(NUM_CLASSES, dtype=np.uint8)[v.labels], v.confidence) for c, v in votes.items()}
    sums = vote_sums(votes, NUM_CLASSES)
    assert (vote_sums(bits, NUM_CLASSES) == sums).all()
    assert agreement_z_by_client(bits, sums) == agreement_z_by_client(votes, sums)


def test_all_bits_that_are_set_count():
    """A version that counts the lowest class of a row favours low classes."""
    bits = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=np.uint8)
    votes = ConfidenceVotes(bits, np.ones(4))
    assert vote_sums({0: votes}, 3).tolist() == bits.tolist()
    others = np.random.default_rng(4).random((4, 3))
    leaders = others.argmax(axis=1)
    agreements = [bits[range(4), leaders[list(order)]].sum() for order in permutations(range(4))]
    expected = (bits[range(4), leaders].sum() - np.mean(agreements)) / np.std(agreements)
    assert agreement_z(votes, others) == pytest.approx(expected, rel=1e-9)


def test_z_of_independent_votes_is_that_of_chance():
    rng = np.random.default_rng(2)
    values = []
    for _ in range(300):
        votes = ConfidenceVotes(rng.integers(NUM_CLASSES, size=100), rng.random(100))
        values.append(agreement_z(votes, rng.random((100, NUM_CLASSES))))
    assert abs(np.mean(values)) < 0.2
    assert np.std(values) == pytest.approx(1, abs=0.15)


def test_z_is_zero_without_variance():
    same = ConfidenceVotes(np.zeros(10, dtype=np.int64), np.ones(10))
    assert agreement_z(same, np.eye(3)[np.zeros(10, dtype=int)]) == 0.0
    assert agreement_z(ConfidenceVotes(np.zeros(1, dtype=np.int64), np.ones(1)), np.ones((1, 3))) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_contradict_the_others_are_found(seed):
    _, votes = voters(20, seed=seed)
    flipped = changed(votes, range(5), flip)
    z = agreement_z_by_client(flipped, vote_sums(flipped, NUM_CLASSES))
    typical = float(np.median(list(z.values())))
    assert typical >= 3
    assert [client for client in z if contradicts_others(z[client], typical)] == list(range(5))


def test_own_vote_does_not_count_as_agreement():
    """A version that compares with the sums of all clients finds a contradicting client in agreement with itself."""
    _, votes = voters(3, error=0.9)
    loud = changed(votes, range(1), flip, lambda own: np.full(NUM_EXAMPLES, 5.0))
    sums = vote_sums(loud, NUM_CLASSES)
    assert agreement_z_by_client(loud, sums)[0] < 3 < agreement_z(loud[0], sums)


def test_no_client_contradicts_others_that_do_not_agree():
    assert not contradicts_others(-5.0, 2.9)
    assert contradicts_others(2.9, 30.0)
    assert not contradicts_others(3.1, 30.0)
    assert not contradicts_others(1.0, 3.1)
    assert contradicts_others(0.9, 3.1)


@pytest.mark.parametrize("num_hostile", [2, 4, 6])
def test_reputations_remove_independent_liars(num_hostile):
    truth, votes = voters(20, error=0.6)
    hostile = changed(votes, range(num_hostile), flip, lambda own: np.ones(NUM_EXAMPLES))
    reputation = vote_reputations(hostile, NUM_CLASSES)
    assert max(reputation[client] for client in range(num_hostile)) < 0.1
    assert min(reputation[client] for client in range(num_hostile, 20)) > 0.6
    honest = (vote_sums(votes, NUM_CLASSES).argmax(axis=1) == truth).mean()
    robust = (vote_sums(hostile, NUM_CLASSES, reputation).argmax(axis=1) == truth).mean()
    assert robust > honest - 0.1
    assert robust > (vote_sums(hostile, NUM_CLASSES).argmax(axis=1) == truth).mean()


def test_reputations_are_one_for_equally_good_voters():
    same = ConfidenceVotes(np.arange(20) % 3, np.ones(20))
    assert set(vote_reputations({0: same, 1: same, 2: same}, 3).values()) == {1.0}


def test_holdout_test_tells_predictable_labels_from_noise():
    rng = np.random.default_rng(3)
    leaders = rng.integers(NUM_CLASSES, size=400)
    predicted = np.where(rng.random(400) < 0.5, leaders, rng.integers(NUM_CLASSES, size=400))
    assert holdout_z(predicted, leaders, NUM_CLASSES) > 20
    noise = [holdout_z(predicted, rng.permutation(leaders), NUM_CLASSES) for _ in range(50)]
    assert max(noise) < 3 * 1.2
    assert abs(np.mean(noise)) < 0.5


def test_holdout_test_is_not_passed_by_one_frequent_class():
    """Predicting the most frequent class always agrees often, and says nothing."""
    leaders = np.array([0] * 90 + [1] * 10)
    assert holdout_z(np.zeros(100, dtype=np.int64), leaders, 2) == pytest.approx(0.0)
    assert holdout_z(leaders[:0], leaders[:0], 2) == 0.0


def test_effective_classes_counts_equally_frequent_classes():
    assert effective_classes(np.full((7, 5), 0.2)) == pytest.approx(5.0)
    assert effective_classes(np.eye(5)[[0, 0, 1, 1]]) == pytest.approx(2.0)
