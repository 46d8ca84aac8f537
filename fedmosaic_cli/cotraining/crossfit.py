"""Whether collaboration helps a client, found out on examples that the models in question have not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def stratified_folds(labels: Tensor, num_folds: int, rng: np.random.Generator) -> Tensor:
    """A fold for each example [examples], at random: of each class every fold has as many, give or take one."""
    import numpy as np
    import torch

    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels.numpy()[shuffled], kind="stable")]
    dealt = np.empty(len(labels), dtype=np.int64)
    dealt[by_class] = np.arange(len(labels)) % num_folds
    return torch.as_tensor(dealt)


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """sum_c (p_c - [y = c])^2 for each example: 0 for a sure and right prediction, 2 for a sure and wrong one."""
    from torch.nn.functional import one_hot

    probabilities = logits.double().softmax(dim=1)
    return (probabilities - one_hot(labels, logits.shape[1])).square().sum(dim=1)


@dataclass(frozen=True)
class GateDecision:
    """What collaboration gains on an example on average, the standard error of that, and whether it is kept."""

    gain: float
    standard_error: float
    is_accepted: bool


def gate_decision(gains: Tensor, z_threshold: float, prior_variance: float) -> GateDecision:
    """Keep what gains more than `strictness` standard errors.

    `prior_variance` joins the sum of squares, so that a few examples that happen to agree are no evidence.
    """
    count = len(gains)
    if count < 2:
        return GateDecision(0.0, math.inf, is_accepted=False)
    gain = gains.mean().item()
    error = math.sqrt(((gains - gain).square().sum().item() + prior_variance) / (count * (count - 1)))
    return GateDecision(gain, error, is_accepted=gain > z_threshold * error)
