"""FedCT: clients share hard labels of a public set and train on the majority's labels.

Abourayya et al., Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated Semi-Supervised Learning,
AAAI 2025. Differs from the paper: the loss is CE(private batch) + CE(public batch), not one mean over a batch of the
union. FedMosaic with trust 1 and uniform expertise is therefore exactly this method.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.cotraining.trust import MIN_TRUST
from fedmosaic_cli.engine.losses import PseudoLabelLoss
from fedmosaic_cli.engine.method import MethodInfo, Needs, hyperparameters
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.defences import client_reputations, update_agreement_ema
from fedmosaic_cli.labels.label_messages import ConsensusLabels, LabelVotes
from fedmosaic_cli.labels.privacy.privatize import privatize
from fedmosaic_cli.labels.sharing import (
    VOTE_LOG_KEY,
    SharesLabels,
    VoteLog,
    label_encoding,
    label_sharing,
    reporting_rates,
    voting_rules,
)
from fedmosaic_cli.labels.voting import aggregate_votes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        LossTerm,
        Message,
        Parameters,
        ReceivedMessage,
        Server,
        State,
    )
    from fedmosaic_cli.engine.messages import Part
    from fedmosaic_cli.engine.method import RunFacts
    from fedmosaic_cli.labels.privacy.privatize import LabelClient
    from fedmosaic_cli.labels.voting import VoteResult


@hyperparameters
class FedCT(SharesLabels):
    """Federated co-training with equal votes.

    Attributes:
        warmup_rounds: Rounds of local training before the first upload. The paper uses 1; 0 has the same effect,
            because there is no consensus in the first round.
    """

    warmup_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = 1

    info = MethodInfo(
        "fedct",
        "FedCT",
        family="FL",
        exchanges="hard labels on the public set, both ways",
        citation="Abourayya et al., AAAI 2025",
        shares_labels=True,
    )

    @property
    def needs(self) -> Needs:
        return Needs(public_set=True, learners="anything")

    @property
    def downloads(self) -> Mapping[str, Part]:
        return {"labels": ConsensusLabels()}

    def num_warmup_rounds(self, num_rounds: int) -> int:
        return self.warmup_rounds

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        return {"labels": server.state["labels"]} if "labels" in server.state else {}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        consensus = received.get("labels")
        if consensus is not None and (consensus == NO_LABEL).all():
            consensus = None
        self.train_with_consensus(client, consensus, received, ctx)
        if client.round < self.num_warmup_rounds(ctx.num_rounds):
            return {}
        return self.make_label_upload(client.predict_public(self.voting_model(client)).log_softmax(dim=1), client, ctx)

    def train_with_consensus(
        self, client: Client, consensus: Tensor | None, received: ReceivedMessage, ctx: FederationInfo
    ) -> None:
        """Train the client's model on its private data and, weighted by trust, on the consensus labels."""
        trust = self.compute_trust(consensus, client)
        terms = [] if consensus is None else self.loss_terms(consensus, trust, client.class_counts)
        client.log(trust=trust, **({} if terms else {"public_share": 0.0}))
        client.train("model", terms)

    def compute_trust(self, consensus: Tensor | None, client: Client) -> float:
        """Return lambda, the weight of the public loss in this round; 0 before the first consensus."""
        return 0.0 if consensus is None else 1.0

    def loss_terms(self, consensus: Tensor, trust: float, class_counts: Tensor) -> list[LossTerm]:
        """Return the public loss. With negligible trust it is empty: the round is then Local's, bit for bit."""
        return [PseudoLabelLoss(consensus, trust)] if trust > MIN_TRUST else []

    def voting_model(self, client: Client) -> Parameters:
        """Return the model that labels the public set."""
        model: Parameters = client.state["model"]
        return model

    def make_label_upload(self, log_probs: Tensor, client: Client, ctx: FederationInfo) -> Message:
        """Return the upload for these log-probabilities on the public set, with noise if privacy is enabled."""
        labels = log_probs.argmax(dim=1)
        expertise = self.compute_expertise(log_probs, labels, client)
        spec = self.message_spec(ctx)
        return {"opinion": LabelVotes(*privatize(labels.numpy(), expertise, client, ctx, spec))}

    def compute_expertise(self, log_probs: Tensor, labels: Tensor, client: LabelClient) -> NDArray[np.float64] | None:
        """Return the weight of the client's vote on each public example; None for equal votes."""
        return None

    def message_spec(self, ctx: FederationInfo) -> wire.MessageSpec:
        return wire.MessageSpec(ctx.public_size, ctx.num_classes, label_encoding=label_encoding(ctx))

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        """Vote on every public example. Where all votes have weight 0, the previous label is kept."""
        defence = label_sharing(ctx).defence
        agreement = agreement_by_client(server.state)
        reputations = client_reputations(agreement, ctx.num_classes, defence.reputation_floor)
        reputation = reputations if defence.reputation else None
        previous = server.state["labels"].numpy() if "labels" in server.state else None
        ballots = [upload["opinion"] for upload in uploads.values()]
        vote = aggregate_votes(ballots, voting_rules(ctx, len(ballots)), reputation, reporting_rates(ctx), previous)
        agreement = update_agreement_ema(agreement, vote.leave_one_out_agreement)
        state: State = {"labels": labels_to_tensor(vote.labels), VOTE_LOG_KEY: make_vote_log(vote, reputation)}
        if agreement:
            state["agreement"] = agreement_tensor(agreement, max(ctx.client_sizes) + 1)
        server.state = state

    def warnings(self, facts: RunFacts) -> list[str]:
        num_warmup = self.num_warmup_rounds(facts.num_rounds)
        if num_warmup < facts.num_rounds:
            return []
        title, num_rounds = self.info.title, facts.num_rounds
        return [f"{title} equals Local here: its {num_warmup} warm-up rounds take all {num_rounds} rounds"]


def make_vote_log(vote: VoteResult, reputation: Mapping[int, float] | None) -> VoteLog:
    """Return what the log records about a vote."""
    weights = vote.weight_share
    clients = {c: {"vote_agreement": vote.consensus_agreement[c], "weight_share": weights[c]} for c in weights}
    if reputation is not None:
        clients = {c: {**values, "reputation": reputation.get(c, 1.0)} for c, values in clients.items()}
    metrics = {"heaviest_share": max(weights.values()), "votes_differ": vote.disagreement_rate}
    labels = {"weighted": labels_to_tensor(vote.weighted_labels), "majority": labels_to_tensor(vote.majority_labels)}
    return VoteLog(metrics, clients, labels)


def agreement_tensor(agreement: Mapping[int, float], num_clients: int) -> Tensor:
    """Return the clients' agreement with the others as a tensor; NaN for a client that never voted."""
    import torch

    return torch.tensor([agreement.get(client, math.nan) for client in range(num_clients)], dtype=torch.float64)


def agreement_by_client(server: State) -> dict[int, float]:
    """Return the agreement stored in the server state, by client; without clients that never voted."""
    values = server["agreement"].tolist() if "agreement" in server else []
    return {client: value for client, value in enumerate(values) if not math.isnan(value)}


def labels_to_tensor(labels: NDArray[np.int64]) -> Tensor:
    """Return labels as an int64 tensor."""
    import torch

    return torch.as_tensor(labels, dtype=torch.int64)
