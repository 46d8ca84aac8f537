"""Cross-entropy, and the terms that methods add to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from fedmosaic_cli.cotraining import NO_LABEL

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.method import StepOutputs


class ToDeviceMixin:
    """A dataclass whose tensors can follow the model."""

    def to_device(self, device: torch.device) -> Self:
        """The same with its tensors on `device`."""
        from torch import Tensor

        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})  # type: ignore[type-var]


@dataclass(frozen=True)
class TargetLoss(ToDeviceMixin, ABC):
    """`weight` times the mean over a batch of how far logits are from what each example should have."""

    targets: Tensor
    weight: float
    log_key: ClassVar[str]
    uses_public: ClassVar[bool]

    def loss(self, outputs: StepOutputs) -> Tensor:
        if self.uses_public:
            return self.example_losses(outputs.public_logits, self.targets[outputs.public_indices]).mean()
        return self.example_losses(outputs.private_logits, self.targets[outputs.private_indices]).mean()

    @abstractmethod
    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example."""


@dataclass(frozen=True)
class PseudoLabelLoss(TargetLoss):
    """The cross-entropy on a public batch, under the labels of the consensus.

    The weight is a number, so no gradient flows into it. Where the consensus has no label, an example adds nothing.
    """

    log_key = "loss_public"
    uses_public = True

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, targets, reduction="none", ignore_index=NO_LABEL)


@dataclass(frozen=True)
class AdjustedPseudoLabelLoss(TargetLoss):
    """The same for a client whose mix of classes is another: its logits are shifted before they are compared.

    `targets` are [examples, 2, classes]: which class the consensus has, all zeros where it has none, and the shift,
    which is the same for every example, but another for every client.
    """

    log_key = "loss_public"
    uses_public = True

    @staticmethod
    def from_labels(consensus: Tensor, logit_shift: Tensor, weight: float) -> AdjustedPseudoLabelLoss:
        """From labels [examples] and a shift [classes]."""
        import torch
        from torch.nn.functional import one_hot

        there = (consensus != NO_LABEL)[:, None]
        labels = one_hot(consensus.clamp(min=0), len(logit_shift)) * there
        return AdjustedPseudoLabelLoss(
            torch.stack([labels.to(torch.float32), logit_shift.float().expand(len(labels), -1)], 1), weight
        )

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        labels, shift = targets.unbind(dim=1)
        return -((logits + shift).log_softmax(dim=1) * labels).sum(dim=1)


@dataclass(frozen=True)
class UniformTargetLoss(TargetLoss):
    """The cross-entropy between a guess, every class as likely as the others, and the model's view of a public batch.

    Who learns this beside its own data is sure only of what its own data is like. `targets` [examples] say nothing.
    """

    log_key = "loss_doubt"
    uses_public = True

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -logits.log_softmax(dim=1).mean(dim=1)


@dataclass(frozen=True)
class LogitMatchingLoss(TargetLoss):
    """The squared distance between a model's logits on a public batch and given ones, averaged over classes."""

    log_key = "loss_public"
    uses_public = True

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return (logits - targets).square().mean(dim=1)


@dataclass(frozen=True)
class DistillationLoss(TargetLoss):
    """The cross-entropy between a teacher's softened predictions on a private batch and the model's own.

    Only the teacher is softened, and no factor T^2 makes up for it.
    """

    temperature: float

    log_key = "loss_transfer"
    uses_public = False

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, (targets / self.temperature).softmax(dim=1), reduction="none")


@dataclass(frozen=True)
class FeatureMatchingLoss(ToDeviceMixin):
    """`weight` times the maximum mean discrepancy between a teacher's features on a private batch and the model's."""

    teacher_features: Tensor
    weight: float
    log_key: ClassVar[str] = "loss_transfer"
    uses_public: ClassVar[bool] = False

    def loss(self, outputs: StepOutputs) -> Tensor:
        return mmd2(outputs.private_features, self.teacher_features[outputs.private_indices])


def mmd2(first: Tensor, second: Tensor, num_kernels: int = 5, bandwidth_factor: float = 2.0) -> Tensor:
    """The squared maximum mean discrepancy between two sets of points [points, features].

    The kernel is a sum of Gaussians whose widths lie a `factor` apart around the mean squared distance of all points;
    the width carries no gradient. At least 0, and 0 for equal sets.
    """
    import torch

    points = torch.cat([first, second])
    squares = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    count = len(points)
    width = squares.detach().sum() / max(count * (count - 1), 1)
    scales = [width * bandwidth_factor ** (number - num_kernels // 2) for number in range(num_kernels)]
    tiny = torch.finfo(points.dtype).tiny
    similarity = torch.stack([(-squares / scale.clamp_min(tiny)).exp() for scale in scales]).sum(dim=0)
    split = len(first)
    within = similarity[:split, :split].mean() + similarity[split:, split:].mean()
    return within - similarity[:split, split:].mean() - similarity[split:, :split].mean()


def select_labelled(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The predictions and labels of those examples for which the consensus has a label."""
    there = labels != NO_LABEL
    return (log_probs, labels) if there.all() else (log_probs[there], labels[there])


def mean_cross_entropy(log_probs: Tensor, labels: Tensor) -> float:
    """The mean cross-entropy of predictions that are at hand already, as [examples, classes] and [examples]."""
    return -log_probs.gather(1, labels[:, None]).mean().item()
