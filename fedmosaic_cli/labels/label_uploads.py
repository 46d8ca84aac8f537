"""How the opinions of a round come together at the server: what arrives, what of it counts, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.labels.attacks import Scene
from fedmosaic_cli.labels.inbox import ABSTAINED, ACCEPTED, MISSING, Inbox
from fedmosaic_cli.labels.wire import Expected

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.method import World
    from fedmosaic_cli.labels.attacks import Attack, Delivery
    from fedmosaic_cli.labels.voting import Ballot
    from fedmosaic_cli.labels.wire import Form

LATE = "late"
LAST_OPINION = "last_opinion"
"""Where an attacker remembers what it had to say."""


@dataclass(frozen=True)
class Gathered:
    """The ballots that count, none where too few came; what the log says of the round, and of each client's message."""

    ballots: list[Ballot]
    told: dict[str, Any]
    messages: dict[int, dict[str, str]]


def under_attack(
    attack: Attack,
    clients: Sequence[SimulatedClient],
    number: int,
    opinions: Mapping[int, bytes],
    consensus: Tensor | None,
) -> list[Delivery]:
    """What reaches the server if some of these clients do not send what they found."""
    import torch

    states = {client.id: client.state for client in clients if client.id in attack.remembering}
    last = {client: state.pop(LAST_OPINION, None) for client, state in states.items()}
    known = {client: data.numpy().tobytes() for client, data in last.items() if data is not None}
    for client in states.keys() & opinions.keys():
        states[client][LAST_OPINION] = torch.frombuffer(bytearray(opinions[client]), dtype=torch.uint8)
    labels = None if consensus is None else consensus.cpu().numpy()
    return attack.deliveries(Scene(number, opinions, known, labels))


def gather(deliveries: Sequence[Delivery], form: Form, world: World, number: int, roster: Collection[int]) -> Gathered:
    """Receive what was delivered in a round. Too few valid messages: those who are late get a second chance.

    If that does not help, the round is `degraded`, and the server keeps the consensus that it has.
    """
    inbox = Inbox(Expected(form, world.run, world.public, number, frozenset(roster)))
    late = [delivery for delivery in deliveries if delivery.late]
    for delivery in deliveries:
        if not delivery.late:
            inbox.receive(delivery.sender, delivery.data)
    needed = world.defence.min_clients or len(roster) // 2 + 1
    retried = inbox.valid < needed
    for delivery in late if retried else ():
        inbox.receive(delivery.sender, delivery.data)
    degraded = inbox.valid < needed
    messages = {client: inbox.fate(client) for client in roster}
    if not retried:
        messages |= {delivery.sender: LATE for delivery in late if messages.get(delivery.sender) == MISSING}
    told = {
        "received": inbox.received,
        "accepted": inbox.count(ACCEPTED),
        "abstained": inbox.count(ABSTAINED),
        "late": len(late),
        "rejected": dict(sorted(inbox.rejected.items())),
        **({"retried": 1} if retried else {}),
        **({"degraded": 1} if degraded else {}),
    }
    return Gathered([] if degraded else inbox.ballots(), told, {c: {"message": fate} for c, fate in messages.items()})
