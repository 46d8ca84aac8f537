"""What carries letters between the coordinator and clients that are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Answer:
    """What a client answered to its letter."""

    client: int
    data: bytes


@dataclass(frozen=True)
class Loss:
    """A client that did not answer, and why, in a few words: "deadline", "gone", "crashed", "no answer: ..."."""

    client: int
    reason: str


class Carrier(Protocol):
    """Moves bytes between the coordinator and clients that are elsewhere. It knows nothing of what they say."""

    def present(self) -> set[int]:
        """Who can be reached now."""

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[Answer | Loss]:
        """Hand each client its letter; what they answer, as it comes, each client once. Who did not answer in time is
        lost."""

    def close(self) -> None:
        """Take leave of everybody."""
