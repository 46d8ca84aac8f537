"""Validation of uploads: every message is checked before its content is used. Invalid messages are ignored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.voting import Ballot

if TYPE_CHECKING:
    from fedmosaic_cli.labels.wire import ExpectedMessage

ACCEPTED, ABSTAINED, MISSING = "accepted", "abstained", "missing"


@dataclass
class LabelInbox:
    """The uploads of one round. Receiving a message never raises, whatever it contains."""

    expected: ExpectedMessage
    num_received: int = 0
    rejection_counts: Counter[str] = field(default_factory=Counter)
    """Number of rejected messages by reason."""
    _uploads: dict[int, bytes] = field(default_factory=dict)
    """The first upload of each client for this round."""
    _statuses: dict[int, str] = field(default_factory=dict)

    def receive(self, sender_id: int, data: bytes) -> None:
        """Validate and store a message from `sender_id`, as the transport identifies the sender."""
        self.num_received += 1
        has_upload = sender_id in self._uploads
        try:
            client = wire.validate_header(data, self.expected, sender_id).client_id
            if client in self._uploads:
                if data == self._uploads[client]:
                    return
                raise wire.InvalidMessageError(wire.RejectionReason.DUPLICATE)
            self._uploads[client] = data
            wire.validate_encoding(data, self.expected.spec)
            abstains = wire.validate_payload(data, self.expected.spec)
        except wire.InvalidMessageError as refused:
            self.rejection_counts[refused.reason.value] += 1
            # A damaged message or one for another round may arrive before or after the valid one.
            if sender_id in self.expected.client_ids and (
                not has_upload or refused.reason is wire.RejectionReason.DUPLICATE
            ):
                self._statuses[sender_id] = refused.reason.value
            return
        self._statuses[client] = ABSTAINED if abstains else ACCEPTED

    def status(self, client_id: int) -> str:
        """Return the status of a client's upload: accepted, abstained, missing, or the reason of its rejection."""
        return self._statuses.get(client_id, MISSING)

    def count_status(self, status: str) -> int:
        """Return the number of clients with this status."""
        return sum(each == status for each in self._statuses.values())

    @property
    def num_valid(self) -> int:
        """The number of clients with a valid upload, including abstentions."""
        return self.count_status(ACCEPTED) + self.count_status(ABSTAINED)

    def accepted_ballots(self) -> list[Ballot]:
        """Return the accepted uploads as ballots, sorted by client id."""
        counted = sorted(client for client, status in self._statuses.items() if status == ACCEPTED)
        return [Ballot(client, self._uploads[client], self.expected.spec) for client in counted]
