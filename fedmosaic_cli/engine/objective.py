"""Cross-entropy, and the terms that methods add to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.method import Step


@dataclass(frozen=True)
class PseudoLabels:
    """`weight` times the mean cross-entropy on a public batch, under the labels of the consensus.

    The weight is a number, so no gradient flows into it.
    """

    labels: Tensor
    weight: float
    log_as: str = "loss_public"

    def on(self, device: torch.device) -> PseudoLabels:
        return replace(self, labels=self.labels.to(device))

    def loss(self, step: Step) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(step.public_logits, self.labels[step.public_index])


def mean_cross_entropy(log_probs: Tensor, labels: Tensor) -> float:
    """The mean cross-entropy of predictions that are at hand already, as [examples, classes] and [examples]."""
    return -log_probs.gather(1, labels[:, None]).mean().item()
