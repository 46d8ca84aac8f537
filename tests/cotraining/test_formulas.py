"""The paper's formulas: manual examples and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.cotraining.expertise import EXPERTISE_RULES, entropy_expertise, frequency_expertise
from fedmosaic_cli.cotraining.trust import MIN_TRUST, TRUST_RULES, loss_ratio_trust
from fedmosaic_cli.labels.voting import MIN_VOTE_WEIGHT, VoteResult, VoteTally, aggregate_votes
from fedmosaic_cli.labels.wire import ExpertiseEncoding
from tests.labels.ballots import ballots, levels

losses = st.one_of(st.floats(min_value=0, max_value=100), st.floats(min_value=0, max_value=1e300))


def test_trust_is_one_for_equal_losses():
    assert loss_ratio_trust(0.7, 0.7, epsilon=1e-8) == 1.0


def test_trust_is_small_for_a_large_public_loss():
    assert loss_ratio_trust(0.5, 5.0, epsilon=0.0) == pytest.approx(math.exp(-9))


def test_trust_is_e_without_public_loss():
    assert loss_ratio_trust(0.5, 0.0, epsilon=0.0) == pytest.approx(math.e)
    assert TRUST_RULES["stabilised"](0.5, 0.0) == 1.0


def test_zero_private_loss_ends_paper_trust_but_not_stabilised_trust():
    assert TRUST_RULES["paper"](0.0, 0.4) == MIN_TRUST < 1e-20
    assert TRUST_RULES["stabilised"](0.0, 0.4) == pytest.approx(math.exp(-0.4 / 0.3))


@settings(max_examples=250)
@given(losses, losses, st.floats(min_value=0, max_value=10))
def test_trust_is_positive_and_at_most_e(private, public, epsilon):
    trust = loss_ratio_trust(private, public, epsilon)
    assert 0 < MIN_TRUST <= trust <= math.e
    assert loss_ratio_trust(private, public, epsilon, cap=1.0) == min(trust, 1.0)


@settings(max_examples=250)
@given(losses, losses, losses, st.sampled_from([0.0, 1e-8, 0.3]))
def test_trust_does_not_grow_with_the_public_loss(private, public, more, epsilon):
    assert loss_ratio_trust(private, public + more, epsilon) <= loss_ratio_trust(private, public, epsilon)


@settings(max_examples=250)
@given(losses, st.floats(min_value=0, max_value=10))
def test_trust_is_one_for_any_equal_losses(loss, epsilon):
    assert loss_ratio_trust(loss, loss, epsilon) == 1.0


@settings(max_examples=250)
@given(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans(), st.sampled_from(list(TRUST_RULES)))
def test_trust_is_zero_for_non_finite_losses(loss, broken, first, rule):
    assert TRUST_RULES[rule](*((broken, loss) if first else (loss, broken))) == 0.0


def test_frequency_expertise_is_the_fraction_of_the_predicted_class():
    labels, counts = torch.tensor([0, 1, 2, 1]), torch.tensor([6, 2, 0])
    assert frequency_expertise(labels, counts).tolist() == [0.75, 0.25, 0.0, 0.25]


def test_frequency_expertise_over_all_classes_sums_to_one():
    assert frequency_expertise(torch.arange(4), torch.tensor([3, 1, 4, 1])).sum().item() == pytest.approx(1.0)


def test_entropy_expertise_spans_its_range_and_rewards_certainty():
    uniform, certain = torch.full((1, 4), 0.25).log(), torch.tensor([[0.0, -math.inf, -math.inf, -math.inf]])
    assert entropy_expertise(uniform).item() == pytest.approx(0.0, abs=1e-7)
    assert entropy_expertise(certain).item() == pytest.approx(EXPERTISE_RULES["entropy"].max_value(4, 1))
    surer = torch.tensor([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2], [0.9, 0.05, 0.05]]).log()
    weights = entropy_expertise(surer).tolist()
    # The wrong sign, E = H, would reward doubt.
    assert weights == sorted(weights)


def vote(labels, expertise, num_classes: int, **form) -> VoteResult:
    """What comes of opinions, a row each, sent in single precision unless told otherwise."""
    return aggregate_votes(ballots(labels, expertise, num_classes, **{"code": ExpertiseEncoding.FLOATS, **form}))


def test_expert_outvotes_two_others():
    outcome = vote([[0], [0], [1]], [[0.1], [0.1], [0.5]], 2)
    assert outcome.labels.tolist() == outcome.weighted_labels.tolist() == [1]
    assert outcome.majority_labels.tolist() == [0]
    assert outcome.disagreement_rate == 1.0


def test_scores_are_the_sum_of_expertise_by_class():
    tally = VoteTally(public_size=2, num_classes=3)
    tally.add_votes(np.array([0, 2]), np.array([0.5, 1.0]))
    tally.add_votes(np.array([0, 1]), np.array([0.25, 2.0]))
    assert tally.weight_sums.tolist() == [[0.75, 0, 0], [0, 2.0, 1.0]]


def test_a_tie_goes_to_the_lowest_class():
    assert vote([[2, 1], [1, 2], [0, 0]], np.ones((3, 2)), 3).labels.tolist() == [0, 0]


def test_majority_decides_without_expertise():
    labels, counts = torch.tensor([[2], [2], [1]]), torch.tensor([5, 0, 0])
    expertise = np.stack([frequency_expertise(row, counts) for row in labels])
    assert not expertise.any()
    assert vote(labels.numpy(), expertise, 3).labels.tolist() == [2]


def test_ties_do_not_depend_on_rounding():
    """Levels 245 and 254 for class 0, 249 and 250 for class 1: the same sum on paper, not in float64."""
    high = EXPERTISE_RULES["entropy"].max_value(10, 1)
    labels, weights = np.array([[0], [0], [1], [1]]), levels([245, 254, 249, 250], high)
    kept_alive = weights + MIN_VOTE_WEIGHT
    assert kept_alive[0] + kept_alive[1] < kept_alive[2] + kept_alive[3]
    asked = {"code": ExpertiseEncoding.LEVELS, "max_expertise": high}
    assert vote(labels, weights[:, None], 2, **asked).labels.tolist() == [0]
    assert vote(1 - labels, weights[:, None], 2, **asked).labels.tolist() == [0]


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([2, 4, 8]))
def test_quantisation_changes_only_close_votes(seed, voters, bits):
    rng = np.random.default_rng(seed)
    labels, expertise = rng.integers(0, 3, (voters, 40)), rng.random((voters, 40))
    exact = vote(labels, expertise, 3).labels
    rounded = vote(labels, expertise, 3, code=ExpertiseEncoding.LEVELS, expertise_bits=bits).labels
    scores = ((labels[:, :, None] == np.arange(3)) * expertise[:, :, None]).sum(axis=0)
    second, best = np.sort(scores, axis=1)[:, -2:].T
    assert ((best - second)[exact != rounded] <= voters / (2**bits - 1)).all()


def test_equal_expertise_is_a_majority_vote():
    labels = np.random.default_rng(0).integers(0, 4, (7, 500))
    weights = np.stack(
        [EXPERTISE_RULES["uniform"].score(torch.empty(0), torch.as_tensor(row), torch.empty(0)) for row in labels]
    )
    counted = [np.bincount(column, minlength=4).argmax() for column in labels.T]
    assert vote(labels, weights, 4).labels.tolist() == counted
    assert vote(labels, None, 4).labels.tolist() == counted
