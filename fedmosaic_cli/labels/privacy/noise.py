"""The noise of a run: mechanisms and parameters that follow from the section `privacy`.

They depend on the configuration, the size of the public set and the number of exchanges, never on a client's data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.cotraining.expertise import EXPERTISE_RULES
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.accounting import (
    Release,
    pure_dp_rho,
    total_epsilon,
    zcdp_epsilon,
    zcdp_total_epsilon,
)
from fedmosaic_cli.labels.privacy.mechanisms import (
    CHANGED_BITS_PER_LABEL,
    flip_probability,
    keep_probability,
    other_label_probability,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fedmosaic_cli.labels.label_settings import PrivacySettings

ExpertiseMechanism = Literal["none", "gaussian", "histogram"]
MIN_LABEL_EPSILON = 1e-9
"""Below this budget a label is indistinguishable from a guess in double precision."""
MAX_BISECTIONS = 200

UNBOUNDED_RULES = ("count", "count-confidence")
"""Expertise rules without a bound that holds for every client."""


@dataclass(frozen=True)
class PrivacyNoise:
    """Noise on labels and expertise.

    Attributes:
        label_mechanism: k-ary randomised response, or flips of one-hot bits.
        expertise_mechanism: Noise on expertise, on a class histogram instead of expertise, or no expertise at all.
        label_epsilon: Budget per label; infinite without noise.
        noise_multiplier: Standard deviation of Gaussian noise in units of the sensitivity; 0 without noise.
        unit: What the guarantee protects: all data of a client, or one record under the assumption `changed_rows`.
        changed_rows: Assumed number of public labels that one record can change.
        delta: Delta of the guarantee; 0 for randomised labels, whose epsilon is the worst case.
        max_epsilon: Limit of the total epsilon.
    """

    label_mechanism: Literal["krr", "xor"]
    expertise_mechanism: ExpertiseMechanism
    label_epsilon: float
    noise_multiplier: float
    unit: Literal["client", "record-assumed"] = "client"
    changed_rows: int | None = None
    delta: float = 1e-5
    max_epsilon: float | None = None

    def keep_probability(self, num_classes: int) -> float:
        """The probability that `krr` keeps a label."""
        return keep_probability(self.label_epsilon, num_classes)

    def other_label_probability(self, num_classes: int) -> float:
        """The probability that `krr` reports a specific other label."""
        return other_label_probability(self.label_epsilon, num_classes)

    def flip_probability(self) -> float:
        """The probability that `xor` flips a bit."""
        return flip_probability(self.label_epsilon, CHANGED_BITS_PER_LABEL)

    def histogram_sigma(self, num_examples: int) -> float:
        """The standard deviation of the noise on each class fraction of a client with `num_examples` examples.

        The L2 sensitivity is sqrt(2), or sqrt(2) / num_examples if one record is replaced.
        """
        sensitivity = math.sqrt(2) / (max(num_examples, 1) if self.unit == "record-assumed" else 1)
        return self.noise_multiplier * sensitivity

    def expertise_sigma(self, public_size: int, max_expertise: float) -> float:
        """The standard deviation of the noise on each of `public_size` values in [0, max_expertise].

        All values can change by the whole range. This also holds for a single record: `changed_rows` limits the changed
        labels, but not the changes in the confidence of a network.
        """
        return self.noise_multiplier * max_expertise * math.sqrt(public_size)

    def round_releases(
        self, round_number: int, num_examples: int, public_size: int, max_expertise: float, is_first: bool
    ) -> list[Release]:
        """The releases of a client's upload in one round. The histogram is released with the first upload only."""
        num_labels = public_size if self.changed_rows is None else self.changed_rows
        releases = [Release(round_number, self.label_mechanism, num_labels, epsilon=self.label_epsilon)]
        mu = 1 / self.noise_multiplier if self.noise_multiplier else math.inf
        if self.expertise_mechanism == "gaussian":
            sigma = self.expertise_sigma(public_size, max_expertise)
            releases.append(Release(round_number, "gaussian", 1, mu=mu, sigma=sigma))
        if self.expertise_mechanism == "histogram" and is_first:
            releases.append(Release(round_number, "histogram", 1, mu=mu, sigma=self.histogram_sigma(num_examples)))
        return releases

    def planned_releases(
        self, num_exchanges: int, num_examples: int, public_size: int, max_expertise: float
    ) -> list[tuple[Release, int]]:
        """The releases of a client that takes part in all exchanges, each with its number of rounds."""
        if not num_exchanges:
            return []
        releases = self.round_releases(1, num_examples, public_size, max_expertise, is_first=True)
        return [(release, 1 if release.mechanism == "histogram" else num_exchanges) for release in releases]

    def planned_epsilon(self, num_exchanges: int, public_size: int, num_classes: int | None = None) -> float:
        """The total epsilon of such a client; independent of the data. Higher if the number of classes is unknown."""
        planned = self.planned_releases(num_exchanges, 1, public_size, 1.0)
        releases = [replace(release, count=release.count * n) for release, n in planned]
        return total_epsilon(releases, self.delta, num_classes)


