"""The paper's formulas on examples worked out by hand, and on what must hold for all inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.cotraining import codecs
from fedmosaic_cli.cotraining.consensus import majority_vote, vote_scores, weighted_vote
from fedmosaic_cli.cotraining.expertise import (
    FLOOR,
    entropy_expertise,
    expertise_range,
    frequency_expertise,
    uniform_expertise,
)
from fedmosaic_cli.cotraining.trust import TRUST_RULES, loss_ratio_trust
from fedmosaic_cli.engine.messages import Scores

losses = st.floats(min_value=0, max_value=100)


def test_equal_losses_mean_full_trust():
    assert loss_ratio_trust(0.7, 0.7, epsilon=1e-8) == 1.0


def test_a_public_loss_ten_times_the_private_one_leaves_almost_none():
    assert loss_ratio_trust(0.5, 5.0, epsilon=0.0) == pytest.approx(math.exp(-9))


def test_no_public_loss_means_trust_of_e():
    assert loss_ratio_trust(0.5, 0.0, epsilon=0.0) == pytest.approx(math.e)
    assert TRUST_RULES["stabilised"](0.5, 0.0) == 1.0


def test_a_memorised_private_set_ends_trust_under_the_paper_but_not_when_stabilised():
    assert TRUST_RULES["paper"](0.0, 0.4) == 0.0
    assert TRUST_RULES["stabilised"](0.0, 0.4) == pytest.approx(math.exp(-0.4 / 0.3))


@given(losses, losses, st.floats(min_value=0, max_value=10))
def test_trust_is_finite_and_below_e(private, public, epsilon):
    trust = loss_ratio_trust(private, public, epsilon)
    assert 0 <= trust <= math.e
    assert loss_ratio_trust(private, public, epsilon, cap=1.0) <= 1.0


@given(losses, losses, losses)
def test_trust_falls_with_the_public_loss(private, public, more):
    assert loss_ratio_trust(private, public + more, 0.3) <= loss_ratio_trust(private, public, 0.3)


def test_frequency_expertise_is_the_share_of_the_predicted_class():
    labels, counts = torch.tensor([0, 1, 2, 1]), torch.tensor([6, 2, 0])
    expected = [0.75 + FLOOR, 0.25 + FLOOR, FLOOR, 0.25 + FLOOR]
    assert frequency_expertise(labels, counts).tolist() == pytest.approx(expected, abs=1e-15)


def test_frequency_expertise_over_all_classes_sums_to_one():
    counts = torch.tensor([3, 1, 4, 1])
    total = frequency_expertise(torch.arange(4), counts).sum() - 4 * FLOOR
    assert total.item() == pytest.approx(1.0)


def test_entropy_expertise_spans_its_range_and_rewards_certainty():
    uniform, certain = torch.full((1, 4), 0.25).log(), torch.tensor([[0.0, -math.inf, -math.inf, -math.inf]])
    low, high = expertise_range("entropy", 4)
    assert entropy_expertise(uniform).item() == pytest.approx(low, abs=1e-7)
    assert entropy_expertise(certain).item() == pytest.approx(high)
    surer = torch.tensor([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2], [0.9, 0.05, 0.05]]).log()
    weights = entropy_expertise(surer).tolist()
    # The wrong sign, E = H, would reward doubt.
    assert weights == sorted(weights)


def test_an_expert_outvotes_two_who_do_not_know():
    labels = torch.tensor([[0], [0], [1]])
    expertise = torch.tensor([[0.1], [0.1], [0.5]])
    assert weighted_vote(labels, expertise, 2).tolist() == [1]
    assert majority_vote(labels, 2).tolist() == [0]


def test_scores_are_the_sum_of_expertise_by_class():
    labels, expertise = torch.tensor([[0, 2], [0, 1]]), torch.tensor([[0.5, 1.0], [0.25, 2.0]])
    assert vote_scores(labels, expertise, 3).tolist() == [[0.75, 0, 0], [0, 2.0, 1.0]]


def test_a_tie_goes_to_the_lowest_class():
    labels = torch.tensor([[2, 1], [1, 2], [0, 0]])
    assert weighted_vote(labels, torch.ones(3, 2), 3).tolist() == [0, 0]


def test_where_nobody_is_an_expert_the_majority_decides():
    labels = torch.tensor([[2], [2], [1]])
    counts = torch.tensor([5, 0, 0])
    expertise = torch.stack([frequency_expertise(row, counts) for row in labels])
    assert weighted_vote(labels, expertise, 3).tolist() == [2]


def test_a_tie_is_a_tie_however_its_sums_are_rounded():
    """Levels 6 and 141 for class 0, 69 and 78 for class 1: the same sum on paper, not in float64."""
    low, high = expertise_range("entropy", 10)
    weights = torch.tensor(codecs.dequantise(np.array([6, 141, 69, 78]), low, high, bits=8))[:, None]
    labels = torch.tensor([[0], [0], [1], [1]])
    assert weighted_vote(labels, weights, 2).tolist() == [0]
    assert weighted_vote(1 - labels, weights, 2).tolist() == [0]


@st.composite
def votes(draw):
    clients, examples, classes = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(2, 5))
    cells = clients * examples
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=cells, max_size=cells))
    # Weights as they come off the wire, which do not add up exactly: ties must be found all the same.
    levels = draw(st.lists(st.integers(0, 255), min_size=cells, max_size=cells))
    low, high = expertise_range("entropy", classes)
    weights = torch.tensor(codecs.dequantise(np.array(levels), low, high, bits=8))
    shape = (clients, examples)
    return torch.tensor(labels).reshape(shape), weights.reshape(shape), classes


@given(votes(), st.randoms(use_true_random=False))
def test_the_order_of_voters_does_not_matter(case, random):
    labels, weights, classes = case
    order = list(range(len(labels)))
    random.shuffle(order)
    assert torch.equal(weighted_vote(labels[order], weights[order], classes), weighted_vote(labels, weights, classes))


@given(votes(), st.sampled_from([0.25, 0.5, 2.0, 64.0]))
def test_a_common_factor_does_not_matter(case, factor):
    labels, weights, classes = case
    assert torch.equal(weighted_vote(labels, weights * factor, classes), weighted_vote(labels, weights, classes))


@given(votes())
def test_a_voter_without_weight_can_be_left_out(case):
    labels, weights, classes = case
    silent = torch.cat([weights, torch.zeros(1, weights.shape[1], dtype=weights.dtype)])
    assert torch.equal(
        weighted_vote(torch.cat([labels, labels[:1]]), silent, classes), weighted_vote(labels, weights, classes)
    )


@given(votes())
def test_the_winner_has_the_highest_score_and_somebody_voted_for_it(case):
    labels, weights, classes = case
    scores, winners = vote_scores(labels, weights, classes), weighted_vote(labels, weights, classes)
    assert torch.allclose(scores.gather(1, winners[:, None])[:, 0], scores.max(dim=1).values, rtol=1e-9, atol=0)
    assert all(winner in labels[:, example] for example, winner in enumerate(winners))


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([2, 4, 8]))
def test_rounding_expertise_changes_a_label_only_where_the_vote_was_close(seed, voters, bits):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (voters, 40), generator=generator)
    expertise = torch.rand(voters, 40, generator=generator, dtype=torch.float64)
    arrived = Scores(expertise.flatten(), 0.0, 1.0, bits).travel(torch.device("cpu"))[0].reshape(expertise.shape)
    exact, rounded = weighted_vote(labels, expertise, 3), weighted_vote(labels, arrived, 3)
    scores = torch.zeros(40, 3, dtype=torch.float64).scatter_add_(1, labels.T, expertise.T)
    best, second = scores.sort(dim=1, descending=True).values[:, :2].T
    changed = exact != rounded
    assert (best - second)[changed].le(voters / (2**bits - 1)).all()


@given(votes())
def test_equal_votes_are_a_majority_vote(case):
    labels, _, classes = case
    weights = torch.stack([uniform_expertise(row) for row in labels])
    counted = [torch.bincount(column, minlength=classes).argmax().item() for column in labels.T]
    assert weighted_vote(labels, weights, classes).tolist() == counted
