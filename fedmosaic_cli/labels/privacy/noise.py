"""The noise of a run: what the section `privacy` comes to once everything is known that anybody may know.

It depends on the configuration, the size of the public set and the number of exchanges, never on anybody's data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.cotraining.expertise import EXPERTISE_RULES
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.accounting import Release, pure_dp_rho, total_epsilon, zcdp_epsilon
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
"""With less than this, a label cannot be told from a guess in double precision."""
MAX_BISECTIONS = 200


@dataclass(frozen=True)
class PrivacyNoise:
    """How labels and expertise are told. Without noise `label_epsilon` is infinite and `noise_multiplier` is 0.

    `noise_multiplier` is the standard deviation of Gaussian noise in units of the sensitivity.
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
        """How often `krr` tells a label as it is."""
        return keep_probability(self.label_epsilon, num_classes)

    def other_label_probability(self, num_classes: int) -> float:
        """How often it tells one certain other label."""
        return other_label_probability(self.label_epsilon, num_classes)

    def flip_probability(self) -> float:
        """How often `xor` flips a bit."""
        return flip_probability(self.label_epsilon, CHANGED_BITS_PER_LABEL)

    def max_changed_labels(self, public_size: int) -> int:
        """How many public labels may be others for somebody else."""
        return public_size if self.changed_rows is None else self.changed_rows

    def histogram_sigma(self, num_examples: int) -> float:
        """The noise on each share of a client's histogram, which has `size` examples behind it.

        Two histograms of shares are at most sqrt(2) apart; with one record replaced, sqrt(2) / size.
        """
        apart = math.sqrt(2) / (max(num_examples, 1) if self.unit == "record-assumed" else 1)
        return self.noise_multiplier * apart

    def expertise_sigma(self, public_size: int, max_expertise: float) -> float:
        """The noise on each of `public_size` values between 0 and `high`.

        All of them may change by all there is. This holds for a record too: whoever vouches for labels says nothing
        about how sure a network is of them, and one record moves that everywhere.
        """
        return self.noise_multiplier * max_expertise * math.sqrt(public_size)

    def round_releases(
        self, round_number: int, num_examples: int, public_size: int, max_expertise: float, is_first: bool
    ) -> list[Release]:
        """What a client lets go with its message in round `number`; its histogram only with the `first`."""
        told = [
            Release(
                round_number, self.label_mechanism, self.max_changed_labels(public_size), epsilon=self.label_epsilon
            )
        ]
        mu = 1 / self.noise_multiplier if self.noise_multiplier else math.inf
        if self.expertise_mechanism == "gaussian":
            told.append(
                Release(round_number, "gaussian", 1, mu=mu, sigma=self.expertise_sigma(public_size, max_expertise))
            )
        if self.expertise_mechanism == "histogram" and is_first:
            told.append(Release(round_number, "histogram", 1, mu=mu, sigma=self.histogram_sigma(num_examples)))
        return told

    def planned_releases(
        self, num_exchanges: int, num_examples: int, public_size: int, max_expertise: float
    ) -> list[tuple[Release, int]]:
        """What a client lets go that takes part in all of so many exchanges, and in how many of them each."""
        if not num_exchanges:
            return []
        every = self.round_releases(1, num_examples, public_size, max_expertise, is_first=True)
        return [(each, 1 if each.mechanism == "histogram" else num_exchanges) for each in every]

    def planned_epsilon(self, num_exchanges: int, public_size: int) -> float:
        """The epsilon that such a client comes to. It depends on nothing that only the data could tell."""
        every = self.planned_releases(num_exchanges, 1, public_size, 1.0)
        return total_epsilon([replace(each, count=each.count * number) for each, number in every], self.delta)


def expertise_noise_bound(expertise_rule: str | None, num_classes: int) -> float:
    """The upper end of what a client may claim: 1 for shares, log C for entropies."""
    return EXPERTISE_RULES[expertise_rule or "uniform"].max_value(num_classes, 1)


def num_exchange_rounds(num_rounds: int, warmup_rounds: int) -> int:
    """In how many rounds clients tell their labels."""
    return max(0, num_rounds - max(warmup_rounds, 1) + 1)


def resolve_noise(
    settings: PrivacySettings, public_size: int, num_exchanges: int, expertise_rule: str | None
) -> PrivacyNoise | None:
    """The noise of a run with so many exchanges (`times`), None where there is to be none at all.

    `kind` is what the method takes for expertise, None where it has no such thing.
    """
    if settings.labels == "off":
        return None
    if settings.changed_rows is not None and settings.changed_rows > public_size:
        raise RequestError(
            f"privacy.changed_rows is {settings.changed_rows} (configuration): it must be at most {public_size}, the "
            "size of the public set"
        )
    expertise = resolve_expertise_mechanism(settings, expertise_rule)
    label_epsilon, multiplier = resolve_noise_parameters(
        settings, expertise, settings.changed_rows or public_size, num_exchanges
    )
    if label_epsilon < MIN_LABEL_EPSILON:
        raise RequestError(
            f"a budget of {label_epsilon:.2g} for a label tells nothing at all (privacy): give more, or share fewer "
            "public examples in fewer rounds"
        )
    return PrivacyNoise(
        label_mechanism=settings.labels,
        expertise_mechanism=expertise,
        label_epsilon=label_epsilon,
        noise_multiplier=multiplier,
        unit=settings.unit,
        changed_rows=settings.changed_rows,
        delta=settings.delta,
        max_epsilon=settings.max_epsilon,
    )


