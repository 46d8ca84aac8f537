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

from fedmosaic_cli.cotraining.trust import LEAST_TRUST
from fedmosaic_cli.engine.losses import PseudoLabels
from fedmosaic_cli.engine.messages import Consensus, Opinion
from fedmosaic_cli.engine.method import Family, Learners, Method, Told, Traffic, hyperparameters
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.defences import remembered, reputations
from fedmosaic_cli.labels.privacy.privatize import label_code, rates_of, released, rules_of
from fedmosaic_cli.labels.voting import NO_LABEL, hold_vote

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Kind, Message
    from fedmosaic_cli.engine.method import Client, Parameters, Received, State, Term, World
    from fedmosaic_cli.labels.privacy.privatize import Speaker
    from fedmosaic_cli.labels.voting import Outcome


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
    uploads: ClassVar[Mapping[str, Kind]] = {"opinion": "opinion"}
    learners: ClassVar[Learners] = "anything"
    citation = "Abourayya et al., AAAI 2025"

    def broadcast(self, server: State, client_id: int, world: World) -> Message:
        return {"labels": Consensus(server["labels"], world.num_classes)} if "labels" in server else {}

    def local_round(self, client: Client, received: Received, world: World) -> Message:
        consensus = received.get("labels")
        if consensus is not None and (consensus == NO_LABEL).all():
            consensus = None
        self.learn(client, consensus, received, world)
        if client.round < self.alone(world.rounds):
            return {}
        return self.opinion(client.predict_public(self.voter(client)).log_softmax(dim=1), client, world)

    def alone(self, rounds: int) -> int:
        """How many of so many rounds are played before the first exchange."""
        return self.warmup_rounds

    def learn(self, client: Client, consensus: Tensor | None, received: Received, world: World) -> None:
        """A round of training."""
        trust = self.trust_in(consensus, client)
        terms = [] if consensus is None else self.terms(consensus, trust, client.class_counts)
        client.note(trust=trust, **({} if terms else {"public_share": 0.0}))
        client.train("model", terms)

    def terms(self, consensus: Tensor, trust: float, class_counts: Tensor) -> list[Term]:
        """What a consensus adds to a client's loss.

        With no trust to speak of the public set is left alone: then this is local training, bit for bit.
        """
        return [PseudoLabels(consensus, trust)] if trust > LEAST_TRUST else []

    def voter(self, client: Client) -> Parameters:
        """The model that speaks for the client."""
        model: Parameters = client.state["model"]
        return model

    def trust_in(self, consensus: Tensor | None, client: Client) -> float:
        """The weight of the public loss in this round; there is none before the first consensus."""
        return 0.0 if consensus is None else 1.0

    def opinion(self, log_probs: Tensor, client: Client, world: World) -> Message:
        """What the client tells the server about the public set."""
        labels = log_probs.argmax(dim=1)
        expertise = self.expertise_in(log_probs, labels, client)
        form = self.opinion_form(world)
        said = released(labels.numpy(), expertise, client, world, form)
        return {"opinion": Opinion(*said, form)}

    def expertise_in(self, log_probs: Tensor, labels: Tensor, client: Speaker) -> NDArray[np.float64] | None:
        """How far the client is to be trusted on each public example; None where everybody is to the same degree."""
        return None

    def opinion_form(self, world: World) -> wire.Form:
        return wire.Form(world.public_size, world.num_classes, labels=label_code(world))

    def aggregate(self, server: State, uploads: Mapping[int, Received], world: World) -> State:
        """The consensus is kept where nobody's vote weighs anything."""
        before = known_agreement(server)
        standings = reputations(before, world.num_classes, world.defence.reputation_floor)
        reputation = standings if world.defence.reputation else None
        previous = server["labels"].numpy() if "labels" in server else None
        ballots = [upload["opinion"] for upload in uploads.values()]
        outcome = hold_vote(ballots, rules_of(world, len(ballots)), reputation, rates_of(world), previous)
        after = remembered(before, outcome.agreement_with_others)
        state: State = {"labels": as_tensor(outcome.labels), "told": told_of(outcome, reputation)}
        return {**state, "agreement": agreement_tensor(after, max(world.sizes) + 1)} if after else state

    def pseudo_labels(self, server: State) -> Tensor | None:
        return server.get("labels")

    def traffic(self, world: World, public_size: int) -> Traffic:
        down = wire.Form(public_size, world.num_classes, wire.Kind.CONSENSUS)
        up = replace(self.opinion_form(world), public_size=public_size)
        return Traffic(up=8 * up.payload_bytes, down=8 * down.payload_bytes)

    def caution(self, rounds: int, participants: int, batch_norm: bool) -> str:
        alone = self.alone(rounds)
        return (
            "" if alone < rounds else f"{self.title} is Local here, its {alone} warm-up rounds take all {rounds} rounds"
        )


def told_of(outcome: Outcome, reputation: Mapping[int, float] | None) -> Told:
    """What the log says of a vote."""
    shares = outcome.weight_share
    clients = {
        client: {"vote_agreement": outcome.agreement[client], "weight_share": shares[client]} for client in shares
    }
    if reputation is not None:
        clients = {client: {**values, "reputation": reputation.get(client, 1.0)} for client, values in clients.items()}
    everybody = {"heaviest_share": max(shares.values()), "votes_differ": outcome.votes_differ}
    votes = {"weighted": as_tensor(outcome.weighted), "majority": as_tensor(outcome.majority)}
    return Told(everybody, clients, votes)


def agreement_tensor(agreement: Mapping[int, float], clients: int) -> Tensor:
    """How far each client agreed with the others so far, as the server remembers it: no number for who never spoke."""
    import torch

    return torch.tensor([agreement.get(client, math.nan) for client in range(clients)], dtype=torch.float64)


def known_agreement(server: State) -> dict[int, float]:
    """The same by client, without those who never spoke."""
    values = server["agreement"].tolist() if "agreement" in server else []
    return {client: value for client, value in enumerate(values) if not math.isnan(value)}


def as_tensor(labels: NDArray[np.int64]) -> Tensor:
    import torch

    return torch.as_tensor(labels, dtype=torch.int64)
