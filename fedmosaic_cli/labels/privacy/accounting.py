"""Privacy accounting: the releases of a client and their total epsilon.

Gaussian releases alone use the exact privacy curve, labels the exact distribution of their privacy loss
(`composition.py`). There is no amplification by subsampling, because the participating clients are public.

Noise for a given budget is calibrated by a simpler bound: all costs are added as zero-concentrated differential privacy
(zCDP; Bun and Steinke, 2016) and converted to epsilon (Canonne, Kamath and Steinke, 2020). The exact total is lower.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedmosaic_cli.labels.privacy.mechanisms import CHANGED_BITS_PER_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GuaranteeRating = Literal["strong", "good", "weak", "no meaningful guarantee"]
GUARANTEE_THRESHOLDS: tuple[tuple[float, GuaranteeRating], ...] = ((1.0, "strong"), (3.0, "good"), (10.0, "weak"))
NO_GUARANTEE: GuaranteeRating = "no meaningful guarantee"
JSON_INFINITY = "inf"
"""Infinity in JSON files."""


@dataclass(frozen=True)
class Release:
    """`count` values that a client released in one round through one mechanism.

    Labels have an `epsilon` per label. Gaussian noise has a joint sensitivity `mu` of all values, in units of the
    standard deviation `sigma`; these values count as one release.
    """

    round: int
    mechanism: str
    count: int
    epsilon: float | None = None
    mu: float | None = None
    sigma: float | None = None

    @property
    def rho(self) -> float:
        """The zCDP cost."""
        each = gaussian_rho(self.mu) if self.mu is not None else pure_dp_rho(self.epsilon or 0.0)
        return self.count * each

    @property
    def pure_epsilon(self) -> float | None:
        """The cost with delta 0; None for Gaussian noise, which has no such bound."""
        return None if self.epsilon is None else self.count * self.epsilon

    def to_dict(self) -> dict[str, Any]:
        return {key: to_json_number(value) for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Release:
        values: dict[str, Any] = {key: math.inf if value == JSON_INFINITY else value for key, value in content.items()}
        return cls(**values)


def to_json_number(value: Any) -> Any:
    """The value, or JSON_INFINITY if it is infinite."""
    return JSON_INFINITY if value == math.inf else value


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang, 2018).

    The terms are computed as logarithms; e^epsilon Phi(-x) uses erfcx, which neither overflows nor loses precision.
    """
    from scipy.special import erfcx, log_ndtr

    if mu == 0:
        return 0.0
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    first = float(log_ndtr(near))
    second = math.log(erfcx(far / math.sqrt(2)) / 2) - near * near / 2
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian release with sensitivity `mu` at this delta."""
    from scipy.optimize import brentq

    highest = zcdp_epsilon_bound(gaussian_rho(mu), delta)
    if math.isinf(highest):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    root: float = brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, highest, xtol=1e-12, rtol=1e-14)
    return root


def gaussian_rho(mu: float) -> float:
    """mu^2 / 2: the zCDP cost of a Gaussian release."""
    return mu * mu / 2


def pure_dp_rho(epsilon: float) -> float:
    """epsilon tanh(epsilon / 2): the zCDP cost of one epsilon-DP release; at most epsilon^2 / 2."""
    return epsilon * math.tanh(epsilon / 2)


def zcdp_epsilon_bound(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)): the simple conversion of zCDP, an upper bound."""
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The minimum of rho a + ln(1 - 1/a) - (ln delta + ln a) / (a - 1) over all a > 1."""
    from scipy.optimize import minimize_scalar

    if rho == 0 or math.isinf(rho):
        return rho

    def epsilon_at(log_excess: float) -> float:
        excess = math.exp(log_excess)  # a - 1
        return rho * (1 + excess) - math.log1p(1 / excess) - (math.log(delta) + math.log1p(excess)) / excess

    # The minimum is near that of the simple bound; every a gives a valid bound.
    middle = math.log(-math.log(delta) / rho) / 2
    minimum = minimize_scalar(epsilon_at, bounds=(middle - 5, middle + 5), method="bounded", options={"xatol": 1e-10})
    return max(0.0, min(float(minimum.fun), epsilon_at(middle)))


def total_epsilon(releases: Iterable[Release], delta: float, num_classes: int | None = None) -> float:
    """The total epsilon of a client's releases.

    Args:
        releases: All releases of the client.
        delta: Delta of the guarantee. With 0 the total is the sum of the epsilons of all labels; Gaussian noise has no
            such bound.
        num_classes: Number of classes of labels with randomised response (`krr`). If it is unknown, the labels count as
            the worst mechanism with their epsilon.

    Returns:
        The exact total, rounded up; infinite if a release has no noise.
    """
    from fedmosaic_cli.labels.privacy.composition import Responses, composed_epsilon

    merged = merge_releases(releases)
    bound = zcdp_total_epsilon(merged, delta)
    responses: Counter[tuple[float, int]] = Counter()
    for release in merged:
        if release.epsilon and release.mu is None:
            # A label as one-hot bits is two answers to a yes-or-no question, each with half of the epsilon.
            bits = CHANGED_BITS_PER_LABEL if release.mechanism == "xor" else 1
            num_answers = max(num_classes or 2, 2) if release.mechanism == "krr" else 2
            responses[release.epsilon / bits, num_answers] += bits * release.count
    if not delta or not responses or math.isinf(bound):
        return bound
    groups = sorted(Responses(epsilon, num_answers, count) for (epsilon, num_answers), count in responses.items())
    return min(bound, composed_epsilon(tuple(groups), math.sqrt(sum_of_squares(merged)), delta))


def zcdp_total_epsilon(releases: Iterable[Release], delta: float) -> float:
    """An upper bound of the total epsilon by zCDP, for labels of any mechanism; exact for Gaussian releases alone."""
    merged = merge_releases(releases)
    labels = [release for release in merged if release.epsilon is not None and release.mu is None]
    squares = sum_of_squares(merged)
    pure = math.fsum(release.pure_epsilon or 0.0 for release in labels)
    if math.isinf(squares) or math.isinf(pure):
        return math.inf
    if not delta:
        return math.inf if squares else pure
    if not labels:
        return gaussian_epsilon(math.sqrt(squares), delta)
    total = zcdp_epsilon(squares / 2 + math.fsum(release.rho for release in labels), delta)
    return total if squares else min(total, pure)


def merge_releases(releases: Iterable[Release]) -> list[Release]:
    """One release per mechanism and noise level, whatever the rounds."""
    counts: Counter[tuple[str, float | None, float | None]] = Counter()
    for release in releases:
        counts[release.mechanism, release.epsilon, release.mu] += release.count
    return [Release(0, mechanism, count, epsilon, mu) for (mechanism, epsilon, mu), count in counts.items() if count]


def sum_of_squares(releases: Iterable[Release]) -> float:
    """The sum of mu^2 of all Gaussian releases; it does not depend on their order."""
    return math.fsum(release.count * release.mu * release.mu for release in releases if release.mu is not None)


def classic_gaussian_epsilon(mu: float, delta: float) -> float:
    """mu sqrt(2 ln(1.25/delta)): the classic bound for one Gaussian release; proven up to epsilon 1 only."""
    return mu * math.sqrt(2 * math.log(1.25 / delta))


def guarantee_rating(total: float) -> GuaranteeRating:
    return next((rating for limit, rating in GUARANTEE_THRESHOLDS if total <= limit), NO_GUARANTEE)
