"""Noise on labels and scores: as often and as much as the formulas say, and none where none is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.labels.privacy.mechanisms import (
    add_clipped_gaussian_noise,
    flip_one_hot_bits,
    flip_probability,
    keep_probability,
    noisy_histogram,
    other_label_probability,
    randomized_response,
)

DRAWS = 1_000_000
budgets = st.floats(1e-30, 1e30)


def rng():
    return np.random.default_rng(7)


def within_four_errors(share, chance):
    return abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / DRAWS)


@pytest.mark.parametrize(
    ("epsilon", "bits", "chance"), [(1, 2, 0.377541), (1, 20, 0.487503), (10, 6000, 0.499583), (math.inf, 2, 0.0)]
)
def test_flip_probability(epsilon, bits, chance):
    assert flip_probability(epsilon, bits) == pytest.approx(chance, abs=5e-7)


@pytest.mark.parametrize(("epsilon", "chance"), [(0.5, 0.154828), (1, 0.231969), (2, 0.450853), (4, 0.858486)])
def test_keep_probability(epsilon, chance):
    assert keep_probability(epsilon, 10) == pytest.approx(chance, abs=5e-7)


@given(budgets, st.integers(1, 10**8))
def test_flip_probability_is_below_one_half(epsilon, bits):
    """The sign error flips the more, the larger the budget; then every message says the opposite."""
    assert 0 <= flip_probability(epsilon, bits) < 0.5
    assert flip_probability(2 * epsilon, bits) <= flip_probability(epsilon, bits)


@given(st.floats(0.01, 30), st.integers(2, 1000))
def test_flips_spend_exactly_the_budget(epsilon, classes):
    """With the root of the number of classes in it, as in the bound for dependent bits, labels drown for nothing."""
    flips = flip_probability(epsilon, 2)
    assert 2 * math.log((1 - flips) / flips) == pytest.approx(epsilon)
    timid = flip_probability(epsilon / math.sqrt(classes), 2)
    assert 2 * math.log((1 - timid) / timid) < epsilon


@given(budgets, st.integers(2, 65536))
def test_label_probabilities_sum_to_one(epsilon, classes):
    keep, other = keep_probability(epsilon, classes), other_label_probability(epsilon, classes)
    assert keep + (classes - 1) * other == pytest.approx(1)
    assert keep >= other


def test_mechanisms_without_noise_draw_and_change_nothing():
    labels, scores = np.array([2, 0, 1, 1]), np.array([0.1, 1.0 + 1e-6, 0.3])
    untouched = rng()
    assert keep_probability(math.inf, 10) == 1.0
    assert other_label_probability(math.inf, 10) == 0.0
    assert np.array_equal(randomized_response(labels, math.inf, 3, untouched), labels)
    assert np.array_equal(flip_one_hot_bits(labels, math.inf, 3, untouched), np.eye(3, dtype=np.uint8)[labels])
    assert np.array_equal(add_clipped_gaussian_noise(scores, 0.0, 1.0, untouched), scores)
    assert np.array_equal(noisy_histogram(np.array([1, 2, 0]), 0.0, untouched), np.array([1, 2, 0]) / 3)
    assert untouched.bit_generator.state == rng().bit_generator.state


def test_noise_hides_values_that_are_not_finite():
    values, replaced = np.array([math.nan, math.inf, -math.inf, 0.5]), np.array([0.0, 1.0, 0.0, 0.5])
    noisy = add_clipped_gaussian_noise(values, 0.3, 1.0, rng())
    assert np.array_equal(noisy, add_clipped_gaussian_noise(replaced, 0.3, 1.0, rng()))


def test_mechanisms_return_copies():
    labels, scores = np.array([2, 0]), np.array([0.1, 0.2])
    assert randomized_response(labels, math.inf, 3, rng()) is not labels
    assert add_clipped_gaussian_noise(scores, 0.0, 1.0, rng()) is not scores


def test_randomized_response_has_the_stated_probabilities():
    told = randomized_response(np.full(DRAWS, 3), 1.0, 5, rng())
    shares = np.bincount(told, minlength=5) / DRAWS
    assert told.dtype == np.int64
    assert within_four_errors(shares[3], keep_probability(1.0, 5))
    assert all(within_four_errors(shares[k], other_label_probability(1.0, 5)) for k in (0, 1, 2, 4))


def test_bits_are_flipped_with_equal_probability():
    bits = flip_one_hot_bits(np.full(DRAWS, 1), 1.0, 3, rng())
    chance = flip_probability(1.0, 2)
    assert bits.dtype == np.uint8
    assert bits.shape == (DRAWS, 3)
    assert within_four_errors(1 - bits[:, 1].mean(), chance)
    assert within_four_errors(bits[:, 0].mean(), chance)
    # Each on its own: a row may hold no one, or several.
    assert within_four_errors((bits.sum(axis=1) == 0).mean(), chance * (1 - chance) ** 2)


def test_score_noise_has_the_configured_variance():
    far_from_the_ends = np.full(DRAWS, 500.0)
    noise = add_clipped_gaussian_noise(far_from_the_ends, 3.0, 1000.0, rng()) - far_from_the_ends
    assert noise.var() == pytest.approx(9.0, rel=0.01)
    assert abs(noise.mean()) < 4 * 3 / math.sqrt(DRAWS)


def test_histogram_noise_has_the_configured_variance():
    counts = np.full(DRAWS, 1)
    assert noisy_histogram(counts, 1e-8, rng()).var() == pytest.approx(1e-16, rel=0.01)
    shares = noisy_histogram(counts, 1.0, rng())
    # Half of the noise is below 0 and cut; what is above 1 is cut as well; then the sum is 1.
    assert shares.sum() == pytest.approx(1)
    assert (shares == 0).mean() == pytest.approx(0.5, abs=0.002)


def test_scores_are_clipped_before_and_after_noise():
    noisy = add_clipped_gaussian_noise(np.array([-1e30, 1e30, 0.5] * 1000), 0.1, 1.0, rng())
    assert noisy.min() >= 0
    assert noisy.max() <= 1
    assert 0 < noisy[0::3].max() < 1  # not hidden behind the value that was out of range
    assert 0 < noisy[1::3].min() < 1


def test_an_empty_histogram():
    assert np.array_equal(noisy_histogram(np.zeros(4), 0.0, rng()), np.zeros(4))
    drowned = noisy_histogram(np.zeros(4), 1e-300, np.random.default_rng(0))
    assert np.isfinite(drowned).all()

    class Downwards:
        def normal(self, mean, sigma, shape):
            return np.full(shape, -2.0)

    assert np.array_equal(noisy_histogram(np.array([1, 3]), 1.0, Downwards()), np.zeros(2))


def test_first_bit_of_noisy_rows_is_biased():
    """Whoever takes the first one of a row favours low classes."""
    bits = flip_one_hot_bits(np.full(DRAWS, 2), 0.5, 4, rng())
    chance = flip_probability(0.5, 2)
    scores = (bits.mean(axis=0) - chance) / (1 - 2 * chance)
    assert np.allclose(scores, [0, 0, 1, 0], atol=0.03)
    assert np.bincount(bits.argmax(axis=1), minlength=4).argmax() == 0
