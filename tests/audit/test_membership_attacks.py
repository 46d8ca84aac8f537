"""Scores and metrics of membership attacks, compared with their definitions."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedmosaic_cli.audit.audit_metrics import (
    NUM_BOOTSTRAP,
    bootstrap_aucs,
    bootstrap_counts,
    confidence_interval,
    roc_auc,
    stratified_weights,
    tpr_at_fpr,
)
from fedmosaic_cli.audit.members import match_by_stratum
from fedmosaic_cli.audit.membership_attacks import (
    lira_scores,
    logit_scaled_confidence,
    masked_mean_and_std,
    message_scores,
    shadow_training_masks,
)

# Few different values, so that there are many ties.
COARSE = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(lambda values: np.array(values, dtype=float))
FINE = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30).map(np.array)
SCORES = COARSE | FINE
STRATA = st.lists(st.integers(0, 4), max_size=40).map(lambda values: np.array(values, dtype=np.int64))


def test_auc_of_small_examples():
    assert roc_auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert roc_auc(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 0.0
    assert roc_auc(np.array([1.0, 1.0]), np.array([1.0, 1.0, 1.0])) == 0.5
    # Pairs: 1>0, 1=1, 3>0, 3>1, so three wins and one tie.
    assert roc_auc(np.array([1.0, 3.0]), np.array([0.0, 1.0])) == 3.5 / 4


@given(SCORES, SCORES)
def test_auc_is_the_fraction_of_pairs_won(members, others):
    pairs = [(a > b) + 0.5 * (a == b) for a in members for b in others]
    assert roc_auc(members, others) == pytest.approx(np.mean(pairs))
    truth = [1] * len(members) + [0] * len(others)
    assert roc_auc(members, others) == pytest.approx(roc_auc_score(truth, np.concatenate([members, others])))


@given(SCORES, SCORES)
def test_swapping_members_and_non_members_mirrors_the_auc(members, others):
    assert roc_auc(members, others) == pytest.approx(1 - roc_auc(others, members), abs=1e-12)


def test_true_positive_rate_of_small_examples():
    members, others = np.array([5.0, 3.0, 1.0, 1.0]), np.arange(100) / 50  # 0 to 1.98
    assert tpr_at_fpr(members, others, 0.01) == 0.5
    assert tpr_at_fpr(members, others, 0.0) == 0.5
    assert tpr_at_fpr(members, others, 0.5) == 1.0, "1 is in the upper half"
    assert tpr_at_fpr(members, others, 0.49) == 0.5, "1 ties with the first false positive above the limit"
    assert tpr_at_fpr(np.ones(3), np.ones(100), 0.01) == 0.0, "no threshold separates equal scores"
    assert tpr_at_fpr(np.zeros(3), np.ones(5), 1.0) == 1.0
    assert tpr_at_fpr(np.full(2, 0.5), np.append(np.zeros(99), 1.0), 0.01) == 1.0, "one false positive is allowed"


@given(SCORES, SCORES, st.sampled_from([0.0, 0.001, 0.01, 0.07, 0.1, 0.3, 0.5, 0.9, 1.0]))
def test_true_positive_rate_is_the_maximum_over_thresholds(members, others, rate):
    thresholds = [*members, *others, np.inf]
    allowed = [t for t in thresholds if (others >= t).sum() <= rate * len(others) + 1e-9]
    assert tpr_at_fpr(members, others, rate) == pytest.approx(max((members >= t).mean() for t in allowed))


@given(STRATA, STRATA, st.integers(0, 5))
def test_matched_pairs_have_the_same_stratum(members, others, seed):
    ours, theirs = match_by_stratum(members, others, np.random.default_rng(seed))
    np.testing.assert_array_equal(members[ours], others[theirs])
    assert len(set(ours.tolist())) == len(ours)
    assert len(set(theirs.tolist())) == len(theirs)
    maximum = sum(min((members == stratum).sum(), (others == stratum).sum()) for stratum in range(5))
    assert len(ours) == maximum, "as many pairs as possible"


def test_message_scores_of_small_examples():
    labels, truth, expertise = np.array([1, 2, 1]), np.array([1, 1, 1]), np.array([0.5, 0.25, 1.0])
    np.testing.assert_array_equal(message_scores(labels, expertise, truth), [0.5, -0.25, 1.0])
    np.testing.assert_array_equal(message_scores(labels, None, truth), [1.0, 0.0, 1.0])


def test_confidence_is_the_logit_of_the_true_class():
    logits, labels = np.random.default_rng(0).normal(size=(50, 7)) * 3, np.arange(50) % 7
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = p[np.arange(50), labels]
    np.testing.assert_allclose(logit_scaled_confidence(logits, labels), np.log(own) - np.log1p(-own))


def test_confidence_does_not_saturate():
    """p_y rounds to 1 for all examples; a larger logit still has the larger score."""
    logits = np.zeros((4, 3), dtype=np.float32)
    logits[:, 0] = [50, 100, 1000, np.inf]
    logits[3, 0], logits[3, 1:] = 0.0, -np.inf
    confidences = logit_scaled_confidence(logits, np.zeros(4, dtype=np.int64))
    assert np.isfinite(confidences).all()
    assert (np.diff(confidences) > 0).all()
    np.testing.assert_allclose(confidences[:3], np.array([50, 100, 1000]) - np.log(2))
    assert np.isfinite(logit_scaled_confidence(logits, np.ones(4, dtype=np.int64))).all()


def auc_interval(members, others, seed=0):
    rng = np.random.default_rng(seed)
    counts = bootstrap_counts(len(members), rng), bootstrap_counts(len(others), rng)
    return confidence_interval(bootstrap_aucs(members, others, *counts))


def test_resamples_are_drawn_with_replacement():
    counts = bootstrap_counts(300, np.random.default_rng(0))
    assert counts.shape == (NUM_BOOTSTRAP, 300)
    assert (counts.sum(axis=1) == 300).all()
    assert counts.var() == pytest.approx(1, abs=0.02), "a binomial count has variance 1 - 1/n"


@given(COARSE, COARSE, st.integers(0, 3))
def test_resampled_aucs_equal_those_of_repeated_examples(members, others, seed):
    rng = np.random.default_rng(seed)
    counts = bootstrap_counts(len(members), rng), bootstrap_counts(len(others), rng)
    aucs = bootstrap_aucs(members, others, *counts)
    for number in (0, NUM_BOOTSTRAP - 1):
        repeated = np.repeat(members, counts[0][number]), np.repeat(others, counts[1][number])
        assert aucs[number] == pytest.approx(roc_auc(*repeated))


def test_stratified_weights_keep_the_total_of_each_stratum():
    rng, strata = np.random.default_rng(0), np.repeat([3, 5, 8], [1, 20, 79])
    weights = stratified_weights(bootstrap_counts(100, rng), strata)
    for stratum, count in ((3, 1), (5, 20), (8, 79)):
        np.testing.assert_allclose(weights[:, strata == stratum].sum(axis=1), count)
    plain = bootstrap_counts(100, np.random.default_rng(1))
    np.testing.assert_allclose(stratified_weights(plain, np.zeros(100)), plain)


@pytest.mark.parametrize("effect", [0.0, 0.5])
def test_interval_of_matched_examples_has_its_nominal_coverage(effect):
    """Scores depend far more on the class than on membership: unstratified resamples would always cover."""
    covered, strata = 0, np.arange(300) % 10
    truth = np.mean([0.5 * (1 + erf((effect + 3.0 * (a - b)) / 2)) for a in range(10) for b in range(10)])
    for seed in range(200):
        rng = np.random.default_rng(seed)
        members, others = rng.normal(effect + 3.0 * strata), rng.normal(3.0 * strata)
        weights = (stratified_weights(bootstrap_counts(300, rng), strata) for _ in range(2))
        low, high = confidence_interval(bootstrap_aucs(members, others, *weights))
        covered += low <= truth <= high
    assert 180 <= covered <= 197


def test_chunks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(1)
    members, others = rng.normal(size=40), rng.normal(size=30)
    counts = bootstrap_counts(40, rng), bootstrap_counts(30, rng)
    whole = bootstrap_aucs(members, others, *counts)
    monkeypatch.setattr("fedmosaic_cli.audit.audit_metrics.CHUNK_ELEMENTS", 500)
    np.testing.assert_array_equal(bootstrap_aucs(members, others, *counts), whole)


def test_interval_has_about_its_nominal_coverage():
    """Members are normal around 0.5, others around 0: the true AUC is Phi(0.5 / sqrt 2)."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        low, high = auc_interval(rng.normal(0.5, size=200), rng.normal(size=200), seed)
        covered += low <= 0.638163 <= high
    assert 88 <= covered <= 99


