"""Logit adjustment: class frequencies differ between a client and the public set.

q are the class frequencies of the client, r those of the labels of the public set. By Bayes' rule, a model of one
becomes a model of the other if log q - log r is added to its logits, or subtracted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.cotraining import NO_LABEL

if TYPE_CHECKING:
    from torch import Tensor

SHARE_SMOOTHING = 1e-3


def log_frequencies(class_counts: Tensor, smoothing: float) -> Tensor:
    """Return log((n(c) + smoothing) / (n + smoothing C)) [classes] for the counts n(c)."""
    return ((class_counts.double() + smoothing) / (class_counts.sum() + smoothing * len(class_counts))).log()


def shift_to_client(class_counts: Tensor, shares: Tensor) -> Tensor:
    """log q - log r: what turns a student of the public set into a model of a client.

    q(c) = (n(c) + 1) / (n + C), and r(c) = mean_u t_u(c) + 0.001.

    Args:
        class_counts: n(c), the client's number of training examples per class [classes].
        shares: The targets t of the student [examples, classes].

    Returns:
        The shift of the student's logits [classes].
    """
    return log_frequencies(class_counts, 1) - (shares.double().mean(dim=0) + SHARE_SMOOTHING).log()


def shift_to_public_set(class_counts: Tensor, consensus: Tensor, strength: float, smoothing: float) -> Tensor:
    """strength (log r - log q): the shift to add to a client's logits on the public set.

    With the shift, public examples teach p(x | y) while the network keeps modelling p(y | x) under q. The shift is 0 if
    q = r.

    Args:
        class_counts: The client's number of training examples per class [classes].
        consensus: Pseudo-labels [examples]; NO_LABEL where there is none.
        strength: Factor of the shift.
        smoothing: Number of examples added to every class.

    Returns:
        The shift [classes].
    """
    import torch

    consensus_counts = torch.bincount(consensus[consensus != NO_LABEL], minlength=len(class_counts))
    return strength * (log_frequencies(consensus_counts, smoothing) - log_frequencies(class_counts, smoothing))
