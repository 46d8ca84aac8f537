"""Oracle: what the true labels of the public set would bring, used as `methods.student` uses its votes.

It shows what better votes could bring to `methods.student`. A federation does not have these labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.method import MethodInfo, Needs, hyperparameters
from fedmosaic_cli.methods.student_mixture import StudentMixture

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.context import Client, FederationInfo, ReceivedMessage


@hyperparameters
class Oracle(StudentMixture):
    """A student of the true labels, mixed with the client's own model."""

    info = MethodInfo(
        "oracle",
        "Oracle",
        family="baseline",
        exchanges="nothing; clients know the true labels of the public set",
        citation="docs/trust.md",
        evaluates="the client's own model, mixed with a student of the true labels if a test shows a gain",
    )

    @property
    def needs(self) -> Needs:
        return replace(super().needs, public_labels=True, broadcast_to_evaluate=False)

    def student_targets(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Tensor:
        from torch.nn.functional import one_hot

        labels: Any = ctx.public_labels  # never None, since `needs` requires them
        return one_hot(labels, ctx.num_classes).double()