def test_equal_scores_have_an_interval_of_length_zero():
    assert auc_interval(np.ones(200), np.ones(200)) == (0.5, 0.5)
    assert auc_interval(np.ones(200), np.zeros(200)) == (1.0, 1.0)


@pytest.mark.parametrize("models", [4, 5, 16])
def test_shadow_models_train_on_complementary_halves(models):
    masks = shadow_training_masks(101, models, np.random.default_rng(0))
    assert set(masks.sum(axis=1)) <= {50, 51}
    assert (np.abs(masks.sum(axis=0) - models / 2) <= 0.5).all()
    assert not (masks[0] == masks[2]).all()


def test_standard_deviation_of_small_examples():
    values = np.array([[1.0, 10.0], [3.0, 14.0], [99.0, 99.0]])
    means, deviations = masked_mean_and_std(values, np.array([[True, True], [True, True], [False, False]]))
    np.testing.assert_array_equal(means, [2.0, 12.0])
    # Sums of squares 1+1 and 4+4, one degree of freedom each: pooled (2+8)/2.
    np.testing.assert_allclose(deviations, np.sqrt([5.0, 5.0]))


def test_standard_deviation_is_per_example_with_many_models():
    values = np.random.default_rng(0).normal(size=(64, 3)) * [1.0, 5.0, 25.0]
    means, deviations = masked_mean_and_std(values, np.ones((64, 3), dtype=bool))
    np.testing.assert_allclose(means, values.mean(axis=0))
    np.testing.assert_allclose(deviations, values.std(axis=0, ddof=1))


