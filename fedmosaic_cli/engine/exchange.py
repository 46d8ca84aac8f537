"""How the opinions of a round come together at the server: what arrives, what of it counts, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cotraining.wire import Expected
from fedmosaic_cli.engine.inbox import ABSTAINED, ACCEPTED, MISSING, Inbox

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.cotraining.consensus import Ballot
    from fedmosaic_cli.cotraining.wire import Form
    from fedmosaic_cli.engine.attacks import Delivery
    from fedmosaic_cli.engine.method import World

LATE = "late"


@dataclass(frozen=True)
class Gathered:
    """The ballots that count, none where too few came; what the log says of the round, and of each client's message."""

    ballots: list[Ballot]
    told: dict[str, Any]
    messages: dict[int, str]


def gather(
    deliveries: Sequence[Delivery], form: Form, world: World, number: int, roster: Collection[int]
) -> Gathered:
    """Receive what was delivered in a round. Too few valid messages: those who are late get a second chance.

    If that does not help, the round is `degraded`, and the server keeps the consensus that it has.
    """
    inbox = Inbox(Expected(form, world.run, world.public, number, roster))
    late = [delivery for delivery in deliveries if delivery.late]
    for delivery in deliveries:
        if not delivery.late:
            inbox.receive(delivery.sender, delivery.data)
    needed = world.min_clients or len(roster) // 2 + 1
    retried = inbox.valid < needed
    for delivery in late if retried else ():
        inbox.receive(delivery.sender, delivery.data)
    degraded = inbox.valid < needed
    messages = {client: inbox.fate(client) for client in roster}
    if not retried:
        messages |= {delivery.sender: LATE for delivery in late if messages[delivery.sender] == MISSING}
    told = {
        "received": inbox.received,
        "accepted": inbox.count(ACCEPTED),
        "abstained": inbox.count(ABSTAINED),
        "late": len(late),
        "rejected": dict(sorted(inbox.rejected.items())),
        **({"retried": 1} if retried else {}),
        **({"degraded": 1} if degraded else {}),
    }
    return Gathered([] if degraded else inbox.ballots(), told, messages)