def expertise_noise_bound(expertise_rule: str | None, num_classes: int) -> float:
    """The upper bound of expertise that noise is scaled to: 1 for fractions, log C for entropies."""
    return EXPERTISE_RULES[expertise_rule or "uniform"].max_value(num_classes, 1)


def num_exchange_rounds(num_rounds: int, warmup_rounds: int) -> int:
    """The number of rounds in which clients upload labels."""
    return max(0, num_rounds - max(warmup_rounds, 1) + 1)


def resolve_noise(
    settings: PrivacySettings,
    public_size: int,
    num_exchanges: int,
    expertise_rule: str | None,
    claims_privacy: bool = True,
) -> PrivacyNoise | None:
    """The noise of a run.

    Args:
        settings: Section `privacy`.
        public_size: Number of public examples.
        num_exchanges: Number of rounds in which clients upload labels.
        expertise_rule: Expertise rule of the method, if it has one.
        claims_privacy: False for randomised labels; see `SharesLabels`.

    Returns:
        The noise, or None if labels are uploaded without noise.

    Raises:
        RequestError: The settings contradict the method or the public set.
    """
    if settings.labels == "off":
        return None
    if settings.changed_rows is not None and settings.changed_rows > public_size:
        raise RequestError(
            f"privacy.changed_rows is {settings.changed_rows} (configuration): it must be at most {public_size}, the "
            "size of the public set"
        )
    expertise = resolve_expertise_mechanism(settings, expertise_rule) if claims_privacy else "none"
    delta = settings.delta if claims_privacy else 0.0
    label_epsilon, multiplier = resolve_noise_parameters(
        settings, expertise, settings.changed_rows or public_size, num_exchanges, delta
    )
    if label_epsilon < MIN_LABEL_EPSILON:
        raise RequestError(
            f"an epsilon of {label_epsilon:.2g} per label is no better than guessing (privacy): increase the budget, "
            "or share fewer public examples in fewer rounds"
        )
    return PrivacyNoise(
        label_mechanism=settings.labels,
        expertise_mechanism=expertise,
        label_epsilon=label_epsilon,
        noise_multiplier=multiplier,
        unit=settings.unit,
        changed_rows=settings.changed_rows,
        delta=delta,
        max_epsilon=settings.max_epsilon,
    )


def is_protectable(settings: PrivacySettings, expertise_rule: str | None) -> bool:
    """Whether the noise on expertise, if there is any, applies to an expertise rule."""
    return expertise_rule not in UNBOUNDED_RULES or settings.expertise not in ("gaussian", "histogram")


def resolve_expertise_mechanism(settings: PrivacySettings, expertise_rule: str | None) -> ExpertiseMechanism:
    """The mechanism for expertise; `none` for methods without expertise."""
    if not is_protectable(settings, expertise_rule):
        raise RequestError(
            f"{expertise_rule} has no bound that holds for every client, so noise cannot protect it "
            "(privacy.expertise): use none, or the expertise frequency or entropy"
        )
    if settings.expertise == "none" or expertise_rule not in ("frequency", "entropy"):
        return "none"
    if settings.expertise == "auto":
        return "histogram" if expertise_rule == "frequency" else "gaussian"
    if settings.expertise == "histogram" and expertise_rule != "frequency":
        raise RequestError(
            f"a class histogram does not determine {expertise_rule} (privacy.expertise): use gaussian or none, or the "
            "expertise frequency"
        )
    return settings.expertise


