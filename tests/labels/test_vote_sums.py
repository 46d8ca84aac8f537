"""Sums of votes without the heaviest votes and without those of a client, and the blocks they are computed from."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.labels import vote_blocks, wire
from fedmosaic_cli.labels.defences import PAPER_VOTING_RULES, VotingRules, vote_matrix
from fedmosaic_cli.labels.vote_sums import VoteSums, trimmed_vote_sums
from fedmosaic_cli.labels.voting import MIN_VOTE_WEIGHT, weighted_ballots
from fedmosaic_cli.labels.wire import ExpertiseEncoding
from tests.labels.ballots import ballots, levels

FORMATS = {
    "levels": {},
    "levels of 3 bits": {"expertise_bits": 3},
    "levels of 12 bits": {"expertise_bits": 12},
    "single precision": {"code": ExpertiseEncoding.FLOATS},
    "a value per class": {"code": ExpertiseEncoding.HISTOGRAM},
    "no expertise": {},
}


def kept_sums(sent, num_trimmed):
    return trimmed_vote_sums(sent, PAPER_VOTING_RULES, {}, num_trimmed).total.tolist()


def sent_in(form: str, num_classes: int, shape: tuple[int, int], in_bits: bool):
    """Return random ballots with labels and expertise in this format; a client may claim none."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, shape)
    if in_bits:
        labels = rng.integers(0, 2, (*shape, num_classes)).astype(np.uint8)
        labels[0] = 0
    per_row = num_classes if form == "a value per class" else shape[1]
    claimed = (
        None if form == "no expertise" else rng.random((shape[0], per_row)) * rng.integers(0, 4, (shape[0], 1)) / 3
    )
    return ballots(labels, claimed, num_classes, **FORMATS[form])


def test_trimming_drops_the_heaviest_votes_of_each_class():
    claimed = np.array([[0.9], [0.3], [0.5], [0.6], [0.1]]) - MIN_VOTE_WEIGHT
    sent = ballots([[0], [0], [0], [1], [2]], claimed, 3, code=ExpertiseEncoding.FLOATS)
    assert kept_sums(sent, 0) == pytest.approx([1.7, 0.6, 0.1])
    assert kept_sums(sent, 1) == pytest.approx([0.8, 0.0, 0.0])
    assert kept_sums(sent, 2) == pytest.approx([0.3, 0.0, 0.0])
    assert kept_sums(sent, 5) == [0.0, 0.0, 0.0]


def test_trimming_keeps_small_votes_beside_heavy_ones():
    sent = ballots([[0]] * 3, levels([[0], [255], [0]], 1e6), 2, max_expertise=1e6)
    assert kept_sums(sent, 1) == [2e-6, 0.0]


def test_trimming_bits():
    bits = [np.array([row], dtype=np.uint8) for row in ([1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1])]
    claimed = np.array([[0.5], [0.2], [0.1], [0.4], [0.3]]) - MIN_VOTE_WEIGHT
    assert kept_sums(ballots(bits, claimed, 3, code=ExpertiseEncoding.FLOATS), 1) == pytest.approx([0.3, 0.0, 0.3])


@pytest.mark.parametrize("block_votes", [1, 100, 2**20])
@pytest.mark.parametrize("in_bits", [False, True])
@pytest.mark.parametrize("num_classes", [2, 5, 10, 300])
@pytest.mark.parametrize("form", FORMATS)
def test_blocks_have_the_votes_of_the_ballots(form, num_classes, in_bits, block_votes):
    """With 37 examples, the last block ends within a byte."""
    sent, reputation = sent_in(form, num_classes, (4, 37), in_bits), {1: 0.5, 2: 0.0}
    for rules in (PAPER_VOTING_RULES, VotingRules(normalise=True), VotingRules(normalise=True, cap_share=0.3)):
        with mock.patch.object(vote_blocks, "BLOCK_VOTES", block_votes):
            blocks = list(vote_blocks.vote_blocks(sent, rules, reputation))
        assert [first for first, _, _ in blocks] == list(range(0, 37, len(blocks[0][1])))
        labels, votes = (np.concatenate([block[part] for block in blocks]) for part in (1, 2))
        for client, (_, own_labels, own_weights) in enumerate(weighted_ballots(sent, rules, reputation)):
            assert labels[:, client].tolist() == own_labels.tolist()
            found = votes[:, client]
            if not in_bits:
                found = vote_matrix(own_labels, np.ascontiguousarray(found), num_classes)
            expected = vote_matrix(own_labels, own_weights, num_classes)
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("in_bits", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_a_block_has_at_most_one_weight_per_vote(form, in_bits):
    """A value per class is not repeated for each label."""
    labels, weights = vote_blocks.joined_votes(sent_in(form, 10, (4, 37), in_bits), 8, 16)
    assert labels.shape == ((64, 10) if in_bits else (64,))
    assert weights.size <= labels.size


def test_masked_labels_are_not_joined():
    sent = [
        replace(ballot, spec=replace(ballot.spec, label_encoding=wire.LabelEncoding.MASKED))
        for ballot in ballots([[0, 1]], None, 2)
    ]
    with pytest.raises(ValueError, match="masked labels"):
        vote_blocks.joined_votes(sent, 0, 2)


def test_labels_out_of_range_in_a_block_are_refused():
    sent = ballots([[0], [7]], None, 8)
    of_five_classes = [replace(ballot, spec=replace(ballot.spec, num_classes=5)) for ballot in sent]
    with pytest.raises(wire.InvalidMessageError, match="label_range"):
        list(vote_blocks.vote_blocks(of_five_classes, PAPER_VOTING_RULES, {}))


@st.composite
def unequal_votes(draw):
    """Labels and levels of one example; the levels differ by factors of up to 2^30, with ties."""
    size = draw(st.integers(2, 12))
    labels = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    exponents = draw(st.lists(st.sampled_from([0, 1, 2, 15, 29, 30]), min_size=size, max_size=size))
    return labels, [2.0**exponent for exponent in exponents], draw(st.integers(0, size - 1))


@settings(max_examples=500)
@given(unequal_votes())
def test_sums_without_a_client_are_exact_beside_heavy_votes(case):
    labels, claimed, num_trimmed = case
    sent = ballots(
        np.array(labels)[:, None], np.array(claimed)[:, None], 3, code=ExpertiseEncoding.FLOATS, max_expertise=2.0**30
    )
    sums = trimmed_vote_sums(sent, PAPER_VOTING_RULES, {}, num_trimmed)
    untrimmed = VoteSums((1, 3))
    for ballot in sent:
        untrimmed.add(vote_matrix(ballot.labels(), ballot.weights(), 3))
    for left_out, ballot in enumerate(sent):
        own = vote_matrix(ballot.labels(), ballot.weights(), 3)
        for found, dropped in ((sums.without(own), num_trimmed), (untrimmed.without(own), 0)):
            for label in range(3):
                others = [client for client in range(len(sent)) if client != left_out and labels[client] == label]
                weights = sorted(Fraction(float(sent[client].weights()[0])) for client in others)
                exact = sum(weights[: max(0, len(weights) - dropped)], Fraction(0))
                assert found[0, label] == pytest.approx(float(exact), rel=1e-13, abs=0)
