"""What limits liars: examples by hand, and a made-up federation in which one that claims everything takes all.

The study: 15 clients, 10 classes, 3000 examples. Each client has a mix P of classes from Dirichlet(0.5), is right on
class k with probability clip(0.3 + 2 P[k], 0, 0.95), and says a class drawn from P otherwise; its expertise is the
share P of what it says. Attackers know all true classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.defences import (
    AGREEMENT_DECAY,
    MAX_RELATIVE_WEIGHT,
    VotingRules,
    capped_weights,
    client_reputations,
    normalised_weights,
    num_trimmed_votes,
    update_agreement_ema,
)
from fedmosaic_cli.labels.voting import PAPER_VOTING_RULES, VoteResult, VoteTally, aggregate_votes
from tests.labels.ballots import ballots

CLIENTS, CLASSES, SIZE, SEEDS, ROUNDS = 15, 10, 3000, 5, 10
ROBUST = VotingRules(normalise=True, cap_share=0.2)
KINDS = ("random", "constant", "flip", "collude_flip", "least_likely", "class_prior", "free_rider")


# By hand.

ONE_CLASS = np.zeros(4, dtype=int)


def test_normalised_weights_have_a_mean_of_one():
    assert normalised_weights(ONE_CLASS, np.array([0.1, 0.3, 0.2, 0.2])).tolist() == pytest.approx([0.5, 1.5, 1.0, 1.0])


def test_a_normalised_weight_is_at_most_five():
    weights = normalised_weights(np.zeros(10, dtype=int), np.array([1.0] + [0.0] * 9))
    assert weights.tolist() == [MAX_RELATIVE_WEIGHT] + [0.0] * 9 == [5.0] + [0.0] * 9


def test_zero_weights_are_not_normalised():
    assert normalised_weights(ONE_CLASS, np.zeros(4)).tolist() == [0, 0, 0, 0]
    assert normalised_weights(np.zeros(0, dtype=int), np.zeros(0)).tolist() == []


def test_normalised_bits_have_a_mean_weight_of_one():
    bits = np.array([[1, 1], [1, 0]], dtype=np.uint8)
    assert normalised_weights(bits, np.array([1.0, 1.0])).tolist() == pytest.approx([2 / 3, 2 / 3])
    assert normalised_weights(bits, np.array([[0.5, 0.25]])).tolist() == [pytest.approx([0.8, 0.4])]


def test_normalised_weights_are_invariant_to_scaling():
    weights = np.random.default_rng(0).random(50)
    labels = np.zeros(50, dtype=int)
    assert normalised_weights(labels, weights / 40) == pytest.approx(normalised_weights(labels, weights))


def test_capped_weights_are_at_most_a_share_of_the_total():
    own, totals = np.array([6.0, 1.0, 0.0, 2.0]), np.array([10.0, 10.0, 10.0, 10.0])
    assert capped_weights(ONE_CLASS, own, totals, 0.2).tolist() == pytest.approx([2.0, 1.0, 0.0, 2.0])
    bits, flat = np.array([[1, 1], [1, 0]], dtype=np.uint8), np.array([3.0, 3.0])
    assert capped_weights(bits, flat, np.array([10.0, 10.0]), 0.3).tolist() == pytest.approx([1.5, 3.0])
    by_class = capped_weights(bits, np.array([[4.0, 2.0]]), np.array([10.0, 10.0]), 0.3)
    assert by_class.tolist() == [pytest.approx([2.0, 1.0]), pytest.approx([3.0, 1.5])]


def test_capped_weight_is_not_redistributed():
    """One of weight 1 against nine of 0.1 who disagree: its share of 1.9 is cut to a fifth, 0.38, and theirs stay."""
    said, claimed = [[0]] + [[1]] * 4 + [[2]] * 5, [[1.0]] + [[0.1]] * 9
    plain = aggregate_votes(ballots(said, claimed, 3))
    assert plain.labels.tolist() == [0]
    outcome = aggregate_votes(ballots(said, claimed, 3), VotingRules(cap_share=0.2))
    assert outcome.labels.tolist() == [2]
    kept = 0.2 * (1 + 9 * 26 / 255)
    assert outcome.weight_share[0] == pytest.approx(kept / (kept + 9 * 26 / 255), abs=1e-4)


def test_number_of_trimmed_votes_is_rounded_down():
    assert [num_trimmed_votes(fraction, 5) for fraction in (0.1, 0.2, 0.4)] == [0, 1, 2]


def test_agreement_is_a_moving_average():
    after = update_agreement_ema({0: 0.5, 1: 0.8}, {0: 1.0, 2: 0.3})
    assert after == {0: pytest.approx(0.55), 1: 0.8, 2: 0.3}
    assert AGREEMENT_DECAY == 0.9


def test_reputation_is_relative_to_the_median_agreement():
    agreement = {0: 0.6, 1: 0.6, 2: 0.35, 3: 0.1, 4: 0.9}
    assert client_reputations(agreement, 10) == pytest.approx({0: 1.0, 1: 1.0, 2: 0.5, 3: 0.0, 4: 1.0})
    assert client_reputations({0: 0.5, 1: 0.5, 2: 0.02}, 10)[2] == 0.0


def test_reputation_has_a_configurable_minimum():
    assert client_reputations({0: 0.5, 1: 0.5, 2: 0.02}, 10, min_reputation=0.25)[2] == 0.25


@pytest.mark.parametrize("usual", [0.1, 0.02])
def test_reputations_are_one_if_most_clients_guess(usual):
    assert client_reputations({0: usual, 1: usual, 2: 0.9}, 10) == {0: 1.0, 1: 1.0, 2: 1.0}
    assert client_reputations({}, 10) == {}


def test_leave_one_out_agreement_ignores_own_votes_and_expertise():
    said, claimed = [[0, 0], [1, 0], [1, 1]], [[1.0, 1.0], [0.01, 0.01], [0.01, 0.01]]
    outcome = aggregate_votes(ballots(said, claimed, 2), reputation={})
    assert outcome.labels.tolist() == [0, 0], "expertise decides the vote"
    # 0 hears 1 and 1, and of 0 and 1 the lower; 1 hears a tie, and a tie; 2 hears a tie, and 0 and 0.
    assert outcome.leave_one_out_agreement == {0: 0.5, 1: 0.5, 2: 0.0}
    without_reputation = aggregate_votes(ballots(said, claimed, 2))
    assert without_reputation.leave_one_out_agreement == {}


def test_clients_without_reputation_do_not_affect_agreement():
    said = [[0], [1], [1]]
    assert aggregate_votes(ballots(said, None, 2), reputation={1: 0.0, 2: 0.0}).leave_one_out_agreement == {
        **{0: 0.0, 1: 0.0},
        2: 0.0,
    }
    assert aggregate_votes(ballots(said, None, 2), reputation={0: 0.0}).leave_one_out_agreement == {
        0: 0.0,
        1: 1.0,
        2: 1.0,
    }


# The study.


@dataclass(frozen=True)
class Crowd:
    """The federation of a seed: the true classes, everybody's mix, and what all say in each round, if honest."""

    true: np.ndarray
    mixes: np.ndarray
    said: list[np.ndarray]