def resolve_noise_parameters(
    settings: PrivacySettings,
    expertise_mechanism: ExpertiseMechanism,
    max_changed_labels: int,
    num_exchanges: int,
    delta: float,
) -> tuple[float, float]:
    """The epsilon per label and the noise multiplier: as configured, or calibrated to the total epsilon."""
    if settings.epsilon == "inf":
        return math.inf, 0.0
    if settings.epsilon is not None:
        gaussians = {"none": 0, "histogram": 1, "gaussian": num_exchanges}[expertise_mechanism]
        share = 1.0 if expertise_mechanism == "none" else settings.label_share
        # Without an exchange nothing is spent, and any noise is valid.
        num_labels = max(num_exchanges, 1) * max_changed_labels
        if not delta:
            return settings.epsilon / num_labels, 0.0
        return calibrate_noise(settings.epsilon, delta, num_labels, max(gaussians, 1), share)
    if expertise_mechanism != "none" and settings.noise_multiplier is None:
        raise RequestError(
            f"privacy.label_epsilon is given, but no privacy.noise_multiplier for {expertise_mechanism} noise "
            "(privacy): set it, or privacy.epsilon alone, or privacy.expertise=none"
        )
    label_epsilon = math.inf if settings.label_epsilon in (None, "inf") else float(settings.label_epsilon or 0)
    return label_epsilon, (settings.noise_multiplier or 0.0) if expertise_mechanism != "none" else 0.0


def calibrate_noise(
    epsilon: float, delta: float, num_label_releases: int, num_gaussian_releases: int, label_share: float
) -> tuple[float, float]:
    """The least noise with a total of at most `epsilon` by zCDP.

    The exact total is lower. The noise of a budget is part of the definition of a run, so it does not follow the
    accounting of the total.

    Args:
        epsilon: Total budget.
        delta: Delta of the guarantee.
        num_label_releases: Number of label releases.
        num_gaussian_releases: Number of Gaussian releases.
        label_share: Fraction of the zCDP budget for labels; 1 without Gaussian releases.

    Returns:
        The epsilon per label and the noise multiplier.
    """

    def split(rho: float) -> tuple[float, float]:
        label_rho = label_share * rho / num_label_releases
        label = bisect_largest(lambda budget: pure_dp_rho(budget) <= label_rho, 0.0, 2 + rho / num_label_releases)
        return label, math.inf if label_share == 1 else math.sqrt(num_gaussian_releases / (2 * (1 - label_share) * rho))

    def total(rho: float) -> float:
        label, multiplier = split(rho)
        noisy = [Release(1, "gaussian", num_gaussian_releases, mu=1 / multiplier)] if label_share < 1 else []
        return zcdp_total_epsilon([Release(1, "labels", num_label_releases, epsilon=label), *noisy], delta)

    highest = 1.0
    while zcdp_epsilon(highest, delta) < epsilon:
        highest *= 2
    if label_share == 1:
        # The cost of a few labels is bounded by the sum of their budgets.
        highest = max(highest, num_label_releases * pure_dp_rho(epsilon / num_label_releases))
    label, multiplier = split(bisect_largest(lambda rho: total(rho) <= epsilon, 0.0, 2 * highest))
    return label, 0.0 if label_share == 1 else multiplier


def bisect_largest(predicate: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number in [low, high] that satisfies a monotone predicate, by bisection."""
    for _ in range(MAX_BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if predicate(middle) else (low, middle)
    return low


def require_planned_budget(noise: PrivacyNoise, planned_epsilon: float) -> None:
    """Raise RequestError if a run is planned to exceed its privacy budget."""
    if noise.max_epsilon is not None and planned_epsilon > noise.max_epsilon:
        raise RequestError(
            f"the planned total epsilon of {planned_epsilon:.6g} is above the limit of {noise.max_epsilon:g} "
            "(privacy.max_epsilon, --dp-max-eps): share fewer public examples, run fewer rounds, or add more noise"
        )


def require_budget(
    ledger: Sequence[Release], new_releases: Iterable[Release], noise: PrivacyNoise, num_classes: int | None = None
) -> None:
    """Raise RequestError, before any noise is drawn, if releases would exceed a client's privacy budget."""
    if noise.max_epsilon is None:
        return
    total = total_epsilon([*ledger, *new_releases], noise.delta, num_classes)
    if total > noise.max_epsilon:
        raise RequestError(
            f"the next message would bring a client's total epsilon to {total:.6g}, above the limit of "
            f"{noise.max_epsilon:g} (privacy.max_epsilon): nothing was sent; raise the limit or stop the run"
        )
