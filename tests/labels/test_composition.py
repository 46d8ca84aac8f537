"""The exact epsilon of many randomised responses: equal to brute force, and never below it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.labels.privacy import composition
from fedmosaic_cli.labels.privacy.accounting import (
    Release,
    gaussian_delta,
    gaussian_epsilon,
    total_epsilon,
    zcdp_total_epsilon,
)
from fedmosaic_cli.labels.privacy.composition import Responses, composed_epsilon, renyi_epsilon

DELTA = 1e-5
THREE_KINDS = [Responses(0.1, 10, 150), Responses(0.2, 10, 150), Responses(0.3, 2, 20)]

# Lower and upper bounds of the true epsilon from dp-accounting 0.6.0 (dp_accounting.pld.privacy_loss_distribution).
# With noise = k / (exp(epsilon) + k - 1) and pessimistic_estimate=False or True, each group is
#   from_randomized_response(noise, k, pessimistic_estimate, value_discretization_interval=1e-5).self_compose(count)
# (1e-4 for THREE_KINDS) and Gaussian noise is
#   from_gaussian_mechanism(1 / mu, pessimistic_estimate, value_discretization_interval=1e-5, use_connect_dots=False)
# joined by compose(). The bounds are get_epsilon_for_delta(delta).
REFERENCE = [
    ([Responses(0.1, 10, 300)], 0.0, 1e-5, 3.35719, 3.35789),
    ([Responses(0.1, 10, 300)], 0.0, 1e-9, 4.80636, 4.80712),
    ([Responses(0.5, 10, 100)], 0.0, 1e-5, 13.16922, 13.16956),
    ([Responses(1.0, 5, 50)], 0.0, 1e-5, 31.95195, 31.9523),
    ([Responses(0.1, 2, 300)], 0.0, 1e-5, 8.32382, 8.32682),
    ([Responses(0.02, 100, 5000)], 0.0, 1e-6, 0.8433, 0.8444),
    ([Responses(0.1, 10, 300)], 1.0, 1e-5, 5.81564, 5.8163),
    (THREE_KINDS, 0.0, 1e-5, 8.78965, 8.79853),
    (THREE_KINDS, 1.0, 1e-5, 10.40982, 10.41869),
]

epsilons = st.floats(1e-3, 3.0)
counts = st.integers(1, 2000)
answers = st.integers(2, 100)
deltas = st.floats(1e-10, 0.1)
responses = st.builds(Responses, epsilons, answers, counts)


def epsilon_of(*groups, mu=0.0, delta=DELTA):
    return composed_epsilon(tuple(sorted(groups)), mu, delta)


def brute_force_losses(ratio, num_answers, count):
    """Probabilities of all losses, as exponents of `ratio` = e^epsilon, in exact arithmetic."""
    keep, other = ratio / (ratio + num_answers - 1), 1 / (ratio + num_answers - 1)
    probabilities = {0: Fraction(1)}
    for _ in range(count):
        after: dict[int, Fraction] = {}
        for loss, probability in probabilities.items():
            for step, chance in ((1, keep), (-1, other), (0, (num_answers - 2) * other)):
                after[loss + step] = after.get(loss + step, Fraction(0)) + probability * chance
        probabilities = after
    return probabilities


def brute_force_delta(ratio, num_answers, count, epsilon):
    """The delta of an epsilon in exact arithmetic, but for e^epsilon."""
    factor = Fraction(math.exp(epsilon))
    losses = brute_force_losses(ratio, num_answers, count)
    return sum(max(Fraction(0), 1 - factor / ratio**loss) * probability for loss, probability in losses.items())


@pytest.mark.parametrize(("groups", "mu", "delta", "lower", "upper"), REFERENCE)
def test_epsilon_is_between_the_bounds_of_another_implementation(groups, mu, delta, lower, upper):
    found = epsilon_of(*groups, mu=mu, delta=delta)
    assert lower <= found <= upper + 1e-5
    assert found == pytest.approx(upper, rel=0.01)


def test_three_hundred_labels_of_ten_classes():
    labels = [Release(number, "krr", 10, epsilon=0.1) for number in range(30)]
    assert total_epsilon(labels, DELTA, num_classes=10) == pytest.approx(3.3577, abs=1e-4)
    assert total_epsilon(labels, DELTA) == pytest.approx(8.3249, abs=1e-4)
    assert zcdp_total_epsilon(labels, DELTA) == pytest.approx(9.01, abs=0.01)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2, 0.2])
@pytest.mark.parametrize("count", [1, 2, 7, 25])
@pytest.mark.parametrize("num_answers", [2, 3, 10])
@pytest.mark.parametrize("ratio", [Fraction(21, 20), Fraction(3, 2), Fraction(20)])
def test_epsilon_equals_brute_force_and_is_not_below_it(ratio, num_answers, count, delta):
    found = epsilon_of(Responses(math.log(ratio), num_answers, count), delta=delta)
    # A relative error of 1e-12 is that of floating point.
    assert brute_force_delta(ratio, num_answers, count, found * (1 + 1e-12)) <= delta * (1 + 1e-9)
    if found > 0:
        assert brute_force_delta(ratio, num_answers, count, found * (1 - 1e-6) - 1e-7) > delta


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_different_epsilons_are_bounded_closely(delta):
    """Two groups of responses and Gaussian noise, as sums over all pairs of losses."""
    first, second, mu = (Fraction(5, 4), 3, 20), (Fraction(3, 2), 10, 15), 0.7
    logs = [
        (math.log(ratio), brute_force_losses(ratio, num_answers, count))
        for ratio, num_answers, count in (first, second)
    ]
    pairs = [
        (float(p * q), x * logs[0][0] + y * logs[1][0]) for x, p in logs[0][1].items() for y, q in logs[1][1].items()
    ]
    groups = [Responses(math.log(ratio), num_answers, count) for ratio, num_answers, count in (first, second)]

    def pair_delta(epsilon):
        return math.fsum(p * -math.expm1(min(0.0, epsilon - loss)) for p, loss in pairs)

    def noisy_delta(epsilon):
        return math.fsum(
            p * math.exp(float(composition.log_gaussian_delta(np.array([epsilon - loss]), mu)[0])) for p, loss in pairs
        )

    for found, true_delta in (
        (epsilon_of(*groups, delta=delta), pair_delta),
        (epsilon_of(*groups, mu=mu, delta=delta), noisy_delta),
    ):
        assert true_delta(found) <= delta * (1 + 1e-9)
        assert true_delta(found * 0.999) > delta


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0, 30.0])
def test_gaussian_delta_of_negative_epsilons(mu):
    """By symmetry delta(-e) = 1 - e^-e + e^-e delta(e)."""
    for epsilon in (0.0, 1e-3, 0.5, 4.0):
        positive, negative = np.exp(composition.log_gaussian_delta(np.array([epsilon, -epsilon]), mu))
        assert positive == pytest.approx(gaussian_delta(epsilon, mu), rel=1e-9, abs=1e-300)
        assert negative == pytest.approx(-math.expm1(-epsilon) + math.exp(-epsilon) * positive, rel=1e-9)


def test_labels_without_weight_leave_the_gaussian_curve():
    alone = gaussian_epsilon(1.0, DELTA)
    assert alone <= epsilon_of(Responses(1e-9, 10, 1), mu=1.0) <= alone * (1 + 1e-6)


def test_flipped_bits_are_two_answers_with_half_of_the_epsilon():
    flipped = total_epsilon([Release(1, "xor", 300, epsilon=0.1)], DELTA, num_classes=10)
    assert flipped == epsilon_of(Responses(0.05, 2, 600))
    assert flipped == pytest.approx(5.52724, abs=1e-4)


@given(responses, deltas)
@settings(deadline=None, max_examples=50)
def test_epsilon_is_below_all_bounds(group, delta):
    found = epsilon_of(group, delta=delta)
    assert 0 <= found <= group.count * group.epsilon
    assert found <= renyi_epsilon([group], 0.0, delta)[1]
    assert found <= zcdp_total_epsilon([Release(1, "krr", group.count, epsilon=group.epsilon)], delta) * (1 + 1e-7)


@given(responses, deltas, st.integers(1, 500), st.floats(1.0, 3.0), st.integers(1, 20))
@settings(deadline=None, max_examples=40)
def test_more_releases_cost_more(group, delta, more_responses, factor, more_answers):
    found = epsilon_of(group, delta=delta)
    tolerance = 1e-9 + found * 1e-6
    more = Responses(group.epsilon, group.num_answers, group.count + more_responses)
    assert found <= epsilon_of(more, delta=delta) + tolerance
    larger = Responses(group.epsilon * factor, group.num_answers, group.count)
    assert found <= epsilon_of(larger, delta=delta) + tolerance
    hidden = Responses(group.epsilon, group.num_answers + more_answers, group.count)
    assert epsilon_of(hidden, delta=delta) <= found + tolerance
    assert epsilon_of(group, delta=delta * factor / 3) >= found - tolerance


@given(st.lists(responses, min_size=2, max_size=4, unique_by=lambda group: group.epsilon), deltas, st.floats(0.01, 3))
@settings(deadline=None, max_examples=20)
def test_all_releases_cost_at_least_as_much_as_each(groups, delta, mu):
    together, with_noise = epsilon_of(*groups, delta=delta), epsilon_of(*groups, mu=mu, delta=delta)
    for group in groups:
        assert epsilon_of(group, delta=delta) <= together * (1 + 1e-3) + 1e-9
    assert together <= with_noise * (1 + 1e-3) + 1e-9
    assert gaussian_epsilon(mu, delta) <= with_noise * (1 + 1e-3) + 1e-9
    assert together <= sum(epsilon_of(group, delta=delta / len(groups)) for group in groups) * (1 + 1e-3) + 1e-9


def test_equal_groups_in_two_parts_cost_the_same():
    """The grid for different epsilons costs less than a thousandth."""
    whole = epsilon_of(Responses(0.1, 10, 300))
    parts = epsilon_of(Responses(0.1, 10, 150), Responses(math.nextafter(0.1, 1), 10, 150))
    assert whole <= parts * (1 + 1e-9)
    assert parts <= whole * (1 + 1e-3)


@pytest.mark.parametrize(
    "group",
    [
        Responses(1e4, 10, 1_000_000),
        Responses(1e-9, 2, 1),
        Responses(30.0, 2, 10**15),
        Responses(0.01, 10, 10**12),
        Responses(4.0, 10, 7800),
        Responses(1e-6, 65_536, 10**6),
    ],
)
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.999])
@pytest.mark.parametrize("mu", [0.0, 1e-6, 1e3])
def test_extreme_values_have_finite_bounds(group, delta, mu):
    found = epsilon_of(group, mu=mu, delta=delta)
    assert 0 <= found <= renyi_epsilon([group], mu, delta)[1]
    assert math.isfinite(found)


def test_many_different_epsilons_are_bounded():
    groups = [Responses(0.01 + number * 1e-4, 10, 10) for number in range(composition.MAX_GROUPS + 1)]
    exact, bounded = epsilon_of(*groups[:-1]), epsilon_of(*groups)
    assert exact < bounded < 1.15 * exact


def test_a_million_labels_need_few_points():
    """The cost grows with the standard deviation of the loss, not with the number of labels."""
    order, _ = renyi_epsilon([Responses(0.001, 10, 10**6)], 0.0, DELTA)
    losses, weights = composition.tilted_sum(Responses(0.001, 10, 10**6), order)
    assert len(losses) < 20_000
    assert weights.sum() == pytest.approx(1, abs=1e-9)
