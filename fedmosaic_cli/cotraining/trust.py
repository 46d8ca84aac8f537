"""When to trust the consensus: the paper's lambda, and one from how far a client agrees with the crowd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MIN_LOG_TRUST = -50.0
MIN_TRUST = math.exp(MIN_LOG_TRUST)
"""So little that single precision hardly notices."""


def loss_ratio_trust(private_loss: float, public_loss: float, epsilon: float, cap: float | None = None) -> float:
    """lambda = exp(-(l_public - l_private) / (l_private + epsilon)), at most `cap`.

    Both losses are mean cross-entropies of one model, on its own data and on the pseudo-labelled public set.
    For losses of at least 0 the value lies in [LEAST_TRUST, e]: 1 where both are equal, LEAST_TRUST where the private
    loss is 0 and the public one is not. A loss that is no number deserves no trust at all.
    """
    if not (math.isfinite(private_loss) and math.isfinite(public_loss)):
        return 0.0
    lead, scale = private_loss - public_loss, private_loss + epsilon
    exponent = lead / scale if scale else math.copysign(math.inf, lead) if lead else 0.0
    trust = math.exp(min(1.0, max(MIN_LOG_TRUST, exponent)))
    return trust if cap is None else min(trust, cap)


@dataclass(frozen=True)
class LossRatioTrustRule:
    """The two numbers that the paper's formula leaves open."""

    epsilon: float
    cap: float | None

    def __call__(self, private_loss: float, public_loss: float) -> float:
        return loss_ratio_trust(private_loss, public_loss, self.epsilon, self.cap)


TRUST_RULES = {
    # The formula as written; the epsilon only guards the division.
    "paper": LossRatioTrustRule(epsilon=1e-8, cap=None),
    # A large epsilon keeps lambda alive once the private training loss goes to 0; the cap forbids following the crowd
    # harder than the client's own labels.
    "stabilised": LossRatioTrustRule(epsilon=0.3, cap=1.0),
}


def weighted_agreement(labels: Tensor, consensus: Tensor, weights: Tensor) -> float:
    """a = sum_j v_j [y_j = L_j] / sum_j v_j: how far a client says what the crowd says, where it knows best.

    All are [examples]. 0 where the client claims to know nothing.
    """
    total = weights.sum().item()
    return (weights * (labels == consensus)).sum().item() / total if total > 0 else 0.0


def agreement_trust(agreement: float, num_classes: int, power: float, min_trust: float) -> float:
    """lambda = max(0, (a - 1/C) / (1 - 1/C))^power: 0 for a client that agrees no more than by chance, 1 for one that
    agrees in everything. What is below `least` is 0.

    It looks at no training loss, so it neither dies with one nor grows where a model has memorised the public set.
    """
    chance = 1 / num_classes
    trust = max(0.0, (agreement - chance) / (1 - chance)) ** power if num_classes > 1 else 0.0
    return trust if trust >= min_trust else 0.0
