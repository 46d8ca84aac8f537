"""FedCT: clients share hard labels on a public set, and the majority's labels join everybody's training.

Abourayya et al., Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated Semi-Supervised Learning,
AAAI 2025. Differs from the paper: the loss is the sum CE(private batch) + CE(public batch) rather than one mean over
a batch of the union, so that FedMosaic with trust 1 and equal votes is exactly this method.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedmosaic_cli.cotraining.trust import MIN_TRUST
from fedmosaic_cli.engine.losses import PseudoLabelLoss
from fedmosaic_cli.engine.messages import ConsensusLabels, LabelUpload
from fedmosaic_cli.engine.method import LearnerSupport, Method, MethodFamily, ServerLog, Traffic, hyperparameters
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.defences import client_reputations, update_agreement_ema
from fedmosaic_cli.labels.privacy.privatize import label_encoding, privatize, reporting_rates, voting_rules
from fedmosaic_cli.labels.voting import NO_LABEL, aggregate_votes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message, PartKind
    from fedmosaic_cli.engine.method import Client, FederationInfo, LossTerm, Parameters, ReceivedMessage, State
    from fedmosaic_cli.labels.privacy.privatize import LabelClient
    from fedmosaic_cli.labels.voting import VoteResult


@hyperparameters
class FedCT(Method):
    """`warmup_rounds` are played alone before the first exchange.

    1 is the paper's choice: its first round has no pseudo-labels yet. 0 means the same, for the same reason.
    """

    warmup_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = 1

    name = "fedct"
    title = "FedCT"
    family: ClassVar[MethodFamily] = "FL"
    travels = "hard labels on the public set, both ways"
    needs_public_set = True
    shares_labels = True
    uploads: ClassVar[Mapping[str, PartKind]] = {"opinion": "opinion"}
    learners: ClassVar[LearnerSupport] = "anything"
    citation = "Abourayya et al., AAAI 2025"

    def broadcast(self, server: State, client_id: int, ctx: FederationInfo) -> Message:
        return {"labels": ConsensusLabels(server["labels"], ctx.num_classes)} if "labels" in server else {}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        consensus = received.get("labels")
        if consensus is not None and (consensus == NO_LABEL).all():
            consensus = None
        self.train_with_consensus(client, consensus, received, ctx)
        if client.round < self.num_warmup_rounds(ctx.num_rounds):
            return {}
        return self.make_label_upload(client.predict_public(self.voting_model(client)).log_softmax(dim=1), client, ctx)

    def num_warmup_rounds(self, num_rounds: int) -> int:
        """How many of so many rounds are played before the first exchange."""
        return self.warmup_rounds

    def train_with_consensus(
        self, client: Client, consensus: Tensor | None, received: ReceivedMessage, ctx: FederationInfo
    ) -> None:
        """A round of training."""
        trust = self.compute_trust(consensus, client)
        terms = [] if consensus is None else self.loss_terms(consensus, trust, client.class_counts)
        client.log(trust=trust, **({} if terms else {"public_share": 0.0}))
        client.train("model", terms)

    def loss_terms(self, consensus: Tensor, trust: float, class_counts: Tensor) -> list[LossTerm]:
        """What a consensus adds to a client's loss.

        With no trust to speak of the public set is left alone: then this is local training, bit for bit.
        """
        return [PseudoLabelLoss(consensus, trust)] if trust > MIN_TRUST else []

    def voting_model(self, client: Client) -> Parameters:
        """The model that speaks for the client."""
        model: Parameters = client.state["model"]
        return model

    def compute_trust(self, consensus: Tensor | None, client: Client) -> float:
        """The weight of the public loss in this round; there is none before the first consensus."""
        return 0.0 if consensus is None else 1.0

    def make_label_upload(self, log_probs: Tensor, client: Client, ctx: FederationInfo) -> Message:
        """What the client tells the server about the public set."""
        labels = log_probs.argmax(dim=1)
        expertise = self.compute_expertise(log_probs, labels, client)
        form = self.message_spec(ctx)
        said = privatize(labels.numpy(), expertise, client, ctx, form)
        return {"opinion": LabelUpload(*said, form)}

    def compute_expertise(self, log_probs: Tensor, labels: Tensor, client: LabelClient) -> NDArray[np.float64] | None:
        """How far the client is to be trusted on each public example; None where everybody is to the same degree."""
        return None

    def message_spec(self, ctx: FederationInfo) -> wire.MessageSpec:
        return wire.MessageSpec(ctx.public_size, ctx.num_classes, label_encoding=label_encoding(ctx))

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        """The consensus is kept where nobody's vote weighs anything."""
        before = agreement_by_client(server)
        standings = client_reputations(before, ctx.num_classes, ctx.defence.reputation_floor)
        reputation = standings if ctx.defence.reputation else None
        previous = server["labels"].numpy() if "labels" in server else None
        ballots = [upload["opinion"] for upload in uploads.values()]
        outcome = aggregate_votes(ballots, voting_rules(ctx, len(ballots)), reputation, reporting_rates(ctx), previous)
        after = update_agreement_ema(before, outcome.leave_one_out_agreement)
        state: State = {"labels": labels_to_tensor(outcome.labels), "told": vote_log(outcome, reputation)}
        return {**state, "agreement": agreement_tensor(after, max(ctx.client_sizes) + 1)} if after else state

    def pseudo_labels(self, server: State) -> Tensor | None:
        return server.get("labels")

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        down = wire.MessageSpec(public_size, ctx.num_classes, wire.LabelMessageKind.CONSENSUS)
        up = replace(self.message_spec(ctx), public_size=public_size)
        return Traffic(uplink_bits=8 * up.payload_bytes, downlink_bits=8 * down.payload_bytes)

    def warning(self, num_rounds: int, num_participants: int, has_batch_norm: bool) -> str:
        alone = self.num_warmup_rounds(num_rounds)
        return (
            ""
            if alone < num_rounds
            else f"{self.title} is Local here, its {alone} warm-up rounds take all {num_rounds} rounds"
        )


def vote_log(vote: VoteResult, reputation: Mapping[int, float] | None) -> ServerLog:
    """What the log says of a vote."""
    shares = vote.weight_share
    clients = {
        client: {"vote_agreement": vote.consensus_agreement[client], "weight_share": shares[client]}
        for client in shares
    }
    if reputation is not None:
        clients = {client: {**values, "reputation": reputation.get(client, 1.0)} for client, values in clients.items()}
    everybody = {"heaviest_share": max(shares.values()), "votes_differ": vote.disagreement_rate}
    votes = {"weighted": labels_to_tensor(vote.weighted_labels), "majority": labels_to_tensor(vote.majority_labels)}
    return ServerLog(everybody, clients, votes)


def agreement_tensor(agreement: Mapping[int, float], num_clients: int) -> Tensor:
    """How far each client agreed with the others so far, as the server remembers it: no number for who never spoke."""
    import torch

    return torch.tensor([agreement.get(client, math.nan) for client in range(num_clients)], dtype=torch.float64)


def agreement_by_client(server: State) -> dict[int, float]:
    """The same by client, without those who never spoke."""
    values = server["agreement"].tolist() if "agreement" in server else []
    return {client: value for client, value in enumerate(values) if not math.isnan(value)}


def labels_to_tensor(labels: NDArray[np.int64]) -> Tensor:
    import torch

    return torch.as_tensor(labels, dtype=torch.int64)
