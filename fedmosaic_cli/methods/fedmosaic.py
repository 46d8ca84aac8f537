"""FedMosaic: co-training in which each client weighs how far to trust the crowd, and the crowd weighs each client.

Abourayya et al., Whom to Trust? Adaptive Collaboration in Personalized Federated Learning. FedCT with two points filled
in: the trust lambda in the consensus and the expertise behind every vote. What the paper leaves open is chosen here:
lambda is computed once a round, on full sets in evaluation mode, before training, and receives no gradient; the
entropy-based expertise is log C - H; a small floor keeps every vote positive; expertise travels in 8 bits a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.cotraining.codecs import packed_bits
from fedmosaic_cli.cotraining.consensus import weighted_vote
from fedmosaic_cli.cotraining.expertise import (
    entropy_expertise,
    expertise_range,
    frequency_expertise,
    uniform_expertise,
)
from fedmosaic_cli.cotraining.trust import TRUST_RULES
from fedmosaic_cli.engine.messages import Labels, Scores
from fedmosaic_cli.engine.method import Traffic, hyperparameters
from fedmosaic_cli.engine.objective import mean_cross_entropy
from fedmosaic_cli.methods.fedct import FedCT, stacked

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, Received, World


@hyperparameters
class FedMosaic(FedCT):
    """`trust` is a rule's name or a constant: 0 is Local, 1 with `uniform` expertise is FedCT, bit for bit."""

    expertise: Literal["frequency", "entropy", "uniform"] = "frequency"
    trust: Literal["paper", "stabilised"] | Annotated[float, Field(ge=0, le=1e30)] = "paper"
    expertise_bits: Annotated[int, Field(ge=1, le=32)] = 8

    name = "fedmosaic"
    title = "FedMosaic"
    family = "co-training"
    travels = "hard labels and expertise up, consensus labels down"
    citation = "Abourayya et al., 2026"

    @property
    def variant(self) -> str:
        return f"{self.name}-{self.expertise}"

    def trust_in(self, consensus: Tensor | None, client: Client) -> float:
        if isinstance(self.trust, float):
            return 0.0 if consensus is None else self.trust
        private_loss = client.private_loss(client.state["model"])
        client.note(loss_private=private_loss, agreement=None)
        if consensus is None:
            return 0.0
        # The model has not changed since it gave its opinion, so those predictions give the public loss as well.
        log_probs = client.state.get("log_probs")
        if log_probs is None:  # It joins a federation that has a consensus already.
            log_probs = client.predict_public(client.state["model"]).log_softmax(dim=1)
        public_loss = mean_cross_entropy(log_probs, consensus)
        agreement = (log_probs.argmax(dim=1) == consensus).double().mean().item()
        client.note(loss_public=public_loss, agreement=agreement)
        return TRUST_RULES[self.trust](private_loss, public_loss)

    def opinion(self, log_probs: Tensor, client: Client) -> Message:
        client.state["log_probs"] = log_probs
        labels, num_classes = log_probs.argmax(dim=1), log_probs.shape[1]
        if self.expertise == "frequency":
            expertise = frequency_expertise(labels, client.class_counts)
        elif self.expertise == "entropy":
            expertise = entropy_expertise(log_probs)
        else:
            expertise = uniform_expertise(labels)
        low, high = expertise_range(self.expertise, num_classes)
        return {
            "labels": Labels(labels, num_classes),
            "expertise": Scores(expertise, low, high, self.expertise_bits),
        }

    def consensus(self, opinions: list[Received], num_classes: int) -> Tensor:
        return weighted_vote(stacked(opinions, "labels"), stacked(opinions, "expertise"), num_classes)

    def traffic(self, world: World, public_size: int) -> Traffic:
        labels = super().traffic(world, public_size)
        return Traffic(up=(labels.up or 0) + packed_bits(public_size, self.expertise_bits), down=labels.down)
