"""How the opinions of a round come together at the server: what arrives, what of it counts, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.labels.attacks import AttackContext
from fedmosaic_cli.labels.inbox import ABSTAINED, ACCEPTED, MISSING, LabelInbox
from fedmosaic_cli.labels.wire import ExpectedMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.method import FederationInfo
    from fedmosaic_cli.labels.attacks import LabelAttack, UploadDelivery
    from fedmosaic_cli.labels.voting import Ballot
    from fedmosaic_cli.labels.wire import MessageSpec

LATE = "late"
LAST_UPLOAD_KEY = "last_opinion"
"""Where an attacker remembers what it had to say."""


@dataclass(frozen=True)
class CollectedUploads:
    """The ballots that count, none where too few came; what the log says of the round, and of each client's message."""

    ballots: list[Ballot]
    round_metrics: dict[str, Any]
    client_metrics: dict[int, dict[str, str]]


def apply_attack(
    attack: LabelAttack,
    clients: Sequence[SimulatedClient],
    round_number: int,
    uploads: Mapping[int, bytes],
    consensus: Tensor | None,
) -> list[UploadDelivery]:
    """What reaches the server if some of these clients do not send what they found."""
    import torch

    states = {client.id: client.state for client in clients if client.id in attack.replay_clients}
    last = {client: state.pop(LAST_UPLOAD_KEY, None) for client, state in states.items()}
    known = {client: data.numpy().tobytes() for client, data in last.items() if data is not None}
    for client in states.keys() & uploads.keys():
        states[client][LAST_UPLOAD_KEY] = torch.frombuffer(bytearray(uploads[client]), dtype=torch.uint8)
    labels = None if consensus is None else consensus.cpu().numpy()
    return attack.delivered_uploads(AttackContext(round_number, uploads, known, labels))


def receive_uploads(
    deliveries: Sequence[UploadDelivery],
    spec: MessageSpec,
    ctx: FederationInfo,
    round_number: int,
    client_ids: Collection[int],
) -> CollectedUploads:
    """Receive what was delivered in a round. Too few valid messages: those who are late get a second chance.

    If that does not help, the round is `degraded`, and the server keeps the consensus that it has.
    """
    inbox = LabelInbox(ExpectedMessage(spec, ctx.run_id, ctx.public_set_id, round_number, frozenset(client_ids)))
    late = [delivery for delivery in deliveries if delivery.is_late]
    for delivery in deliveries:
        if not delivery.is_late:
            inbox.receive(delivery.sender_id, delivery.data)
    needed = ctx.defence.min_clients or len(client_ids) // 2 + 1
    retried = inbox.num_valid < needed
    for delivery in late if retried else ():
        inbox.receive(delivery.sender_id, delivery.data)
    degraded = inbox.num_valid < needed
    messages = {client: inbox.status(client) for client in client_ids}
    if not retried:
        messages |= {delivery.sender_id: LATE for delivery in late if messages.get(delivery.sender_id) == MISSING}
    told = {
        "received": inbox.num_received,
        "accepted": inbox.count_status(ACCEPTED),
        "abstained": inbox.count_status(ABSTAINED),
        "late": len(late),
        "rejected": dict(sorted(inbox.rejection_counts.items())),
        **({"retried": 1} if retried else {}),
        **({"degraded": 1} if degraded else {}),
    }
    return CollectedUploads(
        [] if degraded else inbox.accepted_ballots(), told, {c: {"message": fate} for c, fate in messages.items()}
    )
