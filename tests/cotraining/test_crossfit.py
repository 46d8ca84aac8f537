"""Cross-fitting, agreement trust and count expertise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.cotraining.crossfit import brier_scores, gate_decision, stratified_folds
from fedmosaic_cli.cotraining.expertise import EXPERTISE_RULES, entropy_expertise
from fedmosaic_cli.cotraining.trust import agreement_trust, weighted_agreement

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(LABELS, st.integers(2, 5), st.integers(0, 1000))
def test_folds_are_stratified(labels, folds, seed):
    labels = torch.tensor(labels)
    dealt = stratified_folds(labels, folds, np.random.default_rng(seed))
    for kind in labels.unique():
        sizes = dealt[labels == kind].bincount(minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    sizes = dealt.bincount(minlength=folds)
    assert sizes.max() - sizes.min() <= 1


def test_folds_are_random_and_reproducible():
    labels = torch.zeros(30, dtype=torch.int64)
    one, two = (stratified_folds(labels, 3, np.random.default_rng(seed)) for seed in (0, 1))
    assert not torch.equal(one, two)
    assert torch.equal(one, stratified_folds(labels, 3, np.random.default_rng(0)))


def test_brier_score_is_between_zero_and_two():
    logits = torch.tensor([[1000.0, 0.0], [1000.0, 0.0], [0.0, 0.0]])
    assert brier_scores(logits, torch.tensor([0, 1, 0])).tolist() == pytest.approx([0.0, 2.0, 0.5])


def test_gate_decision_equals_a_manual_computation():
    """Gains .1, .2, .3: the squares around .2 are .02, and .25 more of them."""
    found = gate_decision(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), 1.0, 0.25)
    assert found.gain == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(math.sqrt(0.27 / 6))
    assert not found.is_accepted
    assert gate_decision(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), 1.0, 0.0).is_accepted
    assert not gate_decision(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), 4.0, 0.0).is_accepted


@pytest.mark.parametrize(("count", "needed"), [(10, 0.0527), (100, 0.00503)])
def test_fewer_examples_need_a_larger_gain(count, needed):
    """What the prior variance asks of gains that all agree."""
    assert not gate_decision(torch.full((count,), 0.98 * needed, dtype=torch.float64), 1.0, 0.25).is_accepted
    assert gate_decision(torch.full((count,), 1.02 * needed, dtype=torch.float64), 1.0, 0.25).is_accepted


def test_single_example_is_never_accepted():
    assert not gate_decision(torch.tensor([2.0]), 1.0, 0.25).is_accepted


def test_agreement_is_weighted():
    labels, consensus = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 0, 1])
    assert weighted_agreement(labels, consensus, torch.tensor([3.0, 1.0, 0.5, 0.5])) == pytest.approx(0.8)
    assert weighted_agreement(labels, consensus, torch.zeros(4)) == 0.0


def test_agreement_trust_equals_a_manual_computation():
    assert agreement_trust(1.0, 10, 2.0, 0.01) == 1.0
    assert agreement_trust(0.55, 10, 2.0, 0.01) == pytest.approx(0.25)
    assert agreement_trust(0.55, 10, 1.0, 0.01) == pytest.approx(0.5)
    assert agreement_trust(0.1, 10, 2.0, 0.01) == 0.0
    assert agreement_trust(0.0, 10, 2.0, 0.0) == 0.0
    assert agreement_trust(0.18, 10, 2.0, 0.01) == 0.0, "0.0079 is below the least"
    assert agreement_trust(1.0, 1, 2.0, 0.01) == 0.0


@given(st.floats(0, 1), st.integers(2, 100), st.floats(0.5, 4))
def test_agreement_trust_is_between_zero_and_one(agreement, classes, power):
    assert 0.0 <= agreement_trust(agreement, classes, power, 0.01) <= 1.0


def test_count_expertise_is_the_class_count():
    """The frequency of a class is 1 for a client that has seen nothing else, were it three examples."""
    labels = torch.tensor([0, 1, 1])
    few, many = torch.tensor([0, 3]), torch.tensor([50, 40])
    assert EXPERTISE_RULES["count"].score(torch.zeros(3, 2), labels, few).tolist() == [0.0, 3.0, 3.0]
    assert EXPERTISE_RULES["count"].score(torch.zeros(3, 2), labels, many).tolist() == [50.0, 40.0, 40.0]
    assert (EXPERTISE_RULES["frequency"].score(torch.zeros(3, 2), labels, few)[1:] == 1.0).all()


def test_count_confidence_is_the_product():
    log_probs = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    labels, counts = torch.tensor([0, 0]), torch.tensor([20, 5])
    expected = 20 * entropy_expertise(log_probs)
    assert torch.equal(EXPERTISE_RULES["count-confidence"].score(log_probs, labels, counts), expected)
    assert expected[1].item() == pytest.approx(0.0, abs=1e-6)


@given(st.lists(st.integers(0, 500), min_size=2, max_size=6).filter(any), st.data())
@pytest.mark.parametrize("kind", EXPERTISE_RULES)
def test_expertise_is_at_most_its_max_value(kind, counts, data):
    classes = len(counts)
    logits = data.draw(st.lists(st.floats(-50, 50), min_size=classes, max_size=classes))
    log_probs = torch.tensor([logits], dtype=torch.float64).log_softmax(dim=1)
    found = EXPERTISE_RULES[kind].score(log_probs, log_probs.argmax(dim=1), torch.tensor(counts))
    assert 0 <= found.item() <= EXPERTISE_RULES[kind].max_value(classes, sum(counts)) + 1e-9