def resolve_expertise_mechanism(settings: PrivacySettings, expertise_rule: str | None) -> ExpertiseMechanism:
    """How expertise is told; where a method has none to tell, not at all."""
    if expertise_rule in ("count", "count-confidence") and settings.expertise in ("gaussian", "histogram"):
        raise RequestError(
            f"{expertise_rule} has no bound that holds for every client, so no noise could hide it (privacy.expertise): use "
            "none, or the expertise frequency or entropy"
        )
    if settings.expertise == "none" or expertise_rule not in ("frequency", "entropy"):
        return "none"
    if settings.expertise == "auto":
        return "histogram" if expertise_rule == "frequency" else "gaussian"
    if settings.expertise == "histogram" and expertise_rule != "frequency":
        raise RequestError(
            f"a histogram says nothing of {expertise_rule} (privacy.expertise): use gaussian or none, or the expertise frequency"
        )
    return settings.expertise


def resolve_noise_parameters(
    settings: PrivacySettings, expertise_mechanism: ExpertiseMechanism, max_changed_labels: int, num_exchanges: int
) -> tuple[float, float]:
    """The budget of a label and the noise multiplier, as they are given or as a whole budget allows."""
    if settings.epsilon == "inf":
        return math.inf, 0.0
    if settings.epsilon is not None:
        gaussians = {"none": 0, "histogram": 1, "gaussian": num_exchanges}[expertise_mechanism]
        share = 1.0 if expertise_mechanism == "none" else settings.label_share
        # Where nothing is exchanged nothing is spent, whatever the noise.
        return calibrate_noise(
            settings.epsilon, settings.delta, max(num_exchanges, 1) * max_changed_labels, max(gaussians, 1), share
        )
    if expertise_mechanism != "none" and settings.noise_multiplier is None:
        raise RequestError(
            f"privacy.label_epsilon is given, but no privacy.noise_multiplier for {expertise_mechanism} noise (privacy): set it, "
            "or privacy.epsilon alone, or privacy.expertise=none"
        )
    label_epsilon = math.inf if settings.label_epsilon in (None, "inf") else float(settings.label_epsilon or 0)
    return label_epsilon, (settings.noise_multiplier or 0.0) if expertise_mechanism != "none" else 0.0


def calibrate_noise(
    epsilon: float, delta: float, num_label_releases: int, num_gaussian_releases: int, label_share: float
) -> tuple[float, float]:
    """The budget of a label and the noise multiplier with which so many releases come to `epsilon`, and not above.

    Of what is spent (as rho), `label_share` goes to labels; with a share of 1 there is no Gaussian noise to pay for.
    """

    def parts(rho: float) -> tuple[float, float]:
        label = bisect_largest(
            lambda budget: pure_dp_rho(budget) <= label_share * rho / num_label_releases,
            0.0,
            2 + rho / num_label_releases,
        )
        return label, math.inf if label_share == 1 else math.sqrt(num_gaussian_releases / (2 * (1 - label_share) * rho))

    def total(rho: float) -> float:
        label, multiplier = parts(rho)
        noisy = [Release(1, "gaussian", num_gaussian_releases, mu=1 / multiplier)] if label_share < 1 else []
        return total_epsilon([Release(1, "labels", num_label_releases, epsilon=label), *noisy], delta)

    highest = 1.0
    while zcdp_epsilon(highest, delta) < epsilon:
        highest *= 2
    if label_share == 1:
        # Few labels may cost no more than the sum of their budgets.
        highest = max(highest, num_label_releases * pure_dp_rho(epsilon / num_label_releases))
    label, multiplier = parts(bisect_largest(lambda rho: total(rho) <= epsilon, 0.0, 2 * highest))
    return label, 0.0 if label_share == 1 else multiplier


def bisect_largest(predicate: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number between two for which something holds that holds for all below it, by halving."""
    for _ in range(MAX_BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if predicate(middle) else (low, middle)
    return low


def require_planned_budget(noise: PrivacyNoise, planned_epsilon: float) -> None:
    """Refuse a run that is going to spend more than it may."""
    if noise.max_epsilon is not None and planned_epsilon > noise.max_epsilon:
        raise RequestError(
            f"the planned total epsilon of {planned_epsilon:.6g} is above the limit of {noise.max_epsilon:g} "
            "(privacy.max_epsilon, --dp-max-eps): share fewer public examples, play fewer rounds, or add more noise"
        )


def require_budget(ledger: Sequence[Release], new_releases: Iterable[Release], noise: PrivacyNoise) -> None:
    """Refuse a release that would bring a client above what it may spend, before it is drawn."""
    if noise.max_epsilon is None:
        return
    total = total_epsilon([*ledger, *new_releases], noise.delta)
    if total > noise.max_epsilon:
        raise RequestError(
            f"the next message would bring a client's total epsilon to {total:.6g}, above the limit of "
            f"{noise.max_epsilon:g} (privacy.max_epsilon): nothing was sent; raise the limit or stop here"
        )
