"""FedCT: clients share hard labels on a public set, and the majority's labels join everybody's training.

Abourayya et al., Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated Semi-Supervised Learning,
AAAI 2025. Differs from the paper: the loss is the sum CE(private batch) + CE(public batch) rather than one mean over
a batch of the union, so that FedMosaic with trust 1 and equal votes is exactly this method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedmosaic_cli.cotraining.codecs import label_bits, packed_bits
from fedmosaic_cli.cotraining.consensus import majority_vote
from fedmosaic_cli.engine.messages import Labels
from fedmosaic_cli.engine.method import Family, Learners, Method, Traffic, hyperparameters
from fedmosaic_cli.engine.objective import PseudoLabels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, Received, State, World


@hyperparameters
class FedCT(Method):
    """`warmup_rounds` are played alone before the first exchange.

    1 is the paper's choice: its first round has no pseudo-labels yet. 0 means the same, for the same reason.
    """

    warmup_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = 1

    name = "fedct"
    title = "FedCT"
    family: ClassVar[Family] = "FL"
    travels = "hard labels on the public set, both ways"
    needs_public = True
    shares_labels = True
    learners: ClassVar[Learners] = "anything"
    citation = "Abourayya et al., AAAI 2025"

    def broadcast(self, server: State, client_id: int, world: World) -> Message:
        return {"labels": Labels(server["labels"], world.num_classes)} if server else {}

    def local_round(self, client: Client, received: Received, world: World) -> Message:
        consensus = received.get("labels")
        trust = self.trust_in(consensus, client)
        client.note(trust=trust)
        # With no trust at all the public set is left alone: then this is local training, bit for bit.
        client.train("model", [PseudoLabels(consensus, trust)] if trust and consensus is not None else [])
        if client.round < self.warmup_rounds:
            return {}
        return self.opinion(client.predict_public(client.state["model"]).log_softmax(dim=1), client)

    def trust_in(self, consensus: Tensor | None, client: Client) -> float:
        """The weight of the public loss in this round; there is none before the first consensus."""
        return 0.0 if consensus is None else 1.0

    def opinion(self, log_probs: Tensor, client: Client) -> Message:
        """What the client tells the server about the public set."""
        return {"labels": Labels(log_probs.argmax(dim=1), log_probs.shape[1])}

    def aggregate(self, server: State, uploads: Mapping[int, Received], world: World) -> State:
        return {"labels": self.consensus(list(uploads.values()), world.num_classes)}

    def pseudo_labels(self, server: State) -> Tensor | None:
        return server.get("labels")

    def consensus(self, opinions: list[Received], num_classes: int) -> Tensor:
        """The pseudo-labels that the clients' opinions amount to."""
        return majority_vote(stacked(opinions, "labels"), num_classes)

    def traffic(self, world: World, public_size: int) -> Traffic:
        labels = packed_bits(public_size, label_bits(world.num_classes))
        return Traffic(up=labels, down=labels)

    def caution(self, rounds: int, participants: int, batch_norm: bool) -> str:
        if self.warmup_rounds < rounds:
            return ""
        return f"{self.title} is Local here, its {self.warmup_rounds} warm-up rounds take all {rounds} rounds"


def stacked(opinions: list[Received], part: str) -> Tensor:
    """One part of everybody's opinion, as [clients, examples]."""
    import torch

    return torch.stack([opinion[part] for opinion in opinions])
