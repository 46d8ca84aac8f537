"""The clients of a run as the loop sees them, wherever they are: in this process, or at sites of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import ReceivedMessage, State, Traffic

    MessageFactory = Callable[[int], Message]
    """What the server sends to a client at the start of a round."""


class ClientHandle(Protocol):
    """A client, as far as the loop has to do with it."""

    id: int
    round: int
    state: State
    """What it remembers, as far as that is here."""
    metrics: dict[str, Any]
    is_skipped: bool

    @property
    def device(self) -> torch.device: ...

    def begin_round(self, round_number: int) -> None: ...

    def log(self, **values: Any) -> None: ...


@dataclass(frozen=True)
class ClientResult:
    """What a client's part in a round came to: what it sends, as the server sees it, and what that cost."""

    upload: ReceivedMessage
    traffic: Traffic


@dataclass(frozen=True)
class EvalResult:
    """How a client's exam went, by whose model: accuracy and loss on test examples; and what else was asked."""

    client_id: int
    owner_id: int
    accuracy: float
    loss: float
    extra_metrics: dict[str, float]


class ClientPool(Protocol):
    """Everybody who takes part in a run, without the server."""

    def run_round(self, clients: Sequence[Any], make_message: MessageFactory) -> dict[int, ClientResult]:
        """Let these clients take part in a round, in the order of their numbers. Who is lost is not among the turns,
        and the reason is noted on its page."""

    def evaluate(self, server: State) -> list[EvalResult]:
        """Let everybody sit the exam, with what the server has after the round."""
