"""Randomised labels: the channel that they pass, and the forward correction of a loss for it.

A channel reports class j for class c with probability T(c, j). That of k-ary randomised response is
T = (1 - b) I + b / C, where C is the number of classes: a fraction b of the labels is replaced by uniform ones. One-hot
labels whose bits are flipped independently have a channel of this form, if sums of bits are divided by their total. So
shares of noisy votes estimate T^T p = (1 - b) p + b / C, where p are the shares of clean votes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def uniform_fraction(true_positive: float, false_positive: float, num_classes: int) -> float:
    """b = C f / (t + (C - 1) f).

    Args:
        true_positive: t, the probability that a class is reported if it is the label.
        false_positive: f, the probability that it is reported if another class is the label.
        num_classes: C.
    """
    return num_classes * false_positive / (true_positive + (num_classes - 1) * false_positive)


def noisy_log_probs(log_probs: Tensor, fraction: float) -> Tensor:
    """log T^T p, the distribution of labels behind the channel. It is exactly log p for b = 0.

    The cross-entropy between noisy labels and these predictions is minimal where p is the distribution of clean labels
    ("forward correction"; Patrini et al., "Making deep neural networks robust to label noise", CVPR 2017).

    Args:
        log_probs: log p [examples, classes].
        fraction: b.
    """
    import torch

    floor = math.log(fraction / log_probs.shape[1]) if fraction else -math.inf
    return torch.logaddexp(log_probs + math.log1p(-fraction), torch.full_like(log_probs, floor))


def denoised_mean(shares: Tensor, fraction: float) -> Tensor:
    """The class frequencies of clean labels: the inverse of T^T on the mean, clipped to at least 0 and normalised.

    The inverse of single rows would mostly be clipped, and so be biased.

    Args:
        shares: Shares of noisy labels [examples, classes].
        fraction: b.

    Returns:
        One row [1, classes]; without noise, `shares` as they are.
    """
    if not fraction:
        return shares
    frequencies = (shares.mean(dim=0, keepdim=True) - fraction / shares.shape[1]).clamp(min=0)
    return frequencies / frequencies.sum()
