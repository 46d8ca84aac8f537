"""Whom to trust: how much a client's vote on each public example weighs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def frequency_expertise(labels: Tensor, class_counts: Tensor) -> Tensor:
    """E[j] = n(y_j) / n: the share of the client's own data in the class it predicts for example j.

    `labels` [examples] are the client's predictions, `class_counts` [classes] its training histogram.
    """
    share = class_counts.double() / class_counts.sum()
    return share[labels]


def entropy_expertise(log_probs: Tensor) -> Tensor:
    """E[j] = log C - H(p_j): how far the prediction for example j is from a guess.

    `log_probs` is [examples, classes]. The range is [0, log C]; the surer, the larger.
    """
    log_probs = log_probs.double()
    # 0 * log 0 is 0: a class ruled out entirely adds no entropy.
    entropy = -(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=1)
    return (math.log(log_probs.shape[1]) - entropy).clamp(min=0.0)


def count_expertise(labels: Tensor, class_counts: Tensor) -> Tensor:
    """E[j] = n(y_j): how many examples the client has of the class it predicts for example j.

    Unlike a frequency it tells a client that has seen much of a class from one that has seen nothing else.
    """
    return class_counts.double()[labels]


def count_confidence_expertise(log_probs: Tensor, labels: Tensor, class_counts: Tensor) -> Tensor:
    """E[j] = n(y_j) (log C - H(p_j)): much experience with the class, and sure of the example."""
    return count_expertise(labels, class_counts) * entropy_expertise(log_probs)


def uniform_expertise(labels: Tensor) -> Tensor:
    """E[j] = 1: every vote counts the same, as in FedCT."""
    return labels.double().fill_(1.0)


def expertise_scores(rule: str, log_probs: Tensor, labels: Tensor, class_counts: Tensor) -> Tensor:
    """Expertise of a kind, by name."""
    rules: dict[str, Callable[[], Tensor]] = {
        "frequency": lambda: frequency_expertise(labels, class_counts),
        "entropy": lambda: entropy_expertise(log_probs),
        "count": lambda: count_expertise(labels, class_counts),
        "count-confidence": lambda: count_confidence_expertise(log_probs, labels, class_counts),
        "uniform": lambda: uniform_expertise(labels),
    }
    return rules[rule]()


def expertise_upper_bound(rule: str, num_classes: int, max_client_size: int = 1) -> float:
    """The upper end of what expertise of this kind can be, known to both ends of the wire; the lower one is 0.

    `largest` is the size that the largest client declared.
    """
    surest = math.log(num_classes)
    return {
        "uniform": 1.0,
        "frequency": 1.0,
        "entropy": surest,
        "count": max_client_size,
        "count-confidence": max_client_size * surest,
    }[rule]
