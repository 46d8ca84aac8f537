"""The vote on what the public examples are, against sums in plain Python and what must hold for all inputs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.labels.defences import VotingRules
from fedmosaic_cli.labels.privacy import mechanisms
from fedmosaic_cli.labels.voting import (
    PAPER_VOTING_RULES,
    Ballot,
    ReportingRates,
    VoteTally,
    aggregate_votes,
    weighted_ballots,
)
from fedmosaic_cli.labels.wire import ExpertiseEncoding
from tests.labels.ballots import ballots, levels

FLOOR = Fraction(1, 1_000_000)


@dataclass(frozen=True)
class Votes:
    """Labels and levels of expertise, [clients, examples]; no level is above `top`."""

    labels: np.ndarray
    levels: np.ndarray
    classes: int
    top: int

    def ballots(self, factor: int = 1) -> list[Ballot]:
        return ballots(self.labels, levels(factor * self.levels), self.classes)


@st.composite
def votes(draw, most: int = 7) -> Votes:
    """Votes with few levels, where ties are frequent, or many."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, most)), draw(st.integers(1, 9))
    classes, top = draw(st.integers(2, 6)), draw(st.sampled_from([0, 1, 2, 20, 255]))
    return Votes(rng.integers(0, classes, shape), rng.integers(0, top, shape, endpoint=True), classes, top)


def weight(level: int) -> Fraction:
    return Fraction(int(level), 255) + FLOOR


def by_hand(case: Votes, trim: float = 0.0, weigh=weight) -> list[int]:
    """The consensus, one example after the other; -1 where nothing is left of any vote."""
    found = []
    for said, level in zip(case.labels.T.tolist(), case.levels.T.tolist(), strict=True):
        piles: dict[int, list[Fraction]] = defaultdict(list)
        for label, own in zip(said, level, strict=True):
            piles[label].append(weigh(own))
        dropped = math.floor(Fraction(str(trim)) * len(said))
        scores = [sum(sorted(piles[label])[: max(0, len(piles[label]) - dropped)]) for label in range(case.classes)]
        found.append(scores.index(max(scores)) if any(scores) else -1)
    return found


@settings(max_examples=250)
@given(votes())
def test_consensus_equals_a_manual_count(case):
    outcome = aggregate_votes(case.ballots())
    assert outcome.labels.tolist() == outcome.weighted_labels.tolist() == by_hand(case)
    assert outcome.majority_labels.tolist() == by_hand(case, weigh=lambda level: Fraction(1))
    shares = [sum(map(weight, row)) for row in case.levels.tolist()]
    assert list(outcome.weight_share.values()) == pytest.approx([float(share / sum(shares)) for share in shares])
    agreement = [float(np.mean(row == outcome.labels)) for row in case.labels]
    assert list(outcome.consensus_agreement.values()) == pytest.approx(agreement)


@settings(max_examples=250)
@given(votes(), st.randoms(use_true_random=False), st.sampled_from(["weighted", "majority", "trimmed"]), st.booleans())
def test_consensus_does_not_depend_on_client_order(case, random, vote, robust):
    rules = VotingRules(normalise=robust, cap_share=0.2 if robust else None, vote=vote, trim=0.3)
    sent = case.ballots()
    outcome, other = (aggregate_votes(each, rules, {}) for each in (sent, random.sample(sent, len(sent))))
    assert outcome.labels.tobytes() == other.labels.tobytes()
    assert outcome.weight_share == other.weight_share
    assert outcome.leave_one_out_agreement == other.leave_one_out_agreement


@settings(max_examples=250)
@given(votes(), st.randoms(use_true_random=False))
def test_consensus_does_not_depend_on_client_ids(case, random):
    """Even the order of summing up does not decide about ties."""
    order = random.sample(range(len(case.labels)), len(case.labels))
    renumbered = Votes(case.labels[order], case.levels[order], case.classes, case.top)
    assert aggregate_votes(renumbered.ballots()).labels.tolist() == aggregate_votes(case.ballots()).labels.tolist()


