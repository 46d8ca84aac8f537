"""Trust: the weight lambda of the pseudo-labels in a client's loss."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

MIN_LOG_TRUST = -50.0
MIN_TRUST = math.exp(MIN_LOG_TRUST)
"""Smallest lambda of the loss-ratio rules; without effect in single precision."""


def loss_ratio_trust(private_loss: float, public_loss: float, epsilon: float, cap: float | None = None) -> float:
    """lambda = exp(-(l_public - l_private) / (l_private + epsilon)), at most `cap`.

    Args:
        private_loss: Mean cross-entropy of the model on the client's training data.
        public_loss: Mean cross-entropy of the same model on the pseudo-labelled public set.
        epsilon: Added to the denominator.
        cap: Upper bound of lambda, if any.

    Returns:
        A value in [MIN_TRUST, e] for losses of at least 0: 1 for equal losses, MIN_TRUST if only the private loss is
        0. It is 0 if a loss is not finite.
    """
    if not (math.isfinite(private_loss) and math.isfinite(public_loss)):
        return 0.0
    lead, scale = private_loss - public_loss, private_loss + epsilon
    exponent = lead / scale if scale else math.copysign(math.inf, lead) if lead else 0.0
    trust = math.exp(min(1.0, max(MIN_LOG_TRUST, exponent)))
    return trust if cap is None else min(trust, cap)


TRUST_RULES: dict[str, Callable[[float, float], float]] = {
    # The paper's formula; epsilon only prevents a division by 0.
    "paper": partial(loss_ratio_trust, epsilon=1e-8, cap=None),
    # The large epsilon keeps lambda above 0 when the private training loss vanishes; the cap keeps the weight of the
    # pseudo-labels at or below that of the client's own labels.
    "stabilised": partial(loss_ratio_trust, epsilon=0.3, cap=1.0),
}
"""Rules that compute lambda from the private and the public loss, by name."""


def weighted_agreement(labels: Tensor, consensus: Tensor, weights: Tensor) -> float:
    """a = sum_j v_j [y_j = L_j] / sum_j v_j, or 0 if all weights are 0.

    Args:
        labels: The client's predictions y [examples].
        consensus: Pseudo-labels L [examples].
        weights: The client's weights v [examples].
    """
    total = weights.sum().item()
    return (weights * (labels == consensus)).sum().item() / total if total > 0 else 0.0


def agreement_trust(agreement: float, num_classes: int, power: float, min_trust: float) -> float:
    """lambda = max(0, (a - 1/C) / (1 - 1/C))^power: 0 for agreement by chance, 1 for full agreement.

    It depends on no training loss. So it neither vanishes with the private loss nor grows when a model memorises the
    pseudo-labels.

    Args:
        agreement: a, from `weighted_agreement`.
        num_classes: C. With a single class lambda is 0.
        power: Exponent.
        min_trust: Values below this bound are set to 0.
    """
    chance = 1 / num_classes
    trust = max(0.0, (agreement - chance) / (1 - chance)) ** power if num_classes > 1 else 0.0
    return trust if trust >= min_trust else 0.0
