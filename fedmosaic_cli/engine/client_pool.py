"""The clients of a run as the loop sees them, in this process or on remote sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from fedmosaic_cli.engine.context import Message, ReceivedMessage, State
    from fedmosaic_cli.engine.server import InProcessServer
    from fedmosaic_cli.engine.traffic import Traffic

    MessageFactory = Callable[[int], Message]
    """Returns the message that the server sends to a client, by client id."""


class ClientHandle(Protocol):
    """What the loop needs to know of a client."""

    id: int
    round: int
    state: State
    """The state of the client, as far as it is in this process."""
    metrics: dict[str, Any]
    """The values logged in this round."""
    is_skipped: bool
    """Whether the client diverged in this round and was rolled back."""

    @property
    def device(self) -> torch.device:
        """The device that the client computes on."""

    def begin_round(self, round_number: int) -> None:
        """Start a round with an empty log."""

    def log(self, **values: Any) -> None:
        """Add values to this round's log."""


@dataclass(frozen=True)
class ClientResult:
    """The outcome of a local round: the upload as the server receives it, and the traffic it caused."""

    upload: ReceivedMessage
    traffic: Traffic


@dataclass(frozen=True)
class EvalResult:
    """Accuracy and loss of a client's model on the client's test data.

    Attributes:
        client_id: The client whose test data was used.
        owner_id: The client whose model was evaluated.
        accuracy, loss: None if the round is not evaluated, or if a remote site keeps them to itself or did not respond.
        extra_metrics: Further metrics, e.g. the accuracy of the global model.
    """

    client_id: int
    owner_id: int
    accuracy: float | None
    loss: float | None
    extra_metrics: dict[str, float]


class ClientPool(Protocol):
    """Runs and evaluates the clients of a federation."""

    def run_round(self, clients: Sequence[Any], make_message: MessageFactory) -> dict[int, ClientResult]:
        """Run one local round on each of these clients.

        Args:
            clients: The selected clients, sorted by id.
            make_message: Returns the server's message to a client.

        Returns:
            The results by client id, sorted. A lost client has no result; the reason is in its log.
        """

    def finalize(self, server: InProcessServer) -> dict[int, Traffic]:
        """Call `Method.finalize` on all clients after the last round, and return the traffic of its broadcast."""

    def evaluate(self, server: InProcessServer) -> list[EvalResult]:
        """Evaluate all clients with what the server would send them after the round."""
