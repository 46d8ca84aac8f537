"""Methods whose clients share labels of the public set, and what they need to know about privacy and defences."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.labels.label_settings import DefenceSettings

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.method import FederationInfo, State
    from fedmosaic_cli.labels.privacy.noise import PrivacyNoise
    from fedmosaic_cli.labels.wire import MessageSpec

EXTENSION_KEY = "label_sharing"
VOTE_LOG_KEY = "vote_log"
"""Where `SharesLabels.aggregate` leaves a `VoteLog` in the server state. It is logged and removed in the same round."""


@dataclass(frozen=True)
class LabelSharing:
    """How a run shares labels.

    Attributes:
        defence: How the server counts votes.
        privacy_noise: The noise that clients add to their labels and expertise; None for no noise.
        is_attacker: True for a simulated attacker that fabricates its upload.
    """

    defence: DefenceSettings = field(default_factory=DefenceSettings)
    privacy_noise: PrivacyNoise | None = None
    is_attacker: bool = False


@dataclass(frozen=True)
class VoteLog:
    """What the server logs about a vote.

    Attributes:
        round_metrics: Metrics logged for every client.
        client_metrics: Metrics of single clients, by client id.
        labels: Labels of the public set by name. Their accuracy is logged if the true labels are known.
    """

    round_metrics: dict[str, float] = field(default_factory=dict)
    client_metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    labels: dict[str, Tensor] = field(default_factory=dict)


def label_sharing(ctx: FederationInfo) -> LabelSharing:
    """Return how this federation shares labels."""
    sharing: LabelSharing = ctx.extensions.get(EXTENSION_KEY) or LabelSharing()
    return sharing


def with_label_sharing(ctx: FederationInfo, **changes: Any) -> FederationInfo:
    """Return `ctx` with these fields of its `LabelSharing` changed."""
    return replace(ctx, extensions={**ctx.extensions, EXTENSION_KEY: replace(label_sharing(ctx), **changes)})


class SharesLabels(Method):
    """Base class of methods whose clients upload labels of the public set."""

    shares_labels = True
    needs_public_set = True

    @abstractmethod
    def message_spec(self, ctx: FederationInfo) -> MessageSpec:
        """Return the encoding of an upload."""

    def pseudo_labels(self, server: State) -> Tensor | None:
        """Return the consensus label of each public example; None before the first vote."""
        return server.get("labels")

    def num_warmup_rounds(self, num_rounds: int) -> int:
        """Return how many of `num_rounds` rounds pass before the first upload."""
        return 0
