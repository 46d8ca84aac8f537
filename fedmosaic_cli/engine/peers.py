"""Decentralised methods: clients send to their neighbours in a graph instead of to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.engine.messages import PerClient
from fedmosaic_cli.engine.method import Method, Needs, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import FederationInfo, Message, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part

Topology = Literal["ring", "complete"]


def neighbors(client_id: int, num_clients: int, topology: Topology) -> list[int]:
    """Return the neighbours of a client in a graph of `num_clients` clients, sorted and without the client."""
    if topology == "complete":
        return [other for other in range(num_clients) if other != client_id]
    return sorted({(client_id - 1) % num_clients, (client_id + 1) % num_clients} - {client_id})


@hyperparameters
class PeerMethod(Method):
    """Base class of decentralised methods.

    What a client uploads in a round reaches its neighbours at the start of the next round: `received[part]` is a
    dictionary of their values by client id. A neighbour that missed a round is represented by its last upload. The
    server only relays, so there is nothing to aggregate. Uploads are counted once per neighbour.

    Attributes:
        topology: The graph: a ring, or all pairs of clients.
    """

    topology: Topology = "ring"

    @property
    def needs(self) -> Needs:
        return Needs(peers=True)

    def neighbors(self, client_id: int, ctx: FederationInfo) -> list[int]:
        """Return the clients that a client exchanges messages with."""
        return neighbors(client_id, len(ctx.client_sizes), self.topology)

    @property
    def downloads(self) -> Mapping[str, Part]:
        return {
            name: PerClient(part, lambda ctx: max(len(self.neighbors(client, ctx)) for client in ctx.client_sizes))
            for name, part in self.uploads.items()
        }

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        uploads = {other: server.state.get(str(other)) for other in self.neighbors(client_id, ctx)}
        known = {other: upload for other, upload in uploads.items() if upload is not None}
        return {part: {other: known[other][part] for other in known} for part in self.uploads if known}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        server.state |= {str(client): upload for client, upload in uploads.items()}
