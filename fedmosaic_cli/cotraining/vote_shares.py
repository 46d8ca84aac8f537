"""Votes with confidence, summed to class shares for every public example, and checks of whether they mean anything.

N is the number of public examples, C the number of classes. Client i votes for class y_iu of example u with confidence
e_iu >= 0. All functions compute in float64. See docs/trust.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

MIN_MEAN_CONFIDENCE = 1e-6
MIN_Z = 3.0
"""Standard deviations above chance from which an agreement counts."""
MIN_RELATIVE_Z = 0.3
"""Fraction of the median z below which a client contradicts the others."""
ROBUST_ITERATIONS = 5
MIN_MEDIAN_KAPPA = 1e-3


@dataclass(frozen=True)
class ConfidenceVotes:
    """The votes of one client.

    Attributes:
        labels: y, the class of each example [examples]; or bits [examples, classes], of which noise may set several.
        confidence: e, the confidence of each vote [examples], at least 0.
    """

    labels: IntArray
    confidence: FloatArray

    def weights(self, reputation: float = 1.0) -> FloatArray:
        """w_u = e_u / mean(e), so that no client gains influence by claiming a high confidence everywhere."""
        return reputation / max(float(self.confidence.mean()), MIN_MEAN_CONFIDENCE) * self.confidence

    def by_class(self, weights: FloatArray, num_classes: int) -> FloatArray:
        """Return the weight of each vote at its class [examples, classes], and 0 elsewhere."""
        voted = self.labels if self.labels.ndim == 2 else self.labels[:, None] == np.arange(num_classes)
        return voted * weights[:, None]


def vote_sums(
    votes: Mapping[int, ConfidenceVotes], num_classes: int, reputation: Mapping[int, float] | None = None
) -> FloatArray:
    """s_u(c) = sum_i w_iu [y_iu = c].

    Args:
        votes: Votes by client, at least one. They are summed in the order of client ids.
        num_classes: C.
        reputation: A factor of each client's votes; 1 by default.

    Returns:
        The sums [examples, classes].
    """
    sums = np.zeros((len(next(iter(votes.values())).labels), num_classes))
    for client in sorted(votes):
        own = votes[client]
        sums += own.by_class(own.weights((reputation or {}).get(client, 1.0)), num_classes)
    return sums


def sums_without(votes: ConfidenceVotes, sums: FloatArray, reputation: float = 1.0) -> FloatArray:
    """Return the sums of the other clients' votes [examples, classes].

    Args:
        votes: The votes of the client.
        sums: `vote_sums` of all clients, this one included.
        reputation: The client's factor in `sums`.
    """
    return sums - votes.by_class(votes.weights(reputation), sums.shape[1])


def sharpened_shares(sums: FloatArray, power: float) -> FloatArray:
    """t_u(c) = s_u(c)^power / sum_c' s_u(c')^power; uniform for an example whose sums are all 0.

    Args:
        sums: Sums of votes [examples, classes], at least 0. With confidences above 0 they are all 0 only if the
            reputation of every voter is 0.
        power: 1 keeps the shares of the votes, larger values favour the leading class.
    """
    highest = sums.max(axis=1, keepdims=True)
    scaled = np.divide(sums, highest, out=np.ones_like(sums), where=highest > 0) ** power
    shares: FloatArray = scaled / scaled.sum(axis=1, keepdims=True)
    return shares


def agreement_z(votes: ConfidenceVotes, sums_of_others: FloatArray) -> float:
    """How far a client's votes agree with the others, in standard deviations from independent votes.

    Mean and variance are the exact moments of the agreement under random permutations of the others' labels.

    Args:
        votes: The votes of the client.
        sums_of_others: Sums of the other clients' votes [examples, classes].

    Returns:
        z; 0 if the variance is 0.
    """
    count, num_classes = sums_of_others.shape
    if count < 2:
        return 0.0
    leaders = sums_of_others.argmax(axis=1)
    frequency = np.bincount(leaders, minlength=num_classes) / count
    confidence = votes.by_class(votes.confidence, num_classes)
    agreement = confidence[np.arange(count), leaders].sum()
    expected_rows = (confidence * frequency).sum(axis=1)
    expected = expected_rows.mean()
    centred = confidence - expected_rows[:, None] - confidence.mean(axis=0) + expected
    variance = count * (frequency * centred**2).sum() / (count - 1)
    return float((agreement - count * expected) / np.sqrt(variance)) if variance > 0 else 0.0


def agreement_z_by_client(votes: Mapping[int, ConfidenceVotes], sums: FloatArray) -> dict[int, float]:
    """Return `agreement_z` of each client with all others.

    Args:
        votes: Votes by client.
        sums: `vote_sums(votes)` without reputations.
    """
    return {client: agreement_z(own, sums_without(own, sums)) for client, own in votes.items()}


def contradicts_others(z: float, median_z: float) -> bool:
    """Return whether a client agrees with the others much less than they do with each other."""
    return median_z >= MIN_Z and z < min(MIN_Z, MIN_RELATIVE_Z * median_z)


def vote_reputations(votes: Mapping[int, ConfidenceVotes], num_classes: int) -> dict[int, float]:
    """Return a factor in [0, 1] for each client's votes: its agreement beyond chance, relative to the median.

    kappa_i = (a_i - b_i) / (1 - b_i), where a_i is the agreement with the leading class of the other clients, weighted
    by confidence, and b_i the agreement that independent votes with the same frequencies would have. The others are
    weighted by their own reputations, so the computation is repeated a few times.
    """
    reputation = dict.fromkeys(votes, 1.0)
    for _ in range(ROBUST_ITERATIONS):
        sums = vote_sums(votes, num_classes, reputation)
        kappa = {client: agreement_kappa(own, sums, reputation[client]) for client, own in votes.items()}
        typical = max(median(kappa.values()), MIN_MEDIAN_KAPPA)
        reputation = {client: min(1.0, max(0.0, value) / typical) for client, value in kappa.items()}
    return reputation


def agreement_kappa(votes: ConfidenceVotes, sums: FloatArray, reputation: float) -> float:
    """Agreement beyond chance of a client with the leading classes of the others; see `vote_reputations`."""
    num_classes = sums.shape[1]
    leaders = sums_without(votes, sums, reputation).argmax(axis=1)
    total = votes.confidence.sum()
    if total <= 0:
        return 0.0
    weights = votes.confidence / total
    agreement = weights[votes.labels == leaders].sum()
    own, common = (np.bincount(labels, weights, minlength=num_classes) for labels in (votes.labels, leaders))
    chance = float(own @ common)
    return float((agreement - chance) / (1 - chance)) if chance < 1 else 0.0


def holdout_z(predicted: IntArray, leaders: IntArray, num_classes: int) -> float:
    """How far predictions on held-out public examples agree with the votes, in standard deviations from chance.

    h = (a - b) / sqrt(max(b (1 - b), 1e-4) / n), where a is the agreement and b the agreement of independent labels
    with the same frequencies. Votes that cannot be predicted from the images are noise.

    Args:
        predicted: Classes that a student predicts [examples]; it has not seen the votes on these examples.
        leaders: Leading class of the votes [examples].
        num_classes: C.
    """
    if not len(leaders):
        return 0.0
    agreement = float((predicted == leaders).mean())
    shares = [np.bincount(labels, minlength=num_classes) / len(labels) for labels in (predicted, leaders)]
    chance = float(shares[0] @ shares[1])
    return (agreement - chance) / float(np.sqrt(max(chance * (1 - chance), 1e-4) / len(leaders)))


def effective_classes(shares: NDArray[Any]) -> float:
    """exp(H(mean_u t_u)): the number of classes that the shares cover; C if all are equally frequent."""
    mean = shares.mean(axis=0)
    return float(np.exp(-(mean * np.log(np.maximum(mean, 1e-300))).sum()))
