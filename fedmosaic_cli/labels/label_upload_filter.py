"""From the uploads of a round to the ballots that the server counts: attacks, validation and logging of the vote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.upload_filters import UploadFilter
from fedmosaic_cli.labels.attacks import AttackContext, UploadDelivery
from fedmosaic_cli.labels.inbox import ABSTAINED, ACCEPTED, MISSING, LabelInbox
from fedmosaic_cli.labels.sharing import VOTE_LOG_KEY, label_sharing
from fedmosaic_cli.labels.wire import ExpectedMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.client_pool import ClientHandle, ClientResult
    from fedmosaic_cli.engine.context import FederationInfo
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.labels.attacks import LabelAttack
    from fedmosaic_cli.labels.sharing import SharesLabels, VoteLog
    from fedmosaic_cli.labels.voting import Ballot
    from fedmosaic_cli.labels.wire import MessageSpec

LATE = "late"
LAST_UPLOAD_KEY = "last_opinion"
"""The key under which a replaying attacker stores its previous upload."""


@dataclass(frozen=True)
class LabelUploadFilter(UploadFilter):
    """Lets attackers replace their uploads, validates what arrives, and logs the vote.

    Attributes:
        method: The method of the run.
        attack: The simulated attackers, if any.
        true_labels: The true labels of the public set, if known. They are used for logging only.
    """

    method: SharesLabels
    attack: LabelAttack | None = None
    true_labels: Tensor | None = None

    def apply(
        self, federation: Federation, clients: Sequence[ClientHandle], results: dict[int, ClientResult]
    ) -> dict[int, ClientResult]:
        """Replace each upload by the ballot that the server may count; drop invalid uploads."""
        uploads = {client_id: result.upload["opinion"] for client_id, result in results.items() if result.upload}
        if not uploads:
            return results
        number, state = clients[0].round, federation.state
        deliveries = [UploadDelivery(client_id, data) for client_id, data in uploads.items()]
        if self.attack is not None:
            consensus = self.method.pseudo_labels(state.server)
            deliveries = apply_attack(self.attack, clients, number, uploads, consensus)
        spec, client_ids = self.method.message_spec(federation.ctx), [client.id for client in clients]
        collected = receive_uploads(deliveries, spec, federation.ctx, number, client_ids)
        for client in state.clients:
            client.log(**collected.round_metrics, **collected.client_metrics.get(client.id, {}))
        ballots = {ballot.client_id: ballot for ballot in collected.ballots}
        filtered = {}
        for client_id, result in results.items():
            is_missing = collected.client_metrics[client_id]["message"] == MISSING
            traffic = replace(result.traffic, uplink_bits=0) if is_missing else result.traffic
            upload = {"opinion": ballots[client_id]} if client_id in ballots else {}
            filtered[client_id] = replace(result, upload=upload, traffic=traffic)
        return filtered

    def after_aggregate(self, federation: Federation) -> None:
        """Log the vote: metrics of the round and of each client, and the accuracy of the labels it produced."""
        vote_log: VoteLog | None = federation.state.server.state.pop(VOTE_LOG_KEY, None)
        if vote_log is None:
            return
        accuracies = {f"{name}_accuracy": self._accuracy(labels) for name, labels in vote_log.labels.items()}
        known = {name: value for name, value in accuracies.items() if value is not None}
        for client in federation.state.clients:
            client.log(**vote_log.round_metrics, **vote_log.client_metrics.get(client.id, {}), **known)

    def round_metrics(self, federation: Federation) -> dict[str, float]:
        """Return the accuracy of the pseudo-labels."""
        labels = self.method.pseudo_labels(federation.state.server)
        accuracy = None if labels is None else self._accuracy(labels)
        return {} if accuracy is None else {"pseudo_label_accuracy": accuracy}

    def _accuracy(self, labels: Tensor) -> float | None:
        """Return the fraction of correct labels; None if the true labels are unknown."""
        if self.true_labels is None:
            return None
        return labels.to(self.true_labels.device).eq(self.true_labels).double().mean().item()


@dataclass(frozen=True)
class CollectedUploads:
    """The outcome of receiving a round's uploads.

    Attributes:
        ballots: The valid ballots; empty if there were too few.
        round_metrics: Counts of received, accepted and rejected messages.
        client_metrics: The status of each client's message.
    """

    ballots: list[Ballot]
    round_metrics: dict[str, Any]
    client_metrics: dict[int, dict[str, str]]


def apply_attack(
    attack: LabelAttack,
    clients: Sequence[ClientHandle],
    round_number: int,
    uploads: Mapping[int, bytes],
    consensus: Tensor | None,
) -> list[UploadDelivery]:
    """Return what reaches the server when attackers replace, delay or withhold their uploads.

    Args:
        attack: The attackers.
        clients: The clients of the round. Replaying attackers store their upload in their state.
        round_number: The round.
        uploads: The honest uploads by client id.
        consensus: The consensus labels before the round.
    """
    import torch

    states = {client.id: client.state for client in clients if client.id in attack.replay_clients}
    stored = {client_id: state.pop(LAST_UPLOAD_KEY, None) for client_id, state in states.items()}
    previous = {client_id: data.numpy().tobytes() for client_id, data in stored.items() if data is not None}
    for client_id in states.keys() & uploads.keys():
        states[client_id][LAST_UPLOAD_KEY] = torch.frombuffer(bytearray(uploads[client_id]), dtype=torch.uint8)
    labels = None if consensus is None else consensus.cpu().numpy()
    return attack.delivered_uploads(AttackContext(round_number, uploads, previous, labels))


def receive_uploads(
    deliveries: Sequence[UploadDelivery],
    spec: MessageSpec,
    ctx: FederationInfo,
    round_number: int,
    client_ids: Collection[int],
) -> CollectedUploads:
    """Validate the messages of a round. If too few are valid, late messages are accepted too.

    If there are still too few, the round is logged as `degraded` and the server keeps its consensus.
    """
    inbox = LabelInbox(ExpectedMessage(spec, ctx.run_id, ctx.public_set_id, round_number, frozenset(client_ids)))
    late = [delivery for delivery in deliveries if delivery.is_late]
    for delivery in deliveries:
        if not delivery.is_late:
            inbox.receive(delivery.sender_id, delivery.data)
    needed = label_sharing(ctx).defence.min_clients or len(client_ids) // 2 + 1
    retried = inbox.num_valid < needed
    for delivery in late if retried else ():
        inbox.receive(delivery.sender_id, delivery.data)
    degraded = inbox.num_valid < needed
    statuses = {client_id: inbox.status(client_id) for client_id in client_ids}
    if not retried:
        statuses |= {delivery.sender_id: LATE for delivery in late if statuses.get(delivery.sender_id) == MISSING}
    metrics = {
        "received": inbox.num_received,
        "accepted": inbox.count_status(ACCEPTED),
        "abstained": inbox.count_status(ABSTAINED),
        "late": len(late),
        "rejected": dict(sorted(inbox.rejection_counts.items())),
        **({"retried": 1} if retried else {}),
        **({"degraded": 1} if degraded else {}),
    }
    ballots = [] if degraded else inbox.accepted_ballots()
    return CollectedUploads(
        ballots, metrics, {client_id: {"message": status} for client_id, status in statuses.items()}
    )
