"""Where clients' opinions arrive: each is checked before a byte of it is used, and what fails is as if never sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.voting import Ballot

if TYPE_CHECKING:
    from fedmosaic_cli.labels.wire import Expected

ACCEPTED, ABSTAINED, MISSING = "accepted", "abstained", "missing"


@dataclass
class Inbox:
    """The opinions of one round. Nothing that is received can raise anything, whatever it holds."""

    expected: Expected
    received: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """How often each reason was found."""
    _opinions: dict[int, bytes] = field(default_factory=dict)
    """The first opinion of each client that was meant for this round."""
    _fates: dict[int, str] = field(default_factory=dict)

    def receive(self, sender: int, data: bytes) -> None:
        """Take what came from `sender`, as the transport knows it."""
        self.received += 1
        settled = sender in self._opinions
        try:
            client = wire.open_envelope(data, self.expected, sender).client
            if client in self._opinions:
                if data == self._opinions[client]:
                    return
                raise wire.RefusedError(wire.Reason.DUPLICATE)
            self._opinions[client] = data
            wire.check_form(data, self.expected.form)
            abstains = wire.check_content(data, self.expected.form)
        except wire.RefusedError as refused:
            self.rejected[refused.reason.value] += 1
            # What was not meant for this round, or came damaged, may follow what was, or come before it.
            if sender in self.expected.roster and (not settled or refused.reason is wire.Reason.DUPLICATE):
                self._fates[sender] = refused.reason.value
            return
        self._fates[client] = ABSTAINED if abstains else ACCEPTED

    def fate(self, client: int) -> str:
        """What became of a client's opinion: it was accepted, abstained, is missing, or the reason it is not used."""
        return self._fates.get(client, MISSING)

    def count(self, fate: str) -> int:
        return sum(each == fate for each in self._fates.values())

    @property
    def valid(self) -> int:
        """How many clients sent something that can be used; to abstain is to say something."""
        return self.count(ACCEPTED) + self.count(ABSTAINED)

    def ballots(self) -> list[Ballot]:
        """The opinions that count, in the order of the clients' numbers."""
        counted = sorted(client for client, fate in self._fates.items() if fate == ACCEPTED)
        return [Ballot(client, self._opinions[client], self.expected.form) for client in counted]
