"""What the crowd says: one pseudo-label per public example."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Far above the rounding of float64 sums, far below a level of quantised expertise.
TIE = 1e-9


def vote_scores(labels: Tensor, expertise: Tensor, num_classes: int) -> Tensor:
    """S = sum_i diag(E_i) L_i, as [examples, classes] in float64.

    `labels` and `expertise` are [clients, examples].
    """
    scores = expertise.new_zeros(labels.shape[1], num_classes).double()
    return scores.scatter_add_(1, labels.T, expertise.T.double())


def weighted_vote(labels: Tensor, expertise: Tensor, num_classes: int) -> Tensor:
    """The consensus label of each public example: argmax over classes of its score. A tie goes to the lowest class."""
    scores = vote_scores(labels, expertise, num_classes)
    # Equal sums round differently when they are added up in another order: what is equal but for that is a tie.
    winners = scores >= scores.max(dim=1, keepdim=True).values * (1 - TIE)
    return winners.int().argmax(dim=1)


def majority_vote(labels: Tensor, num_classes: int) -> Tensor:
    """The weighted vote in which everybody weighs the same."""
    return weighted_vote(labels, labels.double().fill_(1.0), num_classes)
