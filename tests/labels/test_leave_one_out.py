"""Votes without one client equal the votes of the other clients."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.labels import leave_one_out, vote_blocks
from fedmosaic_cli.labels.defences import VotingRules
from fedmosaic_cli.labels.leave_one_out import leave_one_out_votes, winners_among_other_classes
from fedmosaic_cli.labels.voting import NOISELESS_RATES, ReportingRates, aggregate_votes, tie_tolerant_argmax
from fedmosaic_cli.labels.wire import ExpertiseEncoding
from tests.labels.ballots import ballots, levels

RULES = {
    "paper": VotingRules(),
    "normalised": VotingRules(normalise=True),
    "majority": VotingRules(vote="majority", cap_share=0.2),
    "trimmed": VotingRules(vote="trimmed", trim=0.2),
    "trimmed and normalised": VotingRules(normalise=True, vote="trimmed", trim=0.4),
    "capped": VotingRules(cap_share=0.2),
    "capped to a half and normalised": VotingRules(normalise=True, cap_share=0.5),
    "capped and trimmed": VotingRules(cap_share=0.3, vote="trimmed", trim=0.3),
    "more trimmed than capped": VotingRules(cap_share=0.5, vote="trimmed", trim=0.4),
    "all steps": VotingRules(normalise=True, cap_share=0.5, vote="trimmed", trim=0.4),
}
RATES = {"exact": NOISELESS_RATES, "noisy": ReportingRates(0.7, 0.1)}


@st.composite
def uploads(draw):
    """Ballots with labels or bits; with levels, a value per class or no expertise. Ties are frequent.

    The largest expertise is 1, log C as with entropies, or as large as with `count-confidence`.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    clients, examples, classes = draw(st.integers(2, 12)), draw(st.integers(1, 20)), draw(st.integers(2, 4))
    kind = draw(st.sampled_from(["levels", "histogram", "none"]))
    top = draw(st.sampled_from([0, 1, 2, 255]))
    labels = rng.integers(0, classes, (clients, examples))
    if draw(st.booleans()):
        labels = rng.integers(0, 2, (clients, examples, classes)).astype(np.uint8)
    if kind == "none":
        return ballots(labels, None, classes)
    if kind == "levels":
        max_expertise = draw(st.sampled_from([1.0, math.log(classes), 500 * math.log(10), 1e7]))
        sent_levels = rng.integers(0, top, (clients, examples), endpoint=True)
        return ballots(labels, levels(sent_levels, max_expertise), classes, max_expertise=max_expertise)
    shares = rng.integers(0, top, (clients, classes), endpoint=True) + 1e-9
    shares = shares / shares.sum(axis=1, keepdims=True)
    return ballots(labels, shares, classes, code=ExpertiseEncoding.HISTOGRAM)


def votes_of_others(sent, rules, rates):
    return {
        ballot.client_id: aggregate_votes([other for other in sent if other is not ballot], rules, rates=rates).labels
        for ballot in sent
    }


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60)
@given(sent=uploads(), block_votes=st.sampled_from([1, 2**20]))
def test_votes_without_a_client_equal_the_votes_of_the_others(rule, rates, sent, block_votes):
    with mock.patch.object(vote_blocks, "BLOCK_VOTES", block_votes):
        found = leave_one_out_votes(sent, RULES[rule], RATES[rates])
    expected = votes_of_others(sent, RULES[rule], RATES[rates])
    assert {client: labels.tolist() for client, labels in found.items()} == {
        client: labels.tolist() for client, labels in expected.items()
    }