@settings(max_examples=250)
@given(votes(), st.data())
def test_consensus_is_invariant_to_scaling_of_expertise(case, data):
    factor = data.draw(st.integers(1, 255 // max(case.top, 1)))
    assert aggregate_votes(case.ballots(factor)).labels.tolist() == aggregate_votes(case.ballots()).labels.tolist()


@settings(max_examples=250)
@given(votes(), st.sampled_from([PAPER_VOTING_RULES, VotingRules(normalise=True), VotingRules(vote="majority")]))
def test_client_with_zero_reputation_has_no_effect(case, rules):
    sent = case.ballots()
    silenced = aggregate_votes([*sent, replace(sent[0], client_id=len(sent))], rules, {len(sent): 0.0})
    assert silenced.labels.tolist() == aggregate_votes(sent, rules).labels.tolist()


@settings(max_examples=250)
@given(
    votes(most=1),
    st.sampled_from([PAPER_VOTING_RULES, VotingRules(normalise=True, cap_share=0.2), VotingRules(vote="trimmed")]),
)
def test_consensus_of_one_client_is_its_labels(case, rules):
    outcome = aggregate_votes(case.ballots(), rules)
    assert outcome.labels.tolist() == case.labels[0].tolist()
    assert (outcome.weight_share, outcome.consensus_agreement) == ({0: 1.0}, {0: 1.0})


@settings(max_examples=250)
@given(votes(most=12), st.sampled_from([0.0, 0.1, 0.2, 0.29, 0.34, 0.49]))
def test_trimmed_vote_equals_a_manual_count(case, trim):
    outcome = aggregate_votes(case.ballots(), VotingRules(vote="trimmed", trim=trim))
    assert outcome.labels.tolist() == by_hand(case, trim)
    assert outcome.weighted_labels.tolist() == by_hand(case)


@settings(max_examples=250)
@given(votes(), st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 1.0]), min_size=7, max_size=7), st.booleans())
def test_leave_one_out_agreement_equals_a_manual_count(case, standings, in_bits):
    """0.1 and 0.2 tie with 0.3, though not in float64."""
    said = np.eye(case.classes, dtype=np.uint8)[case.labels] if in_bits else case.labels
    outcome = aggregate_votes(ballots(said, None, case.classes), reputation=dict(enumerate(standings)))
    for client, own in enumerate(case.labels.tolist()):
        agreed = 0
        for example, label in enumerate(own):
            scores = [Fraction(0)] * case.classes
            for other, row in enumerate(case.labels):
                scores[row[example]] += Fraction(str(standings[other])) if other != client else 0
            agreed += any(scores) and scores.index(max(scores)) == label
        assert outcome.leave_one_out_agreement[client] == pytest.approx(agreed / len(own))


@pytest.mark.parametrize(("share", "clients", "dropped"), [(0.1, 30, 3), (0.1, 29, 2), (0.29, 100, 29), (0.07, 100, 7)])
def test_number_of_trimmed_votes_follows_the_fraction(share, clients, dropped):
    """29 % of 100 are 29, though 0.29 * 100 is less in float64."""
    labels = np.zeros((clients, 1), dtype=int)
    labels[: dropped + 1] = 1
    heavy = np.where(labels == 1, 1.0, 1 / 255)
    kept = aggregate_votes(ballots(labels, heavy, 2), VotingRules(vote="trimmed", trim=share))
    others = clients - 2 * dropped - 1
    assert kept.labels.tolist() == [1 if others / 255 < 1.0 else 0]
    labels[dropped] = 0
    assert aggregate_votes(ballots(labels, heavy, 2), VotingRules(vote="trimmed", trim=share)).labels.tolist() == [0]


def test_example_without_remaining_votes_has_no_label():
    """Ten clients, ten classes: the heaviest vote for each is its only one. To say class 0 would be a bias."""
    everyone = ballots(np.arange(10)[:, None], np.ones((10, 1)), 10)
    rules = VotingRules(vote="trimmed", trim=0.1)
    assert aggregate_votes(everyone, rules).labels.tolist() == [-1]
    assert aggregate_votes(everyone, rules, previous_labels=np.array([7])).labels.tolist() == [7]


def test_ties_go_to_the_lowest_class():
    said = [[2, 1, 3], [1, 2, 3], [0, 0, 0], [3, 3, 0]]
    assert aggregate_votes(ballots(said, np.full((4, 3), 0.5), 4)).labels.tolist() == [0, 0, 0]
    assert aggregate_votes(ballots(said, None, 4)).labels.tolist() == [0, 0, 0]


