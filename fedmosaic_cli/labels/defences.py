"""Defences against malicious voters: limits on vote weights, and reputations from past agreement.

They do not withstand a third or more of the clients colluding with knowledge of the other votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    LabelArray = NDArray[Any]
    FloatArray = NDArray[np.float64]

MAX_RELATIVE_WEIGHT = 5.0
"""Upper bound of a normalised weight."""
AGREEMENT_DECAY = 0.9
"""Weight of past rounds in the moving average of a client's agreement."""


@dataclass(frozen=True)
class VotingRules:
    """Steps of vote counting, in this order. The defaults are those of the paper."""

    normalise: bool = False
    cap_share: float | None = None
    vote: Literal["weighted", "majority", "trimmed"] = "weighted"
    trim: float = 0.1


PAPER_VOTING_RULES = VotingRules()


def as_column(weights: FloatArray) -> FloatArray:
    """Weights that broadcast over the rows of a matrix."""
    return weights[:, None] if weights.ndim == 1 else weights


def vote_weights(labels: LabelArray, weights: FloatArray) -> FloatArray:
    """The total weight of a client's votes on each example: one vote for a class, several for bits."""
    if labels.ndim == 1:
        if weights.ndim == 1:
            return weights
        own: FloatArray = weights[np.arange(len(labels)) if len(weights) > 1 else 0, labels]
        return own
    total: FloatArray = (labels * as_column(weights)).sum(axis=1)
    return total


def vote_matrix(labels: LabelArray, weights: FloatArray, num_classes: int) -> FloatArray:
    """The votes of one client [examples, classes]."""
    if labels.ndim == 2:
        return np.asarray(labels * as_column(weights), np.float64)
    matrix = np.zeros((len(labels), num_classes))
    matrix[np.arange(len(labels)), labels] = vote_weights(labels, weights)
    return matrix


def mean_vote_weight(labels: LabelArray, weights: FloatArray) -> float:
    """The mean over the examples of a client's vote weights; 0 without examples."""
    return float(vote_weights(labels, weights).mean()) if len(labels) else 0.0


def normalised_weights(labels: LabelArray, weights: FloatArray) -> FloatArray:
    """Weights divided by the client's mean, at most MAX_RELATIVE_WEIGHT, so that clients have equal influence."""
    mean = mean_vote_weight(labels, weights)
    return np.minimum(weights / mean, MAX_RELATIVE_WEIGHT) if mean > 0 else np.zeros_like(weights)


def capped_weights(labels: LabelArray, weights: FloatArray, totals: FloatArray, max_share: float) -> FloatArray:
    """Weights reduced so that the client has at most `max_share` of the total weight of every example."""
    own = vote_weights(labels, weights)
    factor = np.minimum(1.0, np.divide(max_share * totals, own, out=np.ones_like(own), where=own > 0))
    return weights * (factor if weights.ndim == 1 else factor[:, None])


def num_trimmed_votes(trim_fraction: float, num_votes: int) -> int:
    """The number of votes that trimming drops per example and class."""
    return int(trim_fraction * num_votes + 1e-9)  # 0.29 * 100 is slightly below 29


def update_agreement_ema(previous: Mapping[int, float], agreement: Mapping[int, float]) -> dict[int, float]:
    """The moving average of each client's agreement. Clients without a vote keep their value."""
    updated = dict(previous)
    for client, new in agreement.items():
        old = previous.get(client)
        updated[client] = new if old is None else AGREEMENT_DECAY * old + (1 - AGREEMENT_DECAY) * new
    return updated


def client_reputations(
    agreement: Mapping[int, float], num_classes: int, min_reputation: float = 0.0
) -> dict[int, float]:
    """r_i = (a_i - 1/C) / (median(a) - 1/C), clipped to [min_reputation, 1].

    All reputations are 1 if the median agreement is not above chance.

    Args:
        agreement: a, the average agreement of each client with the others.
        num_classes: C.
        min_reputation: Lower bound.
    """
    chance = 1 / num_classes
    typical = median(agreement.values()) - chance if agreement else 0.0
    if typical <= 0:
        return dict.fromkeys(agreement, 1.0)
    return {client: min(1.0, max(min_reputation, (value - chance) / typical)) for client, value in agreement.items()}
