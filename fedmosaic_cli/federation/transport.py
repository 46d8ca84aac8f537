"""What carries letters between the coordinator and clients that are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class ClientResponse:
    """What a client answered to its letter."""

    client_id: int
    data: bytes


@dataclass(frozen=True)
class ClientFailure:
    """A client that did not answer, and why, in a few words: "deadline", "gone", "crashed", "no answer: ..."."""

    client_id: int
    reason: str


class Transport(Protocol):
    """Moves bytes between the coordinator and clients that are elsewhere. It knows nothing of what they say."""

    def reachable_clients(self) -> set[int]:
        """Who can be reached now."""

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        """Hand each client its letter; what they answer, as it comes, each client once. Who did not answer in time is
        lost."""

    def close(self) -> None:
        """Take leave of everybody."""