def test_examples_without_weight_keep_the_previous_label():
    said = ballots([[1, 1], [2, 2]], None, 3)
    nobody = {0: 0.0, 1: 0.0}
    assert aggregate_votes(said, reputation=nobody).labels.tolist() == [-1, -1]
    assert aggregate_votes(said, reputation=nobody, previous_labels=np.array([2, 0])).labels.tolist() == [2, 0]
    assert aggregate_votes(said, reputation={0: 0.0}, previous_labels=np.array([2, 0])).labels.tolist() == [2, 2]
    assert aggregate_votes(said, reputation=nobody).weight_share == {0: 0.0, 1: 0.0}
    assert aggregate_votes(said, reputation=nobody).consensus_agreement == {0: 0.0, 1: 0.0}


def test_one_level_outweighs_many_votes_without_expertise():
    said = [[0]] * 50 + [[1]]
    assert aggregate_votes(ballots(said, levels([[0]] * 50 + [[1]]), 2)).labels.tolist() == [1]
    assert aggregate_votes(ballots(said, levels([[0]] * 51), 2)).labels.tolist() == [0]


def test_non_finite_scores_raise():
    tally = VoteTally(1, 2)
    tally.add_votes(np.array([0]), np.array([np.nan]))
    with pytest.raises(ArithmeticError, match="finite"):
        tally.winning_labels(ReportingRates())


# Labels behind noise.

DRAWS, CLASSES, BUDGET = 10_000, 4, 1.0
TRUE, WEIGHTS = (0, 2, 2, 3), (1.0, 0.4, 0.8, 0.2)
KEEP, OTHER = mechanisms.keep_probability(BUDGET, CLASSES), mechanisms.other_label_probability(BUDGET, CLASSES)
FLIP = mechanisms.flip_probability(BUDGET, mechanisms.CHANGED_BITS_PER_LABEL)
NOISES = {
    "krr": (mechanisms.randomized_response, ReportingRates(KEEP, OTHER)),
    "xor": (mechanisms.flip_one_hot_bits, ReportingRates(1 - FLIP, FLIP)),
}


def drawn(noise: str, true=TRUE, budget: float = BUDGET, classes: int = CLASSES, size: int = DRAWS) -> list[np.ndarray]:
    """What clients say who mean one class in every row."""
    rng = np.random.default_rng(0)
    return [NOISES[noise][0](np.full(size, label), budget, classes, rng) for label in true]


def scores_of(sent: list[Ballot], rates: ReportingRates) -> np.ndarray:
    tally = VoteTally(sent[0].spec.public_size, sent[0].spec.num_classes)
    for _, labels, weights in weighted_ballots(sent, PAPER_VOTING_RULES, {}):
        tally.add_votes(labels, weights)
    return tally.scores(rates)


def assert_mean_is(scores: np.ndarray, clean: np.ndarray) -> None:
    error = scores.std(axis=0, ddof=1) / np.sqrt(len(scores))
    assert (np.abs(scores.mean(axis=0) - clean) < 4 * error).all()


@pytest.mark.parametrize("noise", NOISES)
def test_scores_of_noisy_labels_are_unbiased(noise):
    weights = np.repeat(np.array(WEIGHTS)[:, None], DRAWS, axis=1)
    sent = ballots(drawn(noise), weights, CLASSES)
    clean = np.array([1.0, 0.0, 1.2, 0.2])
    assert_mean_is(scores_of(sent, NOISES[noise][1]), clean)
    with pytest.raises(AssertionError):  # taken as they are, they are not
        assert_mean_is(scores_of(sent, ReportingRates()), clean)


@pytest.mark.parametrize("noise", NOISES)
def test_scores_with_class_weights_are_unbiased(noise):
    """What noise adds to a class on average is in proportion to what the class weighs."""
    shares = np.array([[0.4, 0.2, 0.2, 0.2], [0.0, 0.0, 0.8, 0.2], [0.2, 0.2, 0.2, 0.4], [0.8, 0.0, 0.0, 0.2]])
    sent = ballots(drawn(noise), shares, CLASSES, code=ExpertiseEncoding.HISTOGRAM, is_distribution=True)
    clean = np.array([0.4, 0.0, 0.8 + 0.2, 0.2])
    assert_mean_is(scores_of(sent, NOISES[noise][1]), clean)
    told = [np.take(own, row) for own, row in zip(shares, drawn("krr"), strict=True)]
    with pytest.raises(AssertionError):  # an offset that is the same for all classes leaves the heavy ones too high
        assert_mean_is(scores_of(ballots(drawn("krr"), told, CLASSES), NOISES["krr"][1]), clean)


