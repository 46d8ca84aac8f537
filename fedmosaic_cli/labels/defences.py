"""What a server can do against voters that it cannot trust: limit what a vote weighs, remember who agreed with others.

None of it helps against a third of the clients, or more, that work together and know the others' votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    LabelArray = NDArray[Any]
    FloatArray = NDArray[np.float64]

MAX_RELATIVE_WEIGHT = 5.0
"""A vote weighs at most so many times the client's mean, once weights are normalised."""
AGREEMENT_DECAY = 0.9
"""The share of what is remembered of a client in what is remembered after a round."""


@dataclass(frozen=True)
class VotingRules:
    """How votes are counted, in this order; as it stands, as in the paper."""

    normalise: bool = False
    cap_share: float | None = None
    vote: Literal["weighted", "majority", "trimmed"] = "weighted"
    trim: float = 0.1


PAPER_VOTING_RULES = VotingRules()


def as_column(weights: FloatArray) -> FloatArray:
    """Weights as something that scales the rows of a matrix."""
    return weights[:, None] if weights.ndim == 1 else weights


def vote_weights(labels: LabelArray, weights: FloatArray) -> FloatArray:
    """What a client's votes on each example weigh together: one vote where labels are classes, several for bits."""
    if labels.ndim == 1:
        return weights if weights.ndim == 1 else label_weights(labels, weights)
    together: FloatArray = (labels * as_column(weights)).sum(axis=1)
    return together


def label_weights(labels: LabelArray, weights: FloatArray) -> FloatArray:
    """From weights [1 or examples, classes] those of each example's class."""
    rows = np.arange(len(labels)) if len(weights) > 1 else 0
    found: FloatArray = weights[rows, labels]
    return found


def normalised_weights(labels: LabelArray, weights: FloatArray) -> FloatArray:
    """Weights in units of the client's own mean, so that all clients weigh the same; none more than `HEAVIEST`."""
    mean = vote_weights(labels, weights).mean() if len(labels) else 0.0
    return np.minimum(weights / mean, MAX_RELATIVE_WEIGHT) if mean > 0 else np.zeros_like(weights)


def capped_weights(labels: LabelArray, weights: FloatArray, totals: FloatArray, max_share: float) -> FloatArray:
    """Weights cut so that the client has at most `share` of the total in a row. What is cut goes to nobody."""
    own = vote_weights(labels, weights)
    factor = np.minimum(1.0, np.divide(max_share * totals, own, out=np.ones_like(own), where=own > 0))
    return weights * (factor if weights.ndim == 1 else factor[:, None])


def trimmed_vote_sums(
    votes: Sequence[tuple[LabelArray, FloatArray]], sums: FloatArray, trim_fraction: float
) -> FloatArray:
    """The sums of votes without the heaviest, of each example and class as many as the share `trim` of all clients."""
    dropped = int(trim_fraction * len(votes) + 1e-9)  # 0.29 * 100 is a little less than 29
    if not dropped:
        return sums
    rows = np.arange(len(sums))
    heaviest = np.zeros((dropped, *sums.shape))
    for labels, weights in votes:
        single = np.zeros_like(sums)
        if labels.ndim == 1:
            single[rows, labels] = vote_weights(labels, weights)
        else:
            single += labels * as_column(weights)
        for place in heaviest:  # the lightest of both stays behind, and goes on to the next place
            place[:], single = np.maximum(place, single), np.minimum(place, single)
    rest: FloatArray = sums - heaviest.sum(axis=0)
    # What is left of a sum after all its parts were taken away is rounding.
    return np.where(rest < 1e-9 * sums, 0.0, rest)


def update_agreement_ema(previous: Mapping[int, float], agreement: Mapping[int, float]) -> dict[int, float]:
    """How far each client agreed with the others so far: recent rounds count more. Who was silent is as before."""
    after = dict(previous)
    for client, now in agreement.items():
        after[client] = AGREEMENT_DECAY * previous[client] + (1 - AGREEMENT_DECAY) * now if client in previous else now
    return after


def client_reputations(
    agreement: Mapping[int, float], num_classes: int, min_reputation: float = 0.0
) -> dict[int, float]:
    """r_i = (a_i - 1/C) / (median - 1/C) within [floor, 1]: 0 for guessing, 1 for agreeing as most do.

    Where most do not even agree better than by guessing, nobody can be told apart and all have 1.
    """
    guess = 1 / num_classes
    usual = median(agreement.values()) - guess if agreement else 0.0
    if usual <= 0:
        return dict.fromkeys(agreement, 1.0)
    return {client: min(1.0, max(min_reputation, (value - guess) / usual)) for client, value in agreement.items()}
