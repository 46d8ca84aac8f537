"""The interface between the coordinator and what transmits its requests to remote clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class ClientResponse:
    """A client's response to its request."""

    client_id: int
    data: bytes


@dataclass(frozen=True)
class ClientFailure:
    """A client without a response, and a short reason: "deadline", "gone", "crashed", "no response: ..."."""

    client_id: int
    reason: str


class Transport(Protocol):
    """Transmits opaque bytes between the coordinator and remote clients."""

    def reachable_clients(self) -> set[int]:
        """Return the clients that are online now."""

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        """Send each client its request. Yield one response or failure per client, as they come."""

    def close(self) -> None:
        """Disconnect from all clients."""
