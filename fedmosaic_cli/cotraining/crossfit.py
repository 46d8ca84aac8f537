"""Statistics of the cross-fitted test that decides whether collaboration helps a client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def stratified_folds(labels: Tensor, num_folds: int, rng: np.random.Generator) -> Tensor:
    """Assign each example to a random fold. Fold sizes differ by at most one, also within every class.

    Args:
        labels: Class of each example [examples].
        num_folds: Number of folds.
        rng: Source of randomness.

    Returns:
        Fold number of each example [examples].
    """
    import numpy as np
    import torch

    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels.numpy()[shuffled], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int64)
    folds[by_class] = np.arange(len(labels)) % num_folds
    return torch.as_tensor(folds)


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """sum_c (p_c - [y = c])^2 per example: 0 for a certain correct prediction, 2 for a certain wrong one.

    Args:
        logits: Predictions [examples, classes].
        labels: True classes [examples].
    """
    return probability_brier_scores(logits.double().softmax(dim=1), labels)


def probability_brier_scores(probabilities: Tensor, labels: Tensor) -> Tensor:
    """As `brier_scores`, for predicted probabilities [examples, classes]."""
    from torch.nn.functional import one_hot

    return (probabilities.double() - one_hot(labels, probabilities.shape[1])).square().sum(dim=1)


@dataclass(frozen=True)
class GateDecision:
    """Mean gain of collaboration per example, its standard error, and whether collaboration is accepted."""

    gain: float
    standard_error: float
    is_accepted: bool

    def lower_bound(self, z: float) -> float:
        """Return the gain minus z standard errors."""
        return self.gain - z * self.standard_error


def gate_decision(gains: Tensor, z_threshold: float, prior_variance: float) -> GateDecision:
    """Accept collaboration if mean(g) > z s, with s^2 = (sum_j (g_j - mean(g))^2 + v) / (n (n - 1)).

    Args:
        gains: Gain of collaboration on each held-out example [examples].
        z_threshold: z, the number of standard errors that the mean gain must exceed.
        prior_variance: v. It keeps a few examples with equal gains from counting as strong evidence.
    """
    count = len(gains)
    if count < 2:
        return GateDecision(0.0, math.inf, is_accepted=False)
    gain = gains.mean().item()
    error = math.sqrt(((gains - gain).square().sum().item() + prior_variance) / (count * (count - 1)))
    return GateDecision(gain, error, is_accepted=gain > z_threshold * error)
