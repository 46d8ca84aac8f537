"""PerFed-CKT: clients share logits on a public set and learn from clients with similar logits.

Cho et al., Personalized Federated Learning for Heterogeneous Clients with Clustered Knowledge Transfer, 2021. The
server clusters the clients by their logits and sends each the mean of its cluster; the loss is CE plus `mu` times the
mean squared distance to it. No reference code is public, so these are our choices: the distance is averaged over
classes, so `mu` does not depend on their number; every round is clustered by k-means with ten restarts on that round's
logits; there is no target before the first exchange. Logits reveal more about a client's data than labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedmosaic_cli.cotraining.clustering import cluster_clients
from fedmosaic_cli.engine.losses import LogitMatchingLoss
from fedmosaic_cli.engine.messages import Logits
from fedmosaic_cli.engine.method import LearnerSupport, Method, Traffic, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, FederationInfo, ReceivedMessage, State


@hyperparameters
class PerFedCKT(Method):
    """PerFed-CKT.

    Attributes:
        mu: Weight of the transfer loss. 0 equals Local, bit for bit.
        clusters: Number of clusters. With 1, all clients learn from the mean of all.
    """

    mu: Annotated[float, Field(ge=0, le=1e30)] = 0.1
    clusters: Annotated[int, Field(ge=1, le=100_000)] = 5

    name = "perfedckt"
    title = "PerFed-CKT"
    family = "PFL"
    travels = "logits on the public set up, the cluster's mean down"
    needs_public_set = True
    uploads: ClassVar[Mapping[str, str]] = {"logits": "logits"}
    learners: ClassVar[LearnerSupport] = "any network"
    citation = "Cho et al., 2021"

    def broadcast(self, server: State, client_id: int, ctx: FederationInfo) -> Message:
        # A client that did not take part in the last round gets its last target.
        target = server.get(str(client_id))
        return {} if target is None else {"target": Logits(target)}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        terms = [LogitMatchingLoss(received["target"], self.mu)] if received and self.mu else []
        client.train("model", terms)
        return {"logits": Logits(client.predict_public(client.state["model"]))}

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        logits = {client: upload["logits"] for client, upload in uploads.items()}
        members: dict[int, list[int]] = {}
        for client, number in zip(logits, cluster_clients(list(logits.values()), self.clusters), strict=True):
            members.setdefault(number, []).append(client)
        means = {number: sum(logits[c] for c in group) / len(group) for number, group in members.items()}
        return {**server, **{str(c): means[number] for number, group in members.items() for c in group}}

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        bits = ctx.float_bits * public_size * ctx.num_classes
        return Traffic(uplink_bits=bits, downlink_bits=bits)

    def warning(self, num_rounds: int, num_participants: int, has_batch_norm: bool) -> str:
        if self.clusters < num_participants:
            return ""
        hint = f"{self.clusters} clusters for {num_participants} clients in a round (methods.perfedckt.clusters)"
        return f"PerFed-CKT hardly collaborates here: {hint}"