@cache
def crowd(seed: int, rounds: int) -> Crowd:
    rng = np.random.default_rng(seed)
    true, mixes = rng.integers(0, CLASSES, SIZE), rng.dirichlet(np.full(CLASSES, 0.5), CLIENTS)

    def say(mix: np.ndarray) -> np.ndarray:
        knows = rng.random(SIZE) < np.clip(0.3 + 2 * mix[true], 0, 0.95)
        return np.where(knows, true, rng.choice(CLASSES, SIZE, p=mix))

    return Crowd(true, mixes, [np.stack([say(mix) for mix in mixes]) for _ in range(rounds)])


def lies(kind: str, attackers: int, crowd: Crowd, number: int, last: np.ndarray | None) -> np.ndarray:
    """What attackers say, a row each."""
    said, honest = crowd.said[number], range(attackers, CLIENTS)
    if kind == "flip":
        return (said[:attackers] + 1) % CLASSES
    if kind == "random":
        return np.random.default_rng((number, 7)).integers(0, CLASSES, (attackers, SIZE))
    scores = VoteTally(SIZE, CLASSES)
    for client in honest:
        scores.add_votes(said[client], crowd.mixes[client][said[client]])
    agreed = {
        "constant": np.full(SIZE, 3),
        "collude_flip": (crowd.true + 1) % CLASSES,
        "least_likely": scores.weight_sums.argmin(axis=1),
        "class_prior": (crowd.true + 5) % CLASSES,
        "free_rider": said[0] if last is None else last,
    }[kind]
    return np.tile(agreed, (attackers, 1))