@pytest.mark.parametrize(
    "rules", [PAPER_VOTING_RULES, VotingRules(normalise=True, cap_share=0.2), VotingRules(vote="trimmed", trim=0.3)]
)
def test_class_weights_equal_example_weights(rules):
    rng = np.random.default_rng(4)
    labels, shares = rng.integers(0, CLASSES, (6, 50)), levels(rng.integers(0, 60, (6, CLASSES)))
    by_class = aggregate_votes(ballots(labels, shares, CLASSES, code=ExpertiseEncoding.HISTOGRAM), rules, {})
    by_example = aggregate_votes(ballots(labels, np.take_along_axis(shares, labels, axis=1), CLASSES), rules, {})
    assert by_class.labels.tolist() == by_example.labels.tolist()
    assert by_class.weight_share == pytest.approx(by_example.weight_share)


@pytest.mark.parametrize("noise", NOISES)
def test_equal_noise_does_not_change_the_winner(noise):
    weights = levels(np.random.default_rng(1).integers(0, 256, (4, DRAWS)))
    sent = ballots(drawn(noise), weights, CLASSES)
    assert np.array_equal(aggregate_votes(sent, rates=NOISES[noise][1]).labels, aggregate_votes(sent).labels)


def test_every_bit_is_a_vote():
    """Every bit is a vote, wherever it stands: [2, 2, 3] votes of equal weight for the first example's classes."""
    said = np.array([[[1, 0, 1], [0, 0, 0]], [[1, 1, 1], [0, 1, 0]], [[0, 1, 1], [1, 1, 0]]], dtype=np.uint8)
    outcome = aggregate_votes(ballots(said, None, 3))
    assert outcome.labels.tolist() == outcome.majority_labels.tolist() == [2, 1]
    tally = VoteTally(2, 3)
    for row in said:
        tally.add_votes(row, np.ones(2))
    assert tally.weight_sums.tolist() == [[2, 2, 3], [1, 2, 0]]
    assert outcome.consensus_agreement == {0: 0.5, 1: 1.0, 2: 1.0}


def first_one_wins(bits: list[np.ndarray], classes: int) -> np.ndarray:
    """The wrong way: to read a noisy row as the class of its first 1, and then to count classes."""
    labels = np.stack([row.argmax(axis=1) for row in bits])
    return np.stack([np.bincount(column, minlength=classes).argmax() for column in labels.T])


def is_even(labels: np.ndarray, classes: int) -> bool:
    """Whether labels are spread over all classes as chance has it, within four standard errors."""
    counts, usual = np.bincount(labels, minlength=classes), len(labels) / classes
    return bool((np.abs(counts - usual) < 4 * np.sqrt(usual * (1 - 1 / classes))).all())


def test_noise_favours_no_class():
    """Whoever takes the first 1 of a row turns noise into votes for low classes. Weights leave no ties to break."""
    bits = drawn("xor", true=[0] * 15, budget=1e-9, classes=10, size=4000)
    weights = np.random.default_rng(2).random((15, 4000))
    sent = ballots(bits, weights, 10, code=ExpertiseEncoding.FLOATS)
    flip = mechanisms.flip_probability(1e-9, 2)
    assert is_even(aggregate_votes(sent, rates=ReportingRates(1 - flip, flip)).labels, 10)
    assert not is_even(first_one_wins(bits, 10), 10)


def test_summed_bits_are_more_accurate_than_the_first_bit():
    """15 clients, 10 classes, 80 % correct, a budget of 4 a label: nearly all right, against four of five."""
    rng = np.random.default_rng(3)
    true = rng.integers(0, 10, 3000)
    said = np.where(rng.random((15, 3000)) < 0.8, true, rng.integers(0, 10, (15, 3000)))
    bits = [mechanisms.flip_one_hot_bits(row, 4.0, 10, rng) for row in said]
    flip = mechanisms.flip_probability(4.0, 2)
    right = np.mean(aggregate_votes(ballots(bits, None, 10), rates=ReportingRates(1 - flip, flip)).labels == true)
    wrong = np.mean(first_one_wins(bits, 10) == true)
    assert right > 0.995
    assert wrong < 0.85
