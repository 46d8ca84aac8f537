"""Whom to trust: how much a client's vote on each public example weighs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Keeps every weight positive: where no client claims any expertise, the vote falls back to the plain majority.
FLOOR = 1e-6


def frequency_expertise(labels: Tensor, class_counts: Tensor) -> Tensor:
    """E[j] = n(y_j) / n + floor: the share of the client's own data in the class it predicts for example j.

    `labels` [examples] are the client's predictions, `class_counts` [classes] its training histogram.
    The range is [floor, 1 + floor].
    """
    share = class_counts.double() / class_counts.sum()
    return share[labels] + FLOOR


def entropy_expertise(log_probs: Tensor) -> Tensor:
    """E[j] = log C - H(p_j) + floor: how far the prediction for example j is from a guess.

    `log_probs` is [examples, classes]. The range is [floor, log C + floor]; the surer, the larger.
    """
    log_probs = log_probs.double()
    # 0 * log 0 is 0: a class ruled out entirely adds no entropy.
    entropy = -(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=1)
    return (math.log(log_probs.shape[1]) - entropy).clamp(min=0.0) + FLOOR


def uniform_expertise(labels: Tensor) -> Tensor:
    """E[j] = 1: every vote counts the same, as in FedCT."""
    return labels.double().fill_(1.0)


def expertise_range(kind: str, num_classes: int) -> tuple[float, float]:
    """The bounds that a client's expertise of this kind cannot leave, known to both ends of the wire."""
    if kind == "uniform":
        return 1.0, 1.0
    return FLOOR, FLOOR + {"frequency": 1.0, "entropy": math.log(num_classes)}[kind]
