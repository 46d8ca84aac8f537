"""FedMosaic: co-training in which clients weigh the consensus by trust and the server weighs votes by expertise.

Abourayya et al., Whom to Trust? Adaptive Collaboration in Personalized Federated Learning, 2026. FedCT with two
changes: the trust lambda of a client in the consensus, and the expertise of every vote. Choices where the paper leaves
room: lambda is computed once per round, before training, on the full private and public sets in evaluation mode, and
has no gradient; the entropy-based expertise is log C - H; the server adds a small constant to every vote; expertise is
sent with 8 bits per value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.cotraining.expertise import EXPERTISE_RULES
from fedmosaic_cli.cotraining.trust import TRUST_RULES
from fedmosaic_cli.engine.losses import mean_cross_entropy, select_labelled
from fedmosaic_cli.engine.method import MethodInfo, hyperparameters
from fedmosaic_cli.labels.sharing import expertise_encoding, label_sharing
from fedmosaic_cli.labels.wire import ExpertiseEncoding
from fedmosaic_cli.methods.fedct import FedCT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.context import Client, FederationInfo
    from fedmosaic_cli.labels.privacy.privatize import LabelClient
    from fedmosaic_cli.labels.wire import MessageSpec

DEFAULT_EXPERTISE_BITS = 8
ExpertiseName = Literal["frequency", "entropy", "count", "count-confidence", "uniform"]
ConstantTrust = Annotated[float, Field(ge=0, le=1e30)]


@hyperparameters
class FedMosaic(FedCT):
    """The paper's method: a trust rule and an expertise rule.

    Attributes:
        expertise: The rule that weighs votes; see `cotraining.expertise`.
        trust: The rule for lambda (see `cotraining.trust`), or a constant. 0 equals Local, and 1 with uniform
            expertise equals FedCT, bit for bit.
        expertise_bits: Bits per expertise value in an upload.
    """

    expertise: ExpertiseName = "frequency"
    trust: Literal["paper", "stabilised"] | ConstantTrust = "paper"
    expertise_bits: Literal["float32"] | Annotated[int, Field(ge=1, le=32)] = DEFAULT_EXPERTISE_BITS

    info = MethodInfo(
        "fedmosaic",
        "FedMosaic",
        family="co-training",
        exchanges="hard labels and expertise up, consensus labels down",
        citation="Abourayya et al., 2026",
        shares_labels=True,
    )

    @property
    def variant(self) -> str:
        return f"{self.info.name}-{self.expertise}"

    def compute_trust(self, consensus: Tensor | None, client: Client) -> float:
        if isinstance(self.trust, float):
            return 0.0 if consensus is None else self.trust
        private_loss = client.private_loss(client.state["model"])
        client.log(loss_private=private_loss, agreement=None)
        if consensus is None:
            return 0.0
        log_probs, labels = select_labelled(self.public_log_probs(client), consensus)
        public_loss = mean_cross_entropy(log_probs, labels)
        client.log(loss_public=public_loss, agreement=(log_probs.argmax(dim=1) == labels).double().mean().item())
        return TRUST_RULES[self.trust](private_loss, public_loss)

    def public_log_probs(self, client: Client) -> Tensor:
        """Return the model's log-probabilities on the public set; those of the last upload if the model is the same."""
        log_probs: Tensor | None = client.state.get("log_probs")
        return client.predict_public(client.state["model"]).log_softmax(dim=1) if log_probs is None else log_probs

    def compute_expertise(self, log_probs: Tensor, labels: Tensor, client: LabelClient) -> NDArray[np.float64]:
        client.state["log_probs"] = log_probs
        return EXPERTISE_RULES[self.expertise].score(log_probs, labels, client.class_counts).numpy()

    def message_spec(self, ctx: FederationInfo) -> MessageSpec:
        bits = self.expertise_bits
        encoding = expertise_encoding(ctx, ExpertiseEncoding.FLOATS if bits == "float32" else ExpertiseEncoding.LEVELS)
        is_exact = label_sharing(ctx).privacy_noise is None or encoding is ExpertiseEncoding.HISTOGRAM
        largest_client = max(ctx.client_sizes.values(), default=1)
        return replace(
            super().message_spec(ctx),
            expertise_encoding=encoding,
            expertise_bits=DEFAULT_EXPERTISE_BITS if bits == "float32" else bits,
            max_expertise=EXPERTISE_RULES[self.expertise].max_value(ctx.num_classes, largest_client),
            is_distribution=self.expertise == "frequency" and is_exact,
        )
