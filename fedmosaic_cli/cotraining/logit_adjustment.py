"""Logit adjustment for a client whose class distribution differs from that of the pseudo-labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.cotraining import NO_LABEL

if TYPE_CHECKING:
    from torch import Tensor


def prior_logit_shift(class_counts: Tensor, consensus: Tensor, strength: float, smoothing: float) -> Tensor:
    """strength (log r - log q): the shift to add to a client's logits on the public set.

    q is the class distribution of the client, r that of the pseudo-labels, both with additive smoothing. With the
    shift, public examples teach p(x | y) while the network keeps modelling p(y | x) under q. The shift is 0 if q = r.

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
    own, common = (
        (counts.double() + smoothing) / (counts.sum() + smoothing * len(counts))
        for counts in (class_counts, consensus_counts)
    )
    return strength * (common.log() - own.log())