def evenly(labels: np.ndarray) -> np.ndarray:
    """As much expertise as passes the checks: all of it spread over the classes that are told of."""
    return np.full(SIZE, 1 / len(np.unique(labels)))


def one_round(
    seed: int, kind: str, attackers: int, rules: VotingRules = PAPER_VOTING_RULES, naive: bool = False
) -> tuple[np.ndarray, VoteResult]:
    """The true classes, and what comes of a vote. Naive attackers claim everything, and nobody looks."""
    found = crowd(seed, 1)
    said = found.said[0].copy()
    said[:attackers] = lies(kind, attackers, found, 0, None)
    claims = np.take_along_axis(found.mixes, said, axis=1)
    for client in range(attackers):
        claims[client] = 1.0 if naive else evenly(said[client])
    return found.true, aggregate_votes(ballots(said, claims, CLASSES, is_distribution=not naive), rules)


def right(kind: str, attackers: int, rules: VotingRules = PAPER_VOTING_RULES, naive: bool = False) -> float:
    """The share of correct consensus labels in a single round, over all seeds."""
    rounds = [one_round(seed, kind, attackers, rules, naive) for seed in range(SEEDS)]
    return float(np.mean([np.mean(outcome.labels == true) for true, outcome in rounds]))


@cache
def right_in_the_end(seed: int, kind: str, attackers: int) -> float:
    """The share of correct labels after ten rounds with the robust rules, reputation among them."""
    found, memory, last = crowd(seed, ROUNDS), {}, None
    for number in range(ROUNDS):
        said = found.said[number].copy()
        said[:attackers] = lies(kind, attackers, found, number, last) if attackers else said[:0]
        claims = np.take_along_axis(found.mixes, said, axis=1)
        for client in range(attackers):
            claims[client] = evenly(said[client])
        sent = ballots(said, claims, CLASSES, is_distribution=True)
        for ballot in sent[:attackers]:
            wire.validate_payload(ballot.data, ballot.spec)
        outcome = aggregate_votes(sent, ROBUST, client_reputations(memory, CLASSES), previous_labels=last)
        memory, last = update_agreement_ema(memory, outcome.leave_one_out_agreement), outcome.labels
    return float(np.mean(last == found.true))


def test_study_without_attackers_matches_published_accuracy():
    assert right("collude_flip", 0) == pytest.approx(0.735, abs=0.01)
    majority = [one_round(seed, "collude_flip", 0)[1].majority_labels for seed in range(SEEDS)]
    shares = [np.mean(labels == crowd(seed, 1).true) for seed, labels in enumerate(majority)]
    assert np.mean(shares) == pytest.approx(0.98, abs=0.01)


@pytest.mark.parametrize(("attackers", "share"), [(1, 0.354), (2, 0.02)])
def test_naive_attacker_with_maximum_expertise_wins_without_checks(attackers, share):
    """Every claim lies within [0, 1], so cutting to the range changes none of them."""
    assert right("collude_flip", attackers, naive=True) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "constant"])
def test_maximum_expertise_is_rejected_as_inconsistent(kind):
    found = crowd(0, 1)
    for labels in lies(kind, 3, found, 0, None):
        (ballot,) = ballots([labels], [np.ones(SIZE)], CLASSES, is_distribution=True)
        with pytest.raises(wire.InvalidMessageError) as refused:
            wire.validate_payload(ballot.data, ballot.spec)
        assert refused.value.reason is wire.RejectionReason.EXPERTISE_INCONSISTENT


def test_maximum_expertise_for_one_class_is_consistent():
    (ballot,) = ballots([np.full(SIZE, 3)], [np.ones(SIZE)], CLASSES, is_distribution=True)
    assert not wire.validate_payload(ballot.data, ballot.spec)


@pytest.mark.parametrize(("attackers", "share"), [(1, 0.708), (2, 0.681), (3, 0.648)])
def test_adaptive_attackers_reduce_accuracy(attackers, share):
    assert right("collude_flip", attackers) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("attackers", "share"), [(1, 0.743), (2, 0.688), (3, 0.577)])
def test_normalised_votes_against_adaptive_attackers(attackers, share):
    assert right("collude_flip", attackers, VotingRules(normalise=True)) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_robust_rules_withstand_one_and_three_attackers(kind):
    free, one, three = (
        np.mean([right_in_the_end(seed, kind if count else "flip", count) for seed in range(SEEDS)])
        for count in (0, 1, 3)
    )
    assert one >= 0.95 * free
    assert three >= 0.75 * free
