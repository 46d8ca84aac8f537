"""The epsilon of everything together: exact where it can be, a bound where not, and never less than it was."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from fedmosaic_cli.labels.privacy import composition
from fedmosaic_cli.labels.privacy.accounting import (
    Release,
    classic_gaussian_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_rho,
    guarantee_rating,
    pure_dp_rho,
    total_epsilon,
    zcdp_epsilon,
    zcdp_epsilon_bound,
    zcdp_total_epsilon,
)
from fedmosaic_cli.labels.privacy.composition import composed_epsilon

DELTA = 1e-5
positive = st.floats(1e-6, 1e4)
deltas = st.floats(1e-12, 0.1)
labels = st.builds(lambda epsilon, count: Release(1, "krr", count, epsilon=epsilon), positive, st.integers(1, 10**6))
gaussians = st.builds(lambda mu: Release(1, "gaussian", 1, mu=mu), positive)


def both(rounds, multiplier, label_epsilon):
    """A label and a value with Gaussian noise in each round."""
    return [
        release
        for number in range(1, rounds + 1)
        for release in (
            Release(number, "krr", 1, epsilon=label_epsilon),
            Release(number, "gaussian", 1, mu=1 / multiplier),
        )
    ]


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.1, 0.340669), (0.5, 1.993091), (1, 4.377178), (2, 9.997256), (5, 33.103732)]
)
def test_exact_curve(mu, epsilon):
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=5e-7)
    assert gaussian_delta(gaussian_epsilon(mu, DELTA), mu) == pytest.approx(DELTA, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "multiplier"), [(0.5, 7.031827), (1, 3.730632), (2, 1.993812), (4, 1.081162), (8, 0.600229)]
)
def test_noise_multiplier_for_an_epsilon(epsilon, multiplier):
    found = brentq(lambda z: gaussian_epsilon(1 / z, DELTA) - epsilon, 0.1, 20, xtol=1e-12)
    assert found == pytest.approx(multiplier, abs=5e-7)


def test_ends_of_the_exact_curve():
    assert gaussian_epsilon(0.0, DELTA) == 0
    assert gaussian_epsilon(1e-9, DELTA) == 0
    assert gaussian_epsilon(1e7, DELTA) == pytest.approx(1e14 / 2, rel=1e-5)
    assert math.isinf(gaussian_epsilon(math.inf, DELTA))
    assert math.isinf(gaussian_epsilon(1e200, DELTA))


def test_gaussian_releases_compose_by_root_sum_of_squares():
    releases = [Release(number, "gaussian", 1, mu=0.2) for number in range(25)]
    assert total_epsilon(releases, DELTA) == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-12)


@pytest.mark.parametrize(
    ("multiplier", "label_epsilon", "exact", "tight", "simple"),
    [(10, 0.1, 6.539, 7.075, 7.784), (20, 0.05, 2.932, 3.189, 3.643)],
)
def test_labels_and_gaussian_noise_together(multiplier, label_epsilon, exact, tight, simple):
    releases = both(100, multiplier, label_epsilon)
    assert total_epsilon(releases, DELTA) == pytest.approx(exact, abs=5e-4)
    assert total_epsilon(releases, DELTA, num_classes=10) < exact
    assert zcdp_total_epsilon(releases, DELTA) == pytest.approx(tight, abs=5e-4)
    assert zcdp_epsilon_bound(sum(release.rho for release in releases), DELTA) == pytest.approx(simple, abs=5e-4)


def test_planning_sheet():
    """3000 public examples, 10 classes, 100 rounds."""
    root, rounds = math.sqrt(3000), 10
    assert gaussian_epsilon(root, DELTA) == pytest.approx(1732.6, abs=0.05)
    assert gaussian_epsilon(root * rounds, DELTA) == pytest.approx(152_335, abs=0.5)
    assert gaussian_epsilon(root * rounds / 100, DELTA) == pytest.approx(37.6, abs=0.05)
    for high, total, sigma in ((1, 10, 274), (1, 1, 2043), (math.log(10), 10, 630), (math.log(10), 1, 4705)):
        assert gaussian_epsilon(high * root * rounds / sigma, DELTA) == pytest.approx(total, rel=2e-3)
    mu = brentq(lambda mu: gaussian_epsilon(mu, DELTA) - 1, 0.01, 10)
    assert math.sqrt(2) / 3000 / mu == pytest.approx(0.00176, abs=5e-6)
    # The simple bound allows 0.0032 for a label, the tight one a little more.
    assert zcdp_epsilon_bound(300_000 * pure_dp_rho(0.0032), DELTA) == pytest.approx(10, rel=1e-2)
    labels = [Release(1, "krr", 300_000, epsilon=0.003447)]
    assert zcdp_total_epsilon(labels, DELTA) == pytest.approx(10, rel=5e-4)
    assert total_epsilon(labels, DELTA) == pytest.approx(9.314, abs=5e-4)


def test_classic_formula_is_not_a_valid_bound():
    """It says too much below about 8.4, too little above."""
    assert classic_gaussian_epsilon(math.sqrt(3000), DELTA) == pytest.approx(265.4, abs=0.05)
    same = brentq(lambda mu: classic_gaussian_epsilon(mu, DELTA) - gaussian_epsilon(mu, DELTA), 1, 3)
    assert classic_gaussian_epsilon(same, DELTA) == pytest.approx(8.4, abs=0.05)
    assert classic_gaussian_epsilon(same / 2, DELTA) > gaussian_epsilon(same / 2, DELTA)
    assert classic_gaussian_epsilon(same * 2, DELTA) < gaussian_epsilon(same * 2, DELTA)


def test_noise_of_the_paper_for_its_epsilon():
    """2250 public examples, epsilon 0.9 a round: a standard deviation of 255 on values up to 1."""
    sigma = brentq(lambda sigma: classic_gaussian_epsilon(math.sqrt(2250) / sigma, DELTA) - 0.9, 1, 1000)
    assert sigma == pytest.approx(255.3, abs=0.05)


@given(positive, deltas)
def test_simple_bound_is_an_upper_bound(rho, delta):
    assert zcdp_epsilon(rho, delta) <= zcdp_epsilon_bound(rho, delta) * (1 + 1e-12)


@given(positive, deltas)
def test_the_exact_curve_is_below_every_bound(mu, delta):
    assert gaussian_epsilon(mu, delta) <= zcdp_epsilon(gaussian_rho(mu), delta) * (1 + 1e-9)


@given(positive)
def test_a_label_costs_at_most_what_gaussian_noise_of_its_epsilon_does(epsilon):
    assert pure_dp_rho(epsilon) <= epsilon**2 / 2 * (1 + 1e-12)


@given(st.lists(labels | gaussians, max_size=6), labels | gaussians, deltas)
def test_total_never_decreases(before, release, delta):
    """Labels with different epsilons are computed on a grid, which costs up to a thousandth."""
    less, more = total_epsilon(before, delta, 10), total_epsilon([*before, release], delta, 10)
    assert less <= more * (1 + 1e-3)
    assert zcdp_total_epsilon(before, delta) <= zcdp_total_epsilon([*before, release], delta) * (1 + 1e-9)
    assert more <= zcdp_total_epsilon([*before, release], delta)


@given(st.lists(labels | gaussians, min_size=1, max_size=6), st.randoms())
def test_the_order_of_releases_does_not_matter(releases, random):
    shuffled = list(releases)
    random.shuffle(shuffled)
    assert total_epsilon(shuffled, DELTA) == total_epsilon(releases, DELTA)


def test_few_labels_cost_the_sum_of_their_budgets():
    assert total_epsilon([Release(1, "krr", 3, epsilon=0.1)], 1e-12) == pytest.approx(0.3)
    assert total_epsilon([], DELTA) == 0


def test_worst_case_is_the_sum_over_all_labels():
    labels = [Release(1, "krr", 500, epsilon=2.0), Release(2, "krr", 10, epsilon=0.5)]
    assert total_epsilon(labels, 0.0) == 1005
    assert total_epsilon(labels, DELTA) < 1005
    assert math.isinf(total_epsilon([*labels, Release(1, "gaussian", 1, mu=1.0)], 0.0))
    assert total_epsilon([], 0.0) == 0


def test_total_exceeds_one_round():
    releases = both(100, 10, 0.1)
    assert total_epsilon(releases, DELTA) > 2 * total_epsilon(releases[:2], DELTA)


def test_release_without_noise_is_infinite():
    assert math.isinf(total_epsilon([Release(1, "krr", 5, epsilon=math.inf)], DELTA))
    assert math.isinf(total_epsilon([Release(1, "krr", 5, epsilon=1.0), Release(1, "gaussian", 1, mu=math.inf)], DELTA))


def test_a_million_releases_are_composed_as_one(monkeypatch):
    """The composition takes a time per different release, so equal ones are counted before."""
    composed = []

    def record_groups(groups, *arguments):
        composed.append(groups)
        return composed_epsilon(groups, *arguments)

    monkeypatch.setattr(composition, "composed_epsilon", record_groups)
    total = total_epsilon([Release(1, "krr", 1, epsilon=0.001)] * 1_000_000, DELTA)
    assert [len(groups) for groups in composed] == [1]
    assert total == total_epsilon([Release(1, "krr", 1_000_000, epsilon=0.001)], DELTA)


@given(labels | gaussians | st.just(Release(3, "xor", 2, epsilon=math.inf)))
def test_releases_are_written_and_read(release):
    assert Release.from_dict(json.loads(json.dumps(release.to_dict(), allow_nan=False))) == release


@pytest.mark.parametrize(
    ("total", "word"),
    [
        *((0, "strong"), (1, "strong"), (1.01, "good"), (3, "good"), (3.01, "weak"), (10, "weak")),
        *((10.01, "no meaningful guarantee"), (math.inf, "no meaningful guarantee")),
    ],
)
def test_guarantee_ratings(total, word):
    assert guarantee_rating(total) == word
