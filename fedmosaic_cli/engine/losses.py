"""Loss terms that methods add to a client's private cross-entropy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.cotraining.label_noise import noisy_log_probs
from fedmosaic_cli.engine.execution.transfers import read_scalars

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.context import StepOutputs


class ToDeviceMixin:
    """A dataclass whose tensors can be moved to a device."""

    def to_device(self, device: torch.device) -> Self:
        """A copy with all tensors on `device`."""
        from torch import Tensor

        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})  # type: ignore[type-var]


@dataclass(frozen=True)
class TargetLoss(ToDeviceMixin, ABC):
    """A loss between logits and per-example targets, averaged over a batch.

    Attributes:
        targets: Targets of all private or all public examples [examples, ...].
        weight: Factor in the client's loss; a number, so that no gradient flows into it.
        log_key: Name of the mean loss in the log.
        uses_public: True if the targets belong to public examples.
    """

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
    """Cross-entropy on pseudo-labels. Examples without a label contribute 0."""

    log_key = "loss_public"
    uses_public = True

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, targets, reduction="none", ignore_index=NO_LABEL)


@dataclass(frozen=True)
class AdjustedPseudoLabelLoss(TargetLoss):
    """Cross-entropy on pseudo-labels after a shift of the logits (see `cotraining.logit_adjustment`).

    `targets` are [examples, 2, classes]: the one-hot label, all zeros without a label, and the shift. The shift is the
    same for all examples of a client; as part of the targets it can differ between stacked clients.
    """

    log_key = "loss_public"
    uses_public = True

    @staticmethod
    def from_labels(consensus: Tensor, logit_shift: Tensor, weight: float) -> AdjustedPseudoLabelLoss:
        """The loss for labels [examples] and a shift [classes]."""
        import torch
        from torch.nn.functional import one_hot

        one_hot_labels = one_hot(consensus.clamp(min=0), len(logit_shift)) * (consensus != NO_LABEL)[:, None]
        shift = logit_shift.float().expand(len(consensus), -1)
        return AdjustedPseudoLabelLoss(torch.stack([one_hot_labels.to(torch.float32), shift], 1), weight)

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        labels, shift = targets.unbind(dim=1)
        return -((logits + shift).log_softmax(dim=1) * labels).sum(dim=1)


@dataclass(frozen=True)
class UniformTargetLoss(TargetLoss):
    """Cross-entropy between the uniform distribution and the predictions on a public batch (outlier exposure).

    It lowers the confidence on examples that differ from the client's data. The values of `targets` are not used.
    """

    log_key = "loss_doubt"
    uses_public = True

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -logits.log_softmax(dim=1).mean(dim=1)


@dataclass(frozen=True)
class LogitMatchingLoss(TargetLoss):
    """Mean squared error between the logits on a public batch and target logits."""

    log_key = "loss_public"
    uses_public = True

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        return (logits - targets).square().mean(dim=1)


@dataclass(frozen=True)
class DistillationLoss(TargetLoss):
    """Cross-entropy between a teacher's softened predictions on a private batch and the model's predictions.

    The temperature applies to the teacher only, without a factor T^2.
    """

    temperature: float

    log_key = "loss_transfer"
    uses_public = False

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, (targets / self.temperature).softmax(dim=1), reduction="none")


@dataclass(frozen=True)
class SoftLabelLoss(TargetLoss):
    """Cross-entropy to a distribution over the classes on the batches of the training set.

    It serves a server or a `Client.shared_result`, whose training set is the public set. `targets` are
    [examples, classes].
    """

    log_key = "loss_student"
    uses_public = False

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, targets.to(logits.dtype), reduction="none")


@dataclass(frozen=True)
class RandomisedLabelLoss(SoftLabelLoss):
    """Cross-entropy to shares of randomised labels, with forward correction (see `cotraining.label_noise`).

    Attributes:
        uniform_fraction: The fraction of labels that the noise replaces by uniform ones.
        sharpen: The model predicts the clean shares raised to this power and normalised.
    """

    uniform_fraction: float
    sharpen: float = 1.0

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_probs = noisy_log_probs((logits / self.sharpen).log_softmax(dim=1), self.uniform_fraction)
        return -(log_probs * targets.to(logits.dtype)).sum(dim=1)


@dataclass(frozen=True)
class PublicSoftLabelLoss(SoftLabelLoss):
    """Cross-entropy to a distribution over the classes on a public batch."""

    log_key = "loss_distillation"
    uses_public = True


@dataclass(frozen=True)
class FeatureMatchingLoss(ToDeviceMixin):
    """Squared maximum mean discrepancy between a teacher's features and the model's on a private batch."""

    teacher_features: Tensor
    weight: float
    log_key: ClassVar[str] = "loss_transfer"
    uses_public: ClassVar[bool] = False

    def loss(self, outputs: StepOutputs) -> Tensor:
        return mmd2(outputs.private_features, self.teacher_features[outputs.private_indices])


def mmd2(first: Tensor, second: Tensor, num_kernels: int = 5, bandwidth_factor: float = 2.0) -> Tensor:
    """The squared maximum mean discrepancy between two sets of points; 0 for equal sets.

    The kernel is a sum of Gaussians. Their bandwidths are the mean squared distance of all points times powers of
    `bandwidth_factor`; no gradient flows through them.

    Args:
        first: Points [points, features].
        second: Points [points, features].
        num_kernels: Number of Gaussians.
        bandwidth_factor: Ratio of neighbouring bandwidths.
    """
    import torch

    points = torch.cat([first, second])
    squares = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    bandwidth = squares.detach().sum() / max(len(points) * (len(points) - 1), 1)
    scales = [bandwidth * bandwidth_factor ** (number - num_kernels // 2) for number in range(num_kernels)]
    tiny = torch.finfo(points.dtype).tiny
    similarity = torch.stack([(-squares / scale.clamp_min(tiny)).exp() for scale in scales]).sum(dim=0)
    split = len(first)
    within = similarity[:split, :split].mean() + similarity[split:, split:].mean()
    return within - similarity[:split, split:].mean() - similarity[split:, :split].mean()


def select_labelled(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The predictions and labels of the examples that have a pseudo-label."""
    has_label = labels != NO_LABEL
    return (log_probs, labels) if has_label.all() else (log_probs[has_label], labels[has_label])


def mean_cross_entropy(log_probs: Tensor, labels: Tensor) -> float:
    """The mean cross-entropy of log-probabilities [examples, classes] for labels [examples]."""
    return -read_scalars(mean_log_prob(log_probs, labels))[0]


def mean_log_prob(log_probs: Tensor, labels: Tensor) -> Tensor:
    """The mean log-probability of the labels: the negative cross-entropy."""
    return log_probs.gather(-1, labels[..., None]).squeeze(-1).mean(dim=-1)


def count_and_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The number of correct predictions and the mean cross-entropy of logits [examples, classes]."""
    num_correct, log_prob = read_scalars(*count_and_log_prob(logits, labels))
    return num_correct, -log_prob


def count_and_log_prob(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The number of correct predictions and the mean log-probability of labels [..., examples]."""
    num_correct = (logits.argmax(dim=-1) == labels).sum(dim=-1)
    return num_correct, mean_log_prob(logits.log_softmax(dim=-1), labels)
