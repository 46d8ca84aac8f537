"""What a consensus label means to a client whose classes are not those of the public set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.cotraining import NO_LABEL

if TYPE_CHECKING:
    from torch import Tensor


def prior_logit_shift(class_counts: Tensor, consensus: Tensor, strength: float, smoothing: float) -> Tensor:
    """strength (log r - log q) [classes]: what to add to a client's logits on the public set.

    q is the client's own mix of classes, r that of the consensus, both smoothed. With the shift, public examples teach
    the network p(x | y), while it goes on to model p(y | x) under the client's own mix. For equal mixes it is 0.
    """
    import torch

    classes = len(class_counts)
    said = torch.bincount(consensus[consensus != NO_LABEL], minlength=classes)
    own, common = (smoothed_frequencies(counts, smoothing) for counts in (class_counts, said))
    return strength * (common.log() - own.log())


def smoothed_frequencies(counts: Tensor, smoothing: float) -> Tensor:
    """Shares [classes], none of which is 0."""
    return (counts.double() + smoothing) / (counts.sum() + smoothing * len(counts))
