"""Expertise: the weight E[j] of a client's vote on public example j.

C is the number of classes, n(c) the client's number of training examples of class c, n their sum, y_j the class that
the client predicts for example j, p_j its predicted distribution and H its entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def frequency_expertise(labels: Tensor, class_counts: Tensor) -> Tensor:
    """E[j] = n(y_j) / n: the fraction of the client's data in the class it predicts.

    Args:
        labels: Predicted classes [examples].
        class_counts: The client's number of training examples per class [classes].
    """
    return (class_counts.double() / class_counts.sum())[labels]


def entropy_expertise(log_probs: Tensor) -> Tensor:
    """E[j] = log C - H(p_j), in [0, log C]: 0 for a uniform prediction, log C for a certain one.

    Args:
        log_probs: Predicted log-probabilities [examples, classes].
    """
    log_probs = log_probs.double()
    # The clamp makes 0 * log 0 equal to 0.
    entropy = -(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=1)
    return (math.log(log_probs.shape[1]) - entropy).clamp(min=0.0)


@dataclass(frozen=True)
class ExpertiseRule:
    """An expertise formula and its range.

    Attributes:
        score: E [examples] from log-probabilities [examples, classes], predicted classes [examples] and the client's
            class counts [classes].
        max_value: Upper bound of E, given the number of classes and the size of the largest client. The lower bound
            is 0. Client and server both know it, so that scores can be quantised.
    """

    score: Callable[[Tensor, Tensor, Tensor], Tensor]
    max_value: Callable[[int, int], float]


EXPERTISE_RULES: dict[str, ExpertiseRule] = {
    "frequency": ExpertiseRule(
        score=lambda log_probs, labels, class_counts: frequency_expertise(labels, class_counts),
        max_value=lambda num_classes, largest_client: 1.0,
    ),
    "entropy": ExpertiseRule(
        score=lambda log_probs, labels, class_counts: entropy_expertise(log_probs),
        max_value=lambda num_classes, largest_client: math.log(num_classes),
    ),
    # E[j] = n(y_j): distinguishes many examples of a class from a client that has only this class.
    "count": ExpertiseRule(
        score=lambda log_probs, labels, class_counts: class_counts.double()[labels],
        max_value=lambda num_classes, largest_client: largest_client,
    ),
    # E[j] = n(y_j) (log C - H(p_j)).
    "count-confidence": ExpertiseRule(
        score=lambda log_probs, labels, class_counts: class_counts.double()[labels] * entropy_expertise(log_probs),
        max_value=lambda num_classes, largest_client: largest_client * math.log(num_classes),
    ),
    # E[j] = 1: a majority vote, as in FedCT.
    "uniform": ExpertiseRule(
        score=lambda log_probs, labels, class_counts: labels.double().fill_(1.0),
        max_value=lambda num_classes, largest_client: 1.0,
    ),
}
"""Expertise rules by name."""
