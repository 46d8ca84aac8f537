"""The method `student` without correction for the noise of randomised labels; see `benchmarks/trust.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.losses import SoftLabelLoss
from fedmosaic_cli.methods.student import Student

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.context import FederationInfo


class Uncorrected(Student):
    """Noisy shares are sharpened and learnt like clean ones."""

    info = replace(Student.info, name="uncorrected", title="Student, uncorrected")

    def label_noise(self, ctx: FederationInfo) -> float:
        return 0.0

    def student_loss(self, targets: Tensor, noise: float) -> SoftLabelLoss:
        powers = targets**self.sharpen
        return SoftLabelLoss(powers / powers.sum(dim=1, keepdim=True), 1.0)
