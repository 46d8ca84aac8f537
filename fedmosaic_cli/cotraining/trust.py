"""When to trust the consensus: the paper's lambda."""

from __future__ import annotations

import math
from dataclasses import dataclass


def loss_ratio_trust(private_loss: float, public_loss: float, epsilon: float, cap: float | None = None) -> float:
    """lambda = exp(-(l_public - l_private) / (l_private + epsilon)), at most `cap`.

    Both losses are mean cross-entropies of one model, on its own data and on the pseudo-labelled public set.
    For losses of at least 0 the value lies in [0, e): 1 where both are equal, 0 (by underflow) where the private loss
    is 0 and the public one is not.
    """
    scale = private_loss + epsilon
    if scale == 0.0:
        return 1.0 if public_loss == 0.0 else 0.0
    trust = math.exp(-(public_loss - private_loss) / scale)
    return trust if cap is None else min(trust, cap)


@dataclass(frozen=True)
class TrustRule:
    """The two numbers that the paper's formula leaves open."""

    epsilon: float
    cap: float | None

    def __call__(self, private_loss: float, public_loss: float) -> float:
        return loss_ratio_trust(private_loss, public_loss, self.epsilon, self.cap)


TRUST_RULES = {
    # The formula as written; the epsilon only guards the division.
    "paper": TrustRule(epsilon=1e-8, cap=None),
    # A large epsilon keeps lambda alive once the private training loss goes to 0; the cap forbids following the crowd
    # harder than the client's own labels.
    "stabilised": TrustRule(epsilon=0.3, cap=1.0),
}
