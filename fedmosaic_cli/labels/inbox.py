"""Where clients' opinions arrive: each is checked before a byte of it is used, and what fails is as if never sent."""

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
    """The opinions of one round. Nothing that is received can raise anything, whatever it holds."""

    expected: ExpectedMessage
    num_received: int = 0
    rejection_counts: Counter[str] = field(default_factory=Counter)
    """How often each reason was found."""
    _uploads: dict[int, bytes] = field(default_factory=dict)
    """The first opinion of each client that was meant for this round."""
    _statuses: dict[int, str] = field(default_factory=dict)

    def receive(self, sender_id: int, data: bytes) -> None:
        """Take what came from `sender`, as the transport knows it."""
        self.num_received += 1
        settled = sender_id in self._uploads
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
            # What was not meant for this round, or came damaged, may follow what was, or come before it.
            if sender_id in self.expected.client_ids and (
                not settled or refused.reason is wire.RejectionReason.DUPLICATE
            ):
                self._statuses[sender_id] = refused.reason.value
            return
        self._statuses[client] = ABSTAINED if abstains else ACCEPTED

    def status(self, client_id: int) -> str:
        """What became of a client's opinion: it was accepted, abstained, is missing, or the reason it is not used."""
        return self._statuses.get(client_id, MISSING)

    def count_status(self, status: str) -> int:
        return sum(each == status for each in self._statuses.values())

    @property
    def num_valid(self) -> int:
        """How many clients sent something that can be used; to abstain is to say something."""
        return self.count_status(ACCEPTED) + self.count_status(ABSTAINED)

    def accepted_ballots(self) -> list[Ballot]:
        """The opinions that count, in the order of the clients' numbers."""
        counted = sorted(client for client, fate in self._statuses.items() if fate == ACCEPTED)
        return [Ballot(client, self._uploads[client], self.expected.spec) for client in counted]
