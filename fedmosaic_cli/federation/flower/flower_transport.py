"""Letters to clients at other sites, by way of Flower."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.federation.flower.flower_errors import DEADLINE_REASON, transient_failure
from fedmosaic_cli.federation.flower.flower_errors import OFFLINE_REASON as AWAY
from fedmosaic_cli.federation.flower.flower_version import require_flower
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, IpcListener, decode_frame, encode_frame
from fedmosaic_cli.federation.flower.keys import check_certificate, check_public_key
from fedmosaic_cli.federation.flower.node_names import node_name, parse_node_name
from fedmosaic_cli.federation.flower.runtime_dir import RuntimeDir
from fedmosaic_cli.federation.flower.superlink import SuperLink, SuperLinkAddress, free_port
from fedmosaic_cli.federation.protocol import printable_text
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType
    from typing import Self

RELAY_START_SECONDS, RELAY_SILENCE_SECONDS = 90.0, 300.0
"""How long a relay may take to come, and to answer anything: it may have much to hand on."""
ONLINE_POLL_SECONDS, RELAY_RETRY_SECONDS = 1.0, 1.0
MAX_ATTEMPTS, MAX_REASON_CHARS = 3, 200
MAX_OFFLINE_SECONDS = 120.0
"""How long somebody may be away in a round: Flower takes a minute to let in again who did not take his leave."""


class RelayLostError(Exception):
    """Nobody relays any more."""


@dataclass
class PendingRequest:
    """A client that has not answered yet."""

    payload: bytes
    is_sent: bool = False
    retry_at: float = 0.0
    offline_since: float | None = None
    reason: str = AWAY


class FlowerTransport:
    """Starts a SuperLink of its own, asks those whose keys it knows, and starts anew if it breaks down in between.

    `keys` are the clients' public keys. Without papers there are none, and a node is believed whom it says it is: such
    a rehearsal is possible on this machine alone. Everything that was started ends with the thread that made this.
    """

    def __init__(
        self, public_keys: Mapping[int, Path | None], listen_address: SuperLinkAddress = SuperLinkAddress()
    ) -> None:
        require_flower()
        check_credentials(public_keys, listen_address)
        self._client_ids = set(public_keys)
        self._request_ids = count(1)
        self._relay: Connection[bytes, bytes] | None = None
        self._query_sent_at: float | None = None
        self._online: set[int] = set()
        self._runtime_dir = RuntimeDir()
        self._listener = IpcListener(self._runtime_dir.path)
        known = {node_name(client): key.absolute() for client, key in public_keys.items() if key is not None}
        listen_address = (
            listen_address if listen_address.port else replace(listen_address, port=free_port(listen_address.host))
        )
        self._superlink = SuperLink(listen_address, self._runtime_dir.path, known if listen_address.credentials else {})
        try:
            self._start_relay()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where this machine finds our SuperLink; others may know it by another name."""
        return self._superlink.listen_address.host_port

    def traffic_bytes(self) -> tuple[int, int]:
        """The bytes that Flower counted to nodes and from them since its relay was started."""
        counted = self._superlink.relay_run_info().get("network-traffic", {})
        return int(counted.get("outbound-bytes", 0)), int(counted.get("inbound-bytes", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started here; nothing is left."""
        if self._relay is not None:
            self._relay.close()
        self._superlink.close()
        self._listener.close()
        self._runtime_dir.close()

    def reachable_clients(self) -> set[int]:
        """Who can be reached now."""
        for _ in range(MAX_ATTEMPTS):
            try:
                self._query_online()
                while "here" not in (self._receive_frame(ONLINE_POLL_SECONDS) or ({}, b""))[0]:
                    pass
                return set(self._online)
            except RelayLostError:
                self._recover()
        raise RunFailedError(f"Flower's relay keeps ending ({self.address}): has the machine enough memory?")

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        """Hand each client its letter; what they answer, as it comes, each client once. Who did not answer in time is
        lost, and so is who stays away. Who breaks down, or comes back soon, is asked again with the same bytes."""
        deadline = time.monotonic() + timeout_seconds
        waiting = {client: PendingRequest(letter) for client, letter in requests.items()}
        asks: dict[int, int] = {}
        looked = 0.0
        while waiting and (now := time.monotonic()) < deadline:
            try:
                if now - looked >= ONLINE_POLL_SECONDS:
                    self._query_online()
                    looked = now
                header, payload = self._receive_frame(min(ONLINE_POLL_SECONDS, deadline - now)) or ({}, b"")
                if "here" in header:
                    self._send_pending(waiting, asks, deadline)
                    for away in self._offline_too_long(waiting):
                        del waiting[away]
                        yield ClientFailure(away, AWAY)
                client = asks.get(header.get("reply", header.get("error", 0)))
                if client in waiting and (outcome := self._outcome(client, waiting[client], header, payload)):
                    del waiting[client]
                    yield outcome
            except RelayLostError:
                self._recover()
                waiting = {client: PendingRequest(pending.payload) for client, pending in waiting.items()}
        yield from [ClientFailure(client, pending.reason) for client, pending in waiting.items()]

    def _send_pending(
        self, pending_by_client: dict[int, PendingRequest], client_by_request: dict[int, int], deadline: float
    ) -> None:
        """Ask those who are here and have nothing to answer yet."""
        now = time.monotonic()
        for client, pending in pending_by_client.items():
            if not pending.is_sent and client in self._online and now >= pending.retry_at:
                number = next(self._request_ids)
                client_by_request[number] = client
                pending.is_sent, pending.reason = True, DEADLINE_REASON
                self._send_frame(pending.payload, ask=number, name=node_name(client), seconds=deadline - now)

    def _offline_too_long(self, pending_by_client: dict[int, PendingRequest]) -> list[int]:
        """Who has been away for so long that nobody waits for the rest of a deadline: that may be an hour."""
        now = time.monotonic()
        for client, pending in pending_by_client.items():
            pending.offline_since = None if client in self._online else pending.offline_since or now
        return [
            client
            for client, each in pending_by_client.items()
            if each.offline_since and now - each.offline_since > MAX_OFFLINE_SECONDS
        ]

    def _outcome(
        self, client_id: int, pending: PendingRequest, header: dict[str, Any], payload: bytes
    ) -> ClientResponse | ClientFailure | None:
        """What became of a client, unless it is to be asked again."""
        if "reply" in header:
            return ClientResponse(client_id, payload)
        reason = transient_failure(header["code"], header["reason"])
        if reason is None:
            words = " ".join(header["reason"].split())
            return ClientFailure(client_id, f"no answer: {printable_text(words, MAX_REASON_CHARS)}")
        pending.is_sent, pending.reason, pending.retry_at = False, reason, time.monotonic() + RELAY_RETRY_SECONDS
        return None

    def _query_online(self) -> None:
        """Ask who is here, unless that is still to be answered."""
        if self._query_sent_at is None:
            self._query_sent_at = time.monotonic()
            self._send_frame(who=True)

    def _send_frame(self, payload: bytes = b"", **header: Any) -> None:
        try:
            if self._relay is None:
                raise EOFError
            self._relay.send_bytes(encode_frame(header, payload))
        except DISCONNECT_ERRORS:
            raise RelayLostError from None

    def _receive_frame(self, timeout_seconds: float) -> tuple[dict[str, Any], bytes] | None:
        """What the relay says next, if anything within so many seconds."""
        try:
            if self._relay is None or not self._superlink.is_alive:
                raise EOFError
            if not self._relay.poll(timeout_seconds):
                if time.monotonic() - (self._query_sent_at or time.monotonic()) > RELAY_SILENCE_SECONDS:
                    raise EOFError
                return None
            header, payload = decode_frame(self._relay.recv_bytes())
        except DISCONNECT_ERRORS:
            raise RelayLostError from None
        if "here" in header:
            self._query_sent_at = None
            self._online = {client for name in header["here"] if (client := parse_node_name(name)) in self._client_ids}
        return header, payload

    def _start_relay(self) -> None:
        """Start whatever does not run, and wait until the relay has come."""
        self._superlink.start()
        deadline = time.monotonic() + RELAY_START_SECONDS
        while self._relay is None and self._superlink.is_alive and time.monotonic() < deadline:
            self._relay = self._listener.next_connection(0.5)
        if self._relay is None:
            state = self._superlink.relay_status()
            raise RunFailedError(f"Flower's relay did not start, {state} ({self.address}): is flwr beside fedmosaic?")
        self._query_sent_at = None

    def _recover(self) -> None:
        """Start anew what broke down, a few times."""
        for attempt in range(MAX_ATTEMPTS):
            if self._relay is not None:
                self._relay.close()
                self._relay = None
            try:
                self._superlink.stop_relay()
                self._start_relay()
                return
            except RunFailedError:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                time.sleep(RELAY_RETRY_SECONDS)


def check_credentials(public_keys: Mapping[int, Path | None], listen_address: SuperLinkAddress) -> None:
    """Refuse papers that are not in order, before anything is started."""
    if listen_address.credentials is None:
        return
    check_certificate(listen_address.credentials.ca_certificate)
    check_certificate(listen_address.credentials.certificate, listen_address.connect_host)
    for client, key in public_keys.items():
        if key is None:
            raise RequestError(f"client {client} has no public key (keys): register one, or rehearse without papers")
        check_public_key(key)