@pytest.mark.parametrize("models", [16, 64])
def test_lira_on_normal_scores(models):
    """Hardness varies much more than membership matters, so only shadow models reveal it."""
    rng, count = np.random.default_rng(0), 1000
    hardness, member = rng.normal(size=2 * count) * 10, np.arange(2 * count) < count
    trained_on = shadow_training_masks(2 * count, models, rng)
    references = hardness + 2.0 * trained_on + rng.normal(size=trained_on.shape)
    target = hardness + 2.0 * member + rng.normal(size=2 * count)
    offline, online = lira_scores(target, references, trained_on)
    best = 0.921350  # Phi(2 / sqrt 2): optimal with known distributions
    assert roc_auc(target[member], target[~member]) < 0.6
    for scores, least in ((offline, 0.88), (online, 0.89)):
        assert least < roc_auc(scores[member], scores[~member]) < best + 0.01


def test_lira_of_a_small_example():
    references, trained_on = np.array([[4.0], [6.0], [0.0], [2.0]]), np.array([[True], [True], [False], [False]])
    offline, online = lira_scores(np.array([3.0]), references, trained_on)
    # In: mean 5, variance 2; out: mean 1, variance 2; 3 is equally far from both.
    np.testing.assert_allclose(offline, [2 / np.sqrt(2)])
    np.testing.assert_allclose(online, [0.0], atol=1e-12)
