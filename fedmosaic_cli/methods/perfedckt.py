"""PerFed-CKT: clients share logits on a public set and learn from clients with similar logits.

Cho et al., Personalized Federated Learning for Heterogeneous Clients with Clustered Knowledge Transfer, 2021. The
server clusters the clients by their logits and sends each the mean of its cluster; the loss is CE plus `mu` times the
mean squared distance to it. No reference code is public, so these are our choices: the distance is averaged over
classes, so `mu` does not depend on their number; every round is clustered by k-means with ten restarts on that round's
logits; there is no target before the first exchange. Logits reveal more about a client's data than labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.cotraining.clustering import cluster_clients
from fedmosaic_cli.engine.losses import LogitMatchingLoss
from fedmosaic_cli.engine.messages import Logits
from fedmosaic_cli.engine.method import Method, MethodInfo, Needs, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part
    from fedmosaic_cli.engine.method import RunFacts


@hyperparameters
class PerFedCKT(Method):
    """PerFed-CKT.

    Attributes:
        mu: Weight of the transfer loss. 0 equals Local, bit for bit.
        clusters: Number of clusters. With 1, all clients learn from the mean of all.
    """

    mu: Annotated[float, Field(ge=0, le=1e30)] = 0.1
    clusters: Annotated[int, Field(ge=1, le=100_000)] = 5

    info = MethodInfo(
        "perfedckt",
        "PerFed-CKT",
        exchanges="logits on the public set up, the cluster's mean down",
        citation="Cho et al., 2021",
    )

    @property
    def needs(self) -> Needs:
        return Needs(public_set=True, learners="any network")

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"logits": Logits()}

    @property
    def downloads(self) -> Mapping[str, Part]:
        return {"target": Logits()}

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        # A client that did not take part in the last round gets its last target.
        target = server.state.get(str(client_id))
        return {} if target is None else {"target": target}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        terms = [LogitMatchingLoss(received["target"], self.mu)] if received and self.mu else []
        client.train("model", terms)
        return {"logits": client.predict_public(client.state["model"])}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        logits = {client: upload["logits"] for client, upload in uploads.items()}
        members: dict[int, list[int]] = {}
        for client, number in zip(logits, cluster_clients(list(logits.values()), self.clusters), strict=True):
            members.setdefault(number, []).append(client)
        means = {number: sum(logits[c] for c in group) / len(group) for number, group in members.items()}
        server.state |= {str(c): means[number] for number, group in members.items() for c in group}

    def warnings(self, facts: RunFacts) -> list[str]:
        if self.clusters < facts.num_participants:
            return []
        hint = f"{self.clusters} clusters for {facts.num_participants} clients in a round (methods.perfedckt.clusters)"
        return [f"PerFed-CKT hardly collaborates here: {hint}"]
