"""Letters to clients at other sites, by way of Flower."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import FailedRunError, RequestError
from fedmosaic_cli.federation.flower.flower_errors import GONE as AWAY
from fedmosaic_cli.federation.flower.flower_errors import LATE, passing
from fedmosaic_cli.federation.flower.flower_version import check_flower
from fedmosaic_cli.federation.flower.ipc import GONE, Door, pack, unpack
from fedmosaic_cli.federation.flower.keys import check_certificate, check_public_key
from fedmosaic_cli.federation.flower.node_names import client_of, node_name
from fedmosaic_cli.federation.flower.runtime_dir import Room
from fedmosaic_cli.federation.flower.superlink import Link, Place, free_port
from fedmosaic_cli.federation.protocol import printable
from fedmosaic_cli.federation.transport import Answer, Loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType
    from typing import Self

RELAY_SECONDS, SILENCE_SECONDS = 90.0, 300.0
"""How long a relay may take to come, and to answer anything: it may have much to hand on."""
LOOK_SECONDS, PAUSE_SECONDS = 1.0, 1.0
ATTEMPTS, MOST_WORDS = 3, 200
AWAY_SECONDS = 120.0
"""How long somebody may be away in a round: Flower takes a minute to let in again who did not take his leave."""


class RelayLostError(Exception):
    """Nobody relays any more."""


@dataclass
class Pending:
    """A client that has not answered yet."""

    letter: bytes
    asked: bool = False
    not_before: float = 0.0
    away_since: float | None = None
    reason: str = AWAY


class FlowerCarrier:
    """Starts a SuperLink of its own, asks those whose keys it knows, and starts anew if it breaks down in between.

    `keys` are the clients' public keys. Without papers there are none, and a node is believed whom it says it is: such
    a rehearsal is possible on this machine alone. Everything that was started ends with the thread that made this.
    """

    def __init__(self, keys: Mapping[int, Path | None], place: Place = Place()) -> None:  # noqa: B008
        check_flower()
        check_papers(keys, place)
        self._clients = set(keys)
        self._numbers = count(1)
        self._relay: Connection[bytes, bytes] | None = None
        self._silent_since: float | None = None
        self._here: set[int] = set()
        self._room = Room()
        self._door = Door(self._room.path)
        known = {node_name(client): key.absolute() for client, key in keys.items() if key is not None}
        place = place if place.port else replace(place, port=free_port(place.host))
        self._link = Link(place, self._room.path, known if place.papers else {})
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where this machine finds our SuperLink; others may know it by another name."""
        return self._link.place.address

    def traffic(self) -> tuple[int, int]:
        """The bytes that Flower counted to nodes and from them since its relay was started."""
        counted = self._link.counts().get("network-traffic", {})
        return int(counted.get("outbound-bytes", 0)), int(counted.get("inbound-bytes", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started here; nothing is left."""
        if self._relay is not None:
            self._relay.close()
        self._link.close()
        self._door.close()
        self._room.close()

    def present(self) -> set[int]:
        """Who can be reached now."""
        for _ in range(ATTEMPTS):
            try:
                self._look()
                while "here" not in (self._next(LOOK_SECONDS) or ({}, b""))[0]:
                    pass
                return set(self._here)
            except RelayLostError:
                self._recover()
        raise FailedRunError(f"Flower's relay keeps ending ({self.address}): has the machine enough memory?")

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[Answer | Loss]:
        """Hand each client its letter; what they answer, as it comes, each client once. Who did not answer in time is
        lost, and so is who stays away. Who breaks down, or comes back soon, is asked again with the same bytes."""
        deadline = time.monotonic() + seconds
        waiting = {client: Pending(letter) for client, letter in letters.items()}
        asks: dict[int, int] = {}
        looked = 0.0
        while waiting and (now := time.monotonic()) < deadline:
            try:
                if now - looked >= LOOK_SECONDS:
                    self._look()
                    looked = now
                header, payload = self._next(min(LOOK_SECONDS, deadline - now)) or ({}, b"")
                if "here" in header:
                    self._send(waiting, asks, deadline)
                    for away in self._staying_away(waiting):
                        del waiting[away]
                        yield Loss(away, AWAY)
                client = asks.get(header.get("reply", header.get("error", 0)))
                if client in waiting and (outcome := self._outcome(client, waiting[client], header, payload)):
                    del waiting[client]
                    yield outcome
            except RelayLostError:
                self._recover()
                waiting = {client: Pending(pending.letter) for client, pending in waiting.items()}
        yield from [Loss(client, pending.reason) for client, pending in waiting.items()]

    def _send(self, waiting: dict[int, Pending], asks: dict[int, int], deadline: float) -> None:
        """Ask those who are here and have nothing to answer yet."""
        now = time.monotonic()
        for client, pending in waiting.items():
            if not pending.asked and client in self._here and now >= pending.not_before:
                number = next(self._numbers)
                asks[number] = client
                pending.asked, pending.reason = True, LATE
                self._tell(pending.letter, ask=number, name=node_name(client), seconds=deadline - now)

    def _staying_away(self, waiting: dict[int, Pending]) -> list[int]:
        """Who has been away for so long that nobody waits for the rest of a deadline: that may be an hour."""
        now = time.monotonic()
        for client, pending in waiting.items():
            pending.away_since = None if client in self._here else pending.away_since or now
        return [client for client, each in waiting.items() if each.away_since and now - each.away_since > AWAY_SECONDS]

    def _outcome(self, client: int, pending: Pending, header: dict[str, Any], payload: bytes) -> Answer | Loss | None:
        """What became of a client, unless it is to be asked again."""
        if "reply" in header:
            return Answer(client, payload)
        reason = passing(header["code"], header["reason"])
        if reason is None:
            words = " ".join(header["reason"].split())
            return Loss(client, f"no answer: {printable(words, MOST_WORDS)}")
        pending.asked, pending.reason, pending.not_before = False, reason, time.monotonic() + PAUSE_SECONDS
        return None

    def _look(self) -> None:
        """Ask who is here, unless that is still to be answered."""
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            self._tell(who=True)

    def _tell(self, payload: bytes = b"", **header: Any) -> None:
        try:
            if self._relay is None:
                raise EOFError
            self._relay.send_bytes(pack(header, payload))
        except GONE:
            raise RelayLostError from None

    def _next(self, seconds: float) -> tuple[dict[str, Any], bytes] | None:
        """What the relay says next, if anything within so many seconds."""
        try:
            if self._relay is None or not self._link.alive:
                raise EOFError
            if not self._relay.poll(seconds):
                if time.monotonic() - (self._silent_since or time.monotonic()) > SILENCE_SECONDS:
                    raise EOFError
                return None
            header, payload = unpack(self._relay.recv_bytes())
        except GONE:
            raise RelayLostError from None
        if "here" in header:
            self._silent_since = None
            self._here = {client for name in header["here"] if (client := client_of(name)) in self._clients}
        return header, payload

    def _start(self) -> None:
        """Start whatever does not run, and wait until the relay has come."""
        self._link.start()
        deadline = time.monotonic() + RELAY_SECONDS
        while self._relay is None and self._link.alive and time.monotonic() < deadline:
            self._relay = self._door.next(0.5)
        if self._relay is None:
            state = self._link.state_of_relay()
            raise FailedRunError(f"Flower's relay did not start, {state} ({self.address}): is flwr beside fedmosaic?")
        self._silent_since = None

    def _recover(self) -> None:
        """Start anew what broke down, a few times."""
        for attempt in range(ATTEMPTS):
            if self._relay is not None:
                self._relay.close()
                self._relay = None
            try:
                self._link.stop_relay()
                self._start()
                return
            except FailedRunError:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE_SECONDS)


def check_papers(keys: Mapping[int, Path | None], place: Place) -> None:
    """Refuse papers that are not in order, before anything is started."""
    if place.papers is None:
        return
    check_certificate(place.papers.authority)
    check_certificate(place.papers.certificate, place.reached)
    for client, key in keys.items():
        if key is None:
            raise RequestError(f"client {client} has no public key (keys): register one, or rehearse without papers")
        check_public_key(key)
