"""Our totals beside those of Google's dp-accounting (the extra `dp-check`), and what one must know to ask it."""

from __future__ import annotations

import math

import pytest

from fedmosaic_cli.labels.privacy.accounting import Release, gaussian_epsilon, total_epsilon
from fedmosaic_cli.labels.privacy.mechanisms import keep_probability

dp_accounting = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
accountants = pytest.importorskip("dp_accounting.pld")
rdp = pytest.importorskip("dp_accounting.rdp")
common = pytest.importorskip("dp_accounting.pld.common")

DELTA = 1e-5
Relation = dp_accounting.NeighboringRelation


@pytest.mark.parametrize("mu", [0.1, 0.5, 1, 2, 5])
def test_gaussian_noise(mu):
    theirs = pld.from_gaussian_mechanism(1 / mu).get_epsilon_for_delta(DELTA)
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(("multiplier", "label_epsilon", "theirs"), [(10, 0.1, 6.539), (20, 0.05, 2.932)])
def test_labels_and_gaussian_noise(multiplier, label_epsilon, theirs):
    """There is no event for just any mechanism with an epsilon: it is made from the epsilon itself."""
    label = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(label_epsilon, 0.0))
    every = label.self_compose(100).compose(pld.from_gaussian_mechanism(multiplier).self_compose(100))
    exact = every.get_epsilon_for_delta(DELTA)
    assert exact == pytest.approx(theirs, abs=2e-3)
    releases = [Release(1, "krr", 100, epsilon=label_epsilon), Release(1, "gaussian", 100, mu=1 / multiplier)]
    assert total_epsilon(releases, DELTA) == pytest.approx(exact, rel=2e-3)


def test_its_accountant_forgets_how_often_a_randomised_response_was_given():
    """A hundred times 0.5 comes back as 0.5; composed by hand it does not."""
    classes, epsilon = 10, 0.5
    noise = (1 - keep_probability(epsilon, classes)) * classes / (classes - 1)  # the share of answers drawn from all
    event = dp_accounting.RandomizedResponseDpEvent(noise, classes)
    accountant = accountants.PLDAccountant(Relation.REPLACE_ONE)
    accountant.compose(event, 100)
    forgotten = accountant.get_epsilon(DELTA)
    composed = pld.from_randomized_response(noise, classes).self_compose(100).get_epsilon_for_delta(DELTA)
    assert forgotten == pytest.approx(epsilon, rel=1e-3)
    assert composed == pytest.approx(13.172, abs=5e-3)
    assert composed == pytest.approx(total_epsilon([Release(1, "krr", 100, epsilon=epsilon)], DELTA, classes), rel=1e-3)


RANDOMISED_RESPONSES = [
    (0.1, 10, 300),
    (1.0, 5, 50),
    (0.1, 2, 300),
    (0.05, 3, 2000),
    (0.5, 100, 100),
    (2.0, 10, 20),
    (0.02, 10, 5000),
    (0.3, 4, 1),
    (5.0, 10, 3),
]
"""Epsilon of a label, number of classes, number of labels."""


@pytest.mark.parametrize(("epsilon", "classes", "count"), RANDOMISED_RESPONSES)
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_randomised_response_is_between_their_bounds(epsilon, classes, count, delta):
    """With losses rounded down theirs is a lower bound of the true epsilon, with losses rounded up an upper bound."""
    noise = (1 - keep_probability(epsilon, classes)) * classes / (classes - 1)
    interval = min(1e-4, epsilon / 1000)
    lower, upper = (
        pld.from_randomized_response(
            noise, classes, pessimistic_estimate=is_upper, value_discretization_interval=interval
        )
        .self_compose(count)
        .get_epsilon_for_delta(delta)
        for is_upper in (False, True)
    )
    ours = total_epsilon([Release(1, "krr", count, epsilon=epsilon)], delta, classes)
    # Their bounds ignore tails with a mass of 1e-15, which counts at a delta of 1e-9.
    assert lower * (1 - 1e-8) <= ours <= upper * (1 + 1e-8)
    assert ours == pytest.approx(upper, rel=0.01)


def test_three_hundred_labels_of_ten_classes():
    noise = (1 - keep_probability(0.1, 10)) * 10 / 9
    theirs = pld.from_randomized_response(noise, 10).self_compose(300).get_epsilon_for_delta(DELTA)
    ours = total_epsilon([Release(1, "krr", 300, epsilon=0.1)], DELTA, 10)
    assert ours == pytest.approx(3.36, abs=5e-3)
    assert ours == pytest.approx(theirs, rel=0.01)


def test_its_two_accountants_differ_about_replacing_a_record():
    """One takes the sensitivity twice. Ours is that of replacing already, so adding and removing is what to ask for."""
    event = dp_accounting.GaussianDpEvent(2.0)

    def asked(accountant):
        return accountant.compose(event).get_epsilon(DELTA)

    doubled = asked(accountants.PLDAccountant(Relation.REPLACE_ONE))
    assert doubled == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-2)
    assert asked(accountants.PLDAccountant(Relation.ADD_OR_REMOVE_ONE)) == pytest.approx(
        gaussian_epsilon(0.5, DELTA), rel=1e-2
    )
    assert asked(rdp.RdpAccountant(neighboring_relation=Relation.REPLACE_ONE)) < doubled
    assert math.isfinite(doubled)
