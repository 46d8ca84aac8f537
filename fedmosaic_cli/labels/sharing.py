"""Methods whose clients share labels of the public set, and what they need to know about privacy and defences."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.labels.defences import VotingRules
from fedmosaic_cli.labels.label_messages import LabelUpload
from fedmosaic_cli.labels.label_settings import DefenceSettings
from fedmosaic_cli.labels.voting import ReportingRates
from fedmosaic_cli.labels.wire import ExpertiseEncoding, LabelEncoding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.context import FederationInfo, Server
    from fedmosaic_cli.engine.messages import Part
    from fedmosaic_cli.labels.privacy.noise import PrivacyNoise
    from fedmosaic_cli.labels.wire import MessageSpec

EXTENSION_KEY = "label_sharing"
AUTO_CAP_SHARE, AUTO_CAP_MIN_CLIENTS = 0.2, 10
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


def label_encoding(ctx: FederationInfo) -> LabelEncoding:
    """Return how labels are encoded: one bit per class if bits are flipped independently, else the class index."""
    noise = label_sharing(ctx).privacy_noise
    return LabelEncoding.BITS if noise is not None and noise.label_mechanism == "xor" else LabelEncoding.INDEX


def expertise_encoding(ctx: FederationInfo, default: ExpertiseEncoding) -> ExpertiseEncoding:
    """Return how expertise is encoded; `default` without noise.

    Noisy values are always quantised: the last bits of a floating-point number could reveal the value below the noise.
    """
    noise = label_sharing(ctx).privacy_noise
    if noise is None:
        return default
    encodings = {
        "none": ExpertiseEncoding.NONE,
        "gaussian": ExpertiseEncoding.LEVELS,
        "histogram": ExpertiseEncoding.HISTOGRAM,
    }
    return encodings[noise.expertise_mechanism]


def reporting_rates(ctx: FederationInfo) -> ReportingRates:
    """Return how often labels are reported correctly under the noise of the run."""
    noise = label_sharing(ctx).privacy_noise
    if noise is None:
        return ReportingRates()
    if noise.label_mechanism == "xor":
        return ReportingRates(1 - noise.flip_probability(), noise.flip_probability())
    return ReportingRates(noise.keep_probability(ctx.num_classes), noise.other_label_probability(ctx.num_classes))


def voting_rules(ctx: FederationInfo, num_voters: int) -> VotingRules:
    """Return how the server counts the votes of `num_voters` clients."""
    defence = label_sharing(ctx).defence
    share = defence.cap_share
    if share == "auto":
        share = AUTO_CAP_SHARE if num_voters >= AUTO_CAP_MIN_CLIENTS else None
    return VotingRules(defence.normalise, share, defence.vote, defence.trim)


class SharesLabels(Method):
    """Base class of methods whose clients upload labels of the public set.

    Its `info` has `shares_labels=True`, its `needs` include the public set.
    """

    uses_defence: ClassVar[bool] = True
    """Whether votes are counted as `defence` configures. Otherwise only `defence.min_clients` has an effect."""
    claims_privacy: ClassVar[bool] = True
    """Whether noise is reported as differential privacy, with a rating. Otherwise it is reported as randomised labels:
    clients send no expertise, and epsilon is the worst case, the sum over all labels."""

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"opinion": LabelUpload(self.message_spec)}

    @abstractmethod
    def message_spec(self, ctx: FederationInfo) -> MessageSpec:
        """Return the encoding of an upload."""

    def pseudo_labels(self, server: Server) -> Tensor | None:
        """Return the consensus label of each public example; None before the first vote."""
        return server.state.get("labels")

    def num_warmup_rounds(self, num_rounds: int) -> int:
        """Return how many of `num_rounds` rounds pass before the first upload."""
        return 0
