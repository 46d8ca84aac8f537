"""The clients of a run as the loop sees them, wherever they are: in this process, or at sites of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Received, State, Traffic

    Letter = Callable[[int], Message]
    """What the server sends to a client at the start of a round."""


class Member(Protocol):
    """A client, as far as the loop has to do with it."""

    id: int
    round: int
    state: State
    """What it remembers, as far as that is here."""
    notes: dict[str, Any]
    left_out: bool

    @property
    def device(self) -> torch.device: ...

    def begin_round(self, number: int) -> None: ...

    def note(self, **values: Any) -> None: ...


@dataclass(frozen=True)
class Turn:
    """What a client's part in a round came to: what it sends, as the server sees it, and what that cost."""

    upload: Received
    traffic: Traffic


@dataclass(frozen=True)
class Mark:
    """How a client's exam went, by whose model: accuracy and loss on test examples; and what else was asked."""

    client: int
    owner: int
    accuracy: float
    loss: float
    extra: dict[str, float]


class Company(Protocol):
    """Everybody who takes part in a run, without the server."""

    def turns(self, clients: Sequence[Any], letter: Letter) -> dict[int, Turn]:
        """Let these clients take part in a round, in the order of their numbers. Who is lost is not among the turns,
        and the reason is noted on its page."""

    def marks(self, server: State) -> list[Mark]:
        """Let everybody sit the exam, with what the server has after the round."""
