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

    Labels = NDArray[Any]
    Floats = NDArray[np.float64]

HEAVIEST = 5.0
"""A vote weighs at most so many times the client's mean, once weights are normalised."""
MEMORY = 0.9
"""The share of what is remembered of a client in what is remembered after a round."""


@dataclass(frozen=True)
class Rules:
    """How votes are counted, in this order; as it stands, as in the paper."""

    normalise: bool = False
    cap_share: float | None = None
    vote: Literal["weighted", "majority", "trimmed"] = "weighted"
    trim: float = 0.1


PAPER = Rules()


def column(weights: Floats) -> Floats:
    """Weights as something that scales the rows of a matrix."""
    return weights[:, None] if weights.ndim == 1 else weights


def cast(labels: Labels, weights: Floats) -> Floats:
    """What a client's votes on each example weigh together: one vote where labels are classes, several for bits."""
    if labels.ndim == 1:
        return weights if weights.ndim == 1 else of_classes(labels, weights)
    together: Floats = (labels * column(weights)).sum(axis=1)
    return together


def of_classes(labels: Labels, weights: Floats) -> Floats:
    """From weights [1 or examples, classes] those of each example's class."""
    rows = np.arange(len(labels)) if len(weights) > 1 else 0
    found: Floats = weights[rows, labels]
    return found


def normalised(labels: Labels, weights: Floats) -> Floats:
    """Weights in units of the client's own mean, so that all clients weigh the same; none more than `HEAVIEST`."""
    mean = cast(labels, weights).mean() if len(labels) else 0.0
    return np.minimum(weights / mean, HEAVIEST) if mean > 0 else np.zeros_like(weights)


def capped(labels: Labels, weights: Floats, totals: Floats, share: float) -> Floats:
    """Weights cut so that the client has at most `share` of the total in a row. What is cut goes to nobody."""
    own = cast(labels, weights)
    factor = np.minimum(1.0, np.divide(share * totals, own, out=np.ones_like(own), where=own > 0))
    return weights * (factor if weights.ndim == 1 else factor[:, None])


def trimmed(votes: Sequence[tuple[Labels, Floats]], sums: Floats, trim: float) -> Floats:
    """The sums of votes without the heaviest, of each example and class as many as the share `trim` of all clients."""
    dropped = int(trim * len(votes) + 1e-9)  # 0.29 * 100 is a little less than 29
    if not dropped:
        return sums
    rows = np.arange(len(sums))
    heaviest = np.zeros((dropped, *sums.shape))
    for labels, weights in votes:
        single = np.zeros_like(sums)
        if labels.ndim == 1:
            single[rows, labels] = cast(labels, weights)
        else:
            single += labels * column(weights)
        for place in heaviest:  # the lightest of both stays behind, and goes on to the next place
            place[:], single = np.maximum(place, single), np.minimum(place, single)
    rest: Floats = sums - heaviest.sum(axis=0)
    # What is left of a sum after all its parts were taken away is rounding.
    return np.where(rest < 1e-9 * sums, 0.0, rest)


def remembered(before: Mapping[int, float], agreement: Mapping[int, float]) -> dict[int, float]:
    """How far each client agreed with the others so far: recent rounds count more. Who was silent is as before."""
    after = dict(before)
    for client, now in agreement.items():
        after[client] = MEMORY * before[client] + (1 - MEMORY) * now if client in before else now
    return after


def reputations(agreement: Mapping[int, float], num_classes: int, floor: float = 0.0) -> dict[int, float]:
    """r_i = (a_i - 1/C) / (median - 1/C) within [floor, 1]: 0 for guessing, 1 for agreeing as most do.

    Where most do not even agree better than by guessing, nobody can be told apart and all have 1.
    """
    guess = 1 / num_classes
    usual = median(agreement.values()) - guess if agreement else 0.0
    if usual <= 0:
        return dict.fromkeys(agreement, 1.0)
    return {client: min(1.0, max(floor, (value - guess) / usual)) for client, value in agreement.items()}
