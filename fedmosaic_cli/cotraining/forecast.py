"""What an exchange of labels is expected to bring to each client, from the votes and the client's own data.

The model says which fraction of a client's errors the exchange corrects. Its features are fractions or functions of
counts, so that they are comparable between data sets. Neither true labels of the public set nor test examples are used.
All functions compute in float64. See docs/trust.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedmosaic_cli.cotraining.vote_shares import (
    MIN_Z,
    ConfidenceVotes,
    agreement_kappa,
    agreement_z_by_client,
    contradicts_others,
    sums_without,
    vote_sums,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

MIN_USEFUL_GAIN = 0.005
"""Gain in accuracy from which collaboration is worthwhile."""
Advice = Literal["collaborate", "little to expect", "stay local"]


@dataclass(frozen=True)
class VoteEvidence:
    """What the votes say about the value of the exchange for one client.

    Attributes:
        coverage: `vote_coverage` of the client's confidences.
        agreement: Agreement beyond chance of the client with the others; see `vote_shares.agreement_kappa`.
        agreement_z: The same agreement in standard deviations from chance; see `vote_shares.agreement_z`.
        median_z: The median of `agreement_z` over all clients.
        class_reliability: Reliability of the other clients' votes for each class [classes]; NaN without votes.
        reliability: Mean of `class_reliability` over the client's training examples; a class without votes counts 0.
        public_size: Number of public examples.
    """

    coverage: float
    agreement: float
    agreement_z: float
    median_z: float
    class_reliability: FloatArray
    reliability: float
    public_size: int

    @property
    def guard(self) -> str:
        """Why the client keeps its own model whatever the student predicts; "" if nothing speaks against it."""
        if self.median_z < MIN_Z:
            return "voters do not agree with each other"
        return "contradicts the others" if contradicts_others(self.agreement_z, self.median_z) else ""


def vote_coverage(confidence: FloatArray) -> float:
    """(sum_u e_u)^2 / (N sum_u e_u^2): the fraction of the public set for which the client's votes count.

    1 if all confidences are equal, 1/N if one example has all of it, 0 without any.
    """
    squares = len(confidence) * float((confidence**2).sum())
    return float(confidence.sum()) ** 2 / squares if squares > 0 else 0.0


def confirmed_votes(votes: ConfidenceVotes, sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weight of a client's votes per class, of those that the others confirm and of all [classes].

    The others confirm a vote if it is for the leading class of their votes.

    Args:
        votes: The votes of the client.
        sums: `vote_sums` of all clients, this one included.
    """
    num_classes, weights = sums.shape[1], votes.weights()
    is_confirmed = sums_without(votes, sums).argmax(axis=1) == votes.labels
    confirmed, total = (
        np.bincount(votes.labels, weights * factor, minlength=num_classes).astype(np.float64)
        for factor in (is_confirmed, 1.0)
    )
    return confirmed, total


def vote_evidence(
    votes: Mapping[int, ConfidenceVotes], class_counts: Mapping[int, IntArray]
) -> dict[int, VoteEvidence]:
    """Return what the votes say for each client that has voted.

    Args:
        votes: Votes by client, at least one.
        class_counts: Training examples per class by client [classes].
    """
    num_classes = len(next(iter(class_counts.values())))
    sums = vote_sums(votes, num_classes)
    z = agreement_z_by_client(votes, sums)
    tallies = {client: confirmed_votes(own, sums) for client, own in votes.items()}
    confirmed, total = (sum(parts, np.zeros(num_classes)) for parts in zip(*tallies.values(), strict=True))
    evidence = {}
    for client, own in votes.items():
        others_confirmed, others_total = confirmed - tallies[client][0], total - tallies[client][1]
        has_votes = others_total > 1e-9 * max(float(total.sum()), 1.0)
        reliability = np.divide(others_confirmed, others_total, out=np.full(num_classes, np.nan), where=has_votes)
        counts = class_counts[client]
        evidence[client] = VoteEvidence(
            coverage=vote_coverage(own.confidence),
            agreement=agreement_kappa(own, sums, 1.0),
            agreement_z=z[client],
            median_z=median(z.values()),
            class_reliability=reliability,
            reliability=float(counts @ np.nan_to_num(reliability) / counts.sum()),
            public_size=len(sums),
        )
    return evidence


class ExpectedGain(NamedTuple):
    """An expected gain in accuracy, as a fraction, and its prediction interval."""

    mean: float
    low: float
    high: float

    @property
    def advice(self) -> Advice:
        """What to do: collaborate if the gain is expected to be useful, stay local if a guard decides."""
        if self == NO_GAIN:
            return "stay local"
        return "collaborate" if self.mean >= MIN_USEFUL_GAIN else "little to expect"


NO_GAIN = ExpectedGain(0.0, 0.0, 0.0)
"""The gain of a client that keeps its own model."""


class ResidualRange(NamedTuple):
    """Quantiles of observed minus expected gain on settings without influence on the model.

    `below` is the expected gain up to which they apply.
    """

    below: float
    low: float
    high: float


@dataclass(frozen=True)
class ForecastModel:
    """Expected gain = (1 - a) phi, where a is the client's own accuracy and phi the fraction of errors corrected.

    phi is a constant plus a linear function of features, limited to [least_fraction, 1]. It does not fall to 0, because
    the gate rejects what does not help.

    Attributes:
        least_fraction: The lower limit of phi.
        constant: The constant of phi.
        coefficients: The coefficients of phi by feature; see `forecast_features`.
        residuals: Quantiles of errors for single clients, by increasing expected gain. The last one has no limit.
        mean_residuals: The same for the mean over the clients of a federation.
    """

    least_fraction: float
    constant: float
    coefficients: Mapping[str, float]
    residuals: tuple[ResidualRange, ...]
    mean_residuals: tuple[ResidualRange, ...]

    def corrected_fraction(self, features: Mapping[str, float]) -> float:
        """phi, the fraction of the client's errors that the exchange corrects."""
        linear = self.constant + sum(value * features[name] for name, value in self.coefficients.items())
        return min(max(linear, self.least_fraction), 1.0)

    def expected_gain(self, features: Mapping[str, float], own_accuracy: float) -> ExpectedGain:
        """Return the expected gain of a client.

        Args:
            features: `forecast_features` of the client.
            own_accuracy: Accuracy of the client's own model on held-out examples.
        """
        return with_residuals((1 - own_accuracy) * self.corrected_fraction(features), self.residuals)

    def expected_mean(self, gains: Sequence[ExpectedGain]) -> ExpectedGain:
        """Return the expected mean gain of a federation; no gain is certain if all clients keep their own model."""
        if all(gain == NO_GAIN for gain in gains):
            return NO_GAIN
        return with_residuals(fmean(gain.mean for gain in gains), self.mean_residuals)


def with_residuals(mean: float, residuals: Sequence[ResidualRange]) -> ExpectedGain:
    """Return an expected gain with the interval of the first range that contains it."""
    found = next((each for each in residuals if mean < each.below), residuals[-1])
    return ExpectedGain(mean, mean + found.low, mean + found.high)


def forecast_features(evidence: VoteEvidence, class_counts: IntArray) -> dict[str, float]:
    """Return the features of a client that a model may use.

    Args:
        evidence: What the votes say for the client.
        class_counts: The client's training examples [classes].
    """
    return {
        "reliability": evidence.reliability,
        "inverse_root_examples": float(class_counts.sum()) ** -0.5,
        "coverage": evidence.coverage,
        "agreement": evidence.agreement,
        "log10_public": math.log10(evidence.public_size),
    }
