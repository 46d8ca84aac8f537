"""The noise of a run: what the section `privacy` comes to once everything is known that anybody may know.

It depends on the configuration, the size of the public set and the number of exchanges, never on anybody's data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.cotraining.expertise import highest_expertise
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.accounting import Release, concentrated_epsilon, label_rho, total_epsilon
from fedmosaic_cli.labels.privacy.mechanisms import (
    BITS_OF_A_LABEL,
    flip_probability,
    keep_probability,
    other_probability,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fedmosaic_cli.engine.train_settings import PrivacySettings

Expertise = Literal["none", "gaussian", "histogram"]
LEAST_LABEL_EPSILON = 1e-9
"""With less than this, a label cannot be told from a guess in double precision."""
HALVINGS = 200


@dataclass(frozen=True)
class Noise:
    """How labels and expertise are told. Without noise `label_epsilon` is infinite and `noise_multiplier` is 0.

    `noise_multiplier` is the standard deviation of Gaussian noise in units of the sensitivity.
    """

    labels: Literal["krr", "xor"]
    expertise: Expertise
    label_epsilon: float
    noise_multiplier: float
    unit: Literal["client", "record-assumed"] = "client"
    changed_rows: int | None = None
    delta: float = 1e-5
    max_epsilon: float | None = None

    def keep(self, num_classes: int) -> float:
        """How often `krr` tells a label as it is."""
        return keep_probability(self.label_epsilon, num_classes)

    def other(self, num_classes: int) -> float:
        """How often it tells one certain other label."""
        return other_probability(self.label_epsilon, num_classes)

    def flip(self) -> float:
        """How often `xor` flips a bit."""
        return flip_probability(self.label_epsilon, BITS_OF_A_LABEL)

    def rows(self, public_size: int) -> int:
        """How many public labels may be others for somebody else."""
        return public_size if self.changed_rows is None else self.changed_rows

    def sigma_histogram(self, size: int) -> float:
        """The noise on each share of a client's histogram, which has `size` examples behind it.

        Two histograms of shares are at most sqrt(2) apart; with one record replaced, sqrt(2) / size.
        """
        apart = math.sqrt(2) / (max(size, 1) if self.unit == "record-assumed" else 1)
        return self.noise_multiplier * apart

    def sigma_scores(self, public_size: int, high: float) -> float:
        """The noise on each of `public_size` values between 0 and `high`.

        All of them may change by all there is. This holds for a record too: whoever vouches for labels says nothing
        about how sure a network is of them, and one record moves that everywhere.
        """
        return self.noise_multiplier * high * math.sqrt(public_size)

    def releases(self, number: int, size: int, public_size: int, high: float, first: bool) -> list[Release]:
        """What a client lets go with its message in round `number`; its histogram only with the `first`."""
        told = [Release(number, self.labels, self.rows(public_size), epsilon=self.label_epsilon)]
        mu = 1 / self.noise_multiplier if self.noise_multiplier else math.inf
        if self.expertise == "gaussian":
            told.append(Release(number, "gaussian", 1, mu=mu, sigma=self.sigma_scores(public_size, high)))
        if self.expertise == "histogram" and first:
            told.append(Release(number, "histogram", 1, mu=mu, sigma=self.sigma_histogram(size)))
        return told

    def planned(self, times: int, size: int, public_size: int, high: float) -> list[tuple[Release, int]]:
        """What a client lets go that takes part in all of so many exchanges, and in how many of them each."""
        if not times:
            return []
        every = self.releases(1, size, public_size, high, first=True)
        return [(each, 1 if each.mechanism == "histogram" else times) for each in every]

    def planned_total(self, times: int, public_size: int) -> float:
        """The epsilon that such a client comes to. It depends on nothing that only the data could tell."""
        every = self.planned(times, 1, public_size, 1.0)
        return total_epsilon([replace(each, count=each.count * number) for each, number in every], self.delta)


def expertise_bound(kind: str | None, num_classes: int) -> float:
    """The upper end of what a client may claim: 1 for shares, log C for entropies."""
    return highest_expertise(kind or "uniform", num_classes)


def exchanges(rounds: int, warmup_rounds: int) -> int:
    """In how many rounds clients tell their labels."""
    return max(0, rounds - max(warmup_rounds, 1) + 1)


def resolve_noise(settings: PrivacySettings, public_size: int, times: int, kind: str | None) -> Noise | None:
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
    expertise = expertise_noise(settings, kind)
    label_epsilon, multiplier = amounts(settings, expertise, settings.changed_rows or public_size, times)
    if label_epsilon < LEAST_LABEL_EPSILON:
        raise RequestError(
            f"a budget of {label_epsilon:.2g} for a label tells nothing at all (privacy): give more, or share fewer "
            "public examples in fewer rounds"
        )
    return Noise(
        labels=settings.labels,
        expertise=expertise,
        label_epsilon=label_epsilon,
        noise_multiplier=multiplier,
        unit=settings.unit,
        changed_rows=settings.changed_rows,
        delta=settings.delta,
        max_epsilon=settings.max_epsilon,
    )


def expertise_noise(settings: PrivacySettings, kind: str | None) -> Expertise:
    """How expertise is told; where a method has none to tell, not at all."""
    if kind in ("count", "count-confidence") and settings.expertise in ("gaussian", "histogram"):
        raise RequestError(
            f"{kind} has no bound that holds for every client, so no noise could hide it (privacy.expertise): use "
            "none, or the expertise frequency or entropy"
        )
    if settings.expertise == "none" or kind not in ("frequency", "entropy"):
        return "none"
    if settings.expertise == "auto":
        return "histogram" if kind == "frequency" else "gaussian"
    if settings.expertise == "histogram" and kind != "frequency":
        raise RequestError(
            f"a histogram says nothing of {kind} (privacy.expertise): use gaussian or none, or the expertise frequency"
        )
    return settings.expertise


def amounts(settings: PrivacySettings, expertise: Expertise, rows: int, times: int) -> tuple[float, float]:
    """The budget of a label and the noise multiplier, as they are given or as a whole budget allows."""
    if settings.epsilon == "inf":
        return math.inf, 0.0
    if settings.epsilon is not None:
        gaussians = {"none": 0, "histogram": 1, "gaussian": times}[expertise]
        share = 1.0 if expertise == "none" else settings.label_share
        # Where nothing is exchanged nothing is spent, whatever the noise.
        return calibrated(settings.epsilon, settings.delta, max(times, 1) * rows, max(gaussians, 1), share)
    if expertise != "none" and settings.noise_multiplier is None:
        raise RequestError(
            f"privacy.label_epsilon is given, but no privacy.noise_multiplier for {expertise} noise (privacy): set it, "
            "or privacy.epsilon alone, or privacy.expertise=none"
        )
    label_epsilon = math.inf if settings.label_epsilon in (None, "inf") else float(settings.label_epsilon or 0)
    return label_epsilon, (settings.noise_multiplier or 0.0) if expertise != "none" else 0.0


def calibrated(epsilon: float, delta: float, labels: int, gaussians: int, label_share: float) -> tuple[float, float]:
    """The budget of a label and the noise multiplier with which so many releases come to `epsilon`, and not above.

    Of what is spent (as rho), `label_share` goes to labels; with a share of 1 there is no Gaussian noise to pay for.
    """

    def parts(rho: float) -> tuple[float, float]:
        label = largest(lambda budget: label_rho(budget) <= label_share * rho / labels, 0.0, 2 + rho / labels)
        return label, math.inf if label_share == 1 else math.sqrt(gaussians / (2 * (1 - label_share) * rho))

    def total(rho: float) -> float:
        label, multiplier = parts(rho)
        noisy = [Release(1, "gaussian", gaussians, mu=1 / multiplier)] if label_share < 1 else []
        return total_epsilon([Release(1, "labels", labels, epsilon=label), *noisy], delta)

    highest = 1.0
    while concentrated_epsilon(highest, delta) < epsilon:
        highest *= 2
    if label_share == 1:
        # Few labels may cost no more than the sum of their budgets.
        highest = max(highest, labels * label_rho(epsilon / labels))
    label, multiplier = parts(largest(lambda rho: total(rho) <= epsilon, 0.0, 2 * highest))
    return label, 0.0 if label_share == 1 else multiplier


def largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number between two for which something holds that holds for all below it, by halving."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def check_planned(noise: Noise, total: float) -> None:
    """Refuse a run that is going to spend more than it may."""
    if noise.max_epsilon is not None and total > noise.max_epsilon:
        raise RequestError(
            f"the planned total epsilon of {total:.6g} is above the limit of {noise.max_epsilon:g} "
            "(privacy.max_epsilon, --dp-max-eps): share fewer public examples, play fewer rounds, or add more noise"
        )


def check_budget(ledger: Sequence[Release], following: Iterable[Release], noise: Noise) -> None:
    """Refuse a release that would bring a client above what it may spend, before it is drawn."""
    if noise.max_epsilon is None:
        return
    total = total_epsilon([*ledger, *following], noise.delta)
    if total > noise.max_epsilon:
        raise RequestError(
            f"the next message would bring a client's total epsilon to {total:.6g}, above the limit of "
            f"{noise.max_epsilon:g} (privacy.max_epsilon): nothing was sent; raise the limit or stop here"
        )