def test_weights_without_expertise_count_beside_an_expert():
    """Without its only expert, class 0 ties with class 1: both have two votes of weight 1e-6."""
    labels = np.repeat([[0], [0], [1], [0], [1]], 50, axis=1)
    claimed = np.zeros(labels.shape)
    claimed[0] = np.linspace(1 / 255, 1, 50)
    sent = ballots(labels, claimed, 2)
    found = leave_one_out_votes(sent, VotingRules())
    assert found[0].tolist() == [0] * 50
    assert found[1].tolist() == [0] * 50
    rng = np.random.default_rng(0)
    labels, claimed = rng.integers(0, 3, (100, 200)), np.zeros((100, 200))
    claimed[rng.integers(0, 100, 200), np.arange(200)] = 1.0
    sent = ballots(labels, claimed, 3)
    found, expected = leave_one_out_votes(sent, VotingRules()), votes_of_others(sent, VotingRules(), NOISELESS_RATES)
    assert all(np.array_equal(found[client], expected[client]) for client in expected)


@pytest.mark.parametrize("rule", ["trimmed", "trimmed and normalised", "more trimmed than capped", "all steps"])
@pytest.mark.parametrize("max_expertise", [1.0, 1e3, 1e9])
@pytest.mark.parametrize("share_with_expertise", [0.01, 0.5])
def test_trimmed_votes_of_many_clients_are_not_counted_per_client(rule, max_expertise, share_with_expertise):
    """If few votes have expertise, caps reduce some of them; trimming drops these."""
    rng, shape = np.random.default_rng(0), (60, 40)
    claimed = levels(rng.integers(0, 256, shape) * (rng.random(shape) < share_with_expertise), max_expertise)
    sent = ballots(rng.integers(0, 2, shape), claimed, 2, max_expertise=max_expertise)
    with mock.patch.object(leave_one_out, "aggregate_votes", side_effect=AssertionError("one vote per client")):
        found = leave_one_out_votes(sent, RULES[rule])
    expected = votes_of_others(sent, RULES[rule], NOISELESS_RATES)
    assert len({labels.tobytes() for labels in expected.values()}) > 1
    assert all(np.array_equal(found[client], expected[client]) for client in expected)


def test_examples_without_remaining_votes_of_others_have_no_label():
    """Of three votes for class 1, the other clients keep one, and those who voted for it keep none."""
    sent = ballots([[0], [1], [2], [1], [3], [4], [5], [1]], None, 6)
    found = leave_one_out_votes(sent, VotingRules(vote="trimmed", trim=0.3))
    assert [found[client].tolist() for client in range(8)] == [[1], [-1], [1], [-1], [1], [1], [1], [-1]]


@settings(max_examples=250)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 1 - 6e-10, 1 - 1.2e-9, 0.5]), min_size=4, max_size=4), min_size=1))
def test_winners_among_other_classes_equal_those_without_the_class(rows):
    """Ties within the tolerance are not transitive."""
    scores = np.array(rows)
    for label in range(4):
        others = scores.copy()
        others[:, label] = 0.0
        winners = np.where(others.any(axis=1), tie_tolerant_argmax(others), -1)
        assert winners_among_other_classes(scores)[:, label].tolist() == winners.tolist()


@pytest.mark.parametrize("rule", ["paper", "trimmed", "capped and trimmed", "more trimmed than capped"])
def test_a_vote_counts_beside_one_that_is_a_thousand_million_times_as_heavy(rule):
    labels, max_expertise = [[0], [0], [1], [1]], 500 * math.log(10)
    sent = ballots(labels, levels([[255], [0], [0], [0]], max_expertise), 2, max_expertise=max_expertise)
    found, expected = leave_one_out_votes(sent, RULES[rule]), votes_of_others(sent, RULES[rule], NOISELESS_RATES)
    assert [found[client].tolist() for client in range(4)] == [expected[client].tolist() for client in range(4)]


def test_a_client_alone_has_no_labels_from_others():
    assert leave_one_out_votes(ballots([[0, 1]], None, 2), VotingRules())[0].tolist() == [-1, -1]


@pytest.mark.parametrize(("classes", "size"), [(10, 1), (128, 1), (129, 2), (1000, 2)])
def test_labels_have_the_smallest_type(classes, size):
    found = leave_one_out_votes(ballots([[classes - 1], [classes - 1]], None, classes), VotingRules())
    assert found[0].itemsize == size
    assert found[0].tolist() == [classes - 1]
