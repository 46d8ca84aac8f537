"""The coordinator's transport through Flower."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.federation.flower.flower_messages import (
    DEADLINE_REASON,
    OFFLINE_REASON,
    node_name,
    parse_node_name,
    transient_failure,
)
from fedmosaic_cli.federation.flower.flwr_commands import require_flower
from fedmosaic_cli.federation.flower.ipc import (
    DISCONNECT_ERRORS,
    IpcListener,
    RuntimeDir,
    decode_frame,
    encode_frame,
    receive_bytes,
)
from fedmosaic_cli.federation.flower.superlink import SuperLink, SuperLinkAddress, free_port
from fedmosaic_cli.federation.protocol import printable_text
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path
    from typing import Self

RELAY_START_SECONDS, RELAY_SILENCE_SECONDS = 90.0, 300.0
"""How long the relay may take to start, and to respond while it forwards large payloads."""
ONLINE_POLL_SECONDS, RELAY_RETRY_SECONDS = 1.0, 1.0
MAX_ATTEMPTS, MAX_REASON_CHARS = 3, 200
MAX_OFFLINE_SECONDS = 120.0
"""How long a site may be offline in a round. Flower refuses a node that did not sign off for a minute."""
ANY_LOCAL_PORT = SuperLinkAddress()


class RelayLostError(Exception):
    """The relay or its SuperLink ended."""


@dataclass
class PendingRequest:
    """A request without a response."""

    payload: bytes
    is_sent: bool = False
    retry_at: float = 0.0
    offline_since: float | None = None
    reason: str = OFFLINE_REASON


class FlowerTransport:
    """Runs a SuperLink, sends requests to registered sites, and restarts the SuperLink if it fails.

    All started processes end with the thread that created the transport.

    Args:
        public_keys: The public key of each client. None only without credentials.
        listen_address: Where the SuperLink listens. Port 0 chooses a free port. Without credentials, which is possible
            on this machine only, the transport accepts the name that a site claims.
    """

    def __init__(
        self, public_keys: Mapping[int, Path | None], listen_address: SuperLinkAddress = ANY_LOCAL_PORT
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
        keys = {node_name(client): key.absolute() for client, key in public_keys.items() if key is not None}
        if not listen_address.port:
            listen_address = replace(listen_address, port=free_port(listen_address.host))
        self._superlink = SuperLink(listen_address, self._runtime_dir.path, keys if listen_address.credentials else {})
        try:
            self._start_relay()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT under which this machine reaches the SuperLink."""
        return self._superlink.listen_address.host_port

    def traffic_bytes(self) -> tuple[int, int]:
        """Return the bytes that Flower counted to nodes and from nodes since the relay was started."""
        traffic = self._superlink.relay_run_info().get("network-traffic", {})
        return int(traffic.get("outbound-bytes", 0)), int(traffic.get("inbound-bytes", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes that were started here and remove their files."""
        if self._relay is not None:
            self._relay.close()
        self._superlink.close()
        self._listener.close()
        self._runtime_dir.close()

    def reachable_clients(self) -> set[int]:
        for _ in range(MAX_ATTEMPTS):
            try:
                self._query_online()
                while "online" not in (self._receive_frame(ONLINE_POLL_SECONDS) or ({}, b""))[0]:
                    pass
                return set(self._online)
            except RelayLostError:
                self._recover()
        raise RunFailedError(f"the relay ends repeatedly ({self.address}): check the memory of this machine")

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        """Send each client its request, and yield responses and failures as they come.

        A client whose site process ends, or that is offline for a short time, receives the same bytes again.
        """
        deadline = time.monotonic() + timeout_seconds
        waiting = {client: PendingRequest(payload) for client, payload in requests.items()}
        client_by_request: dict[int, int] = {}
        queried_at = 0.0
        while waiting and (now := time.monotonic()) < deadline:
            try:
                if now - queried_at >= ONLINE_POLL_SECONDS:
                    self._query_online()
                    queried_at = now
                header, payload = self._receive_frame(min(ONLINE_POLL_SECONDS, deadline - now)) or ({}, b"")
                if "online" in header:
                    self._send_pending(waiting, client_by_request, deadline)
                    for offline in self._offline_too_long(waiting):
                        del waiting[offline]
                        yield ClientFailure(offline, OFFLINE_REASON)
                client = client_by_request.get(header.get("reply", header.get("error", 0)))
                if client in waiting and (outcome := self._outcome(client, waiting[client], header, payload)):
                    del waiting[client]
                    yield outcome
            except RelayLostError:
                self._recover()
                waiting = {client: PendingRequest(pending.payload) for client, pending in waiting.items()}
        yield from [ClientFailure(client, pending.reason) for client, pending in waiting.items()]

    def _send_pending(
        self, waiting: dict[int, PendingRequest], client_by_request: dict[int, int], deadline: float
    ) -> None:
        """Send the requests of online clients that are not sent yet."""
        now = time.monotonic()
        for client, pending in waiting.items():
            if not pending.is_sent and client in self._online and now >= pending.retry_at:
                request_id = next(self._request_ids)
                client_by_request[request_id] = client
                pending.is_sent, pending.reason = True, DEADLINE_REASON
                header = {"request": request_id, "name": node_name(client), "timeout_seconds": deadline - now}
                self._send_frame(pending.payload, **header)

    def _offline_too_long(self, waiting: dict[int, PendingRequest]) -> list[int]:
        """Return clients to give up before the round's deadline, which may be an hour away."""
        now = time.monotonic()
        for client, pending in waiting.items():
            pending.offline_since = None if client in self._online else pending.offline_since or now
        return [
            client
            for client, pending in waiting.items()
            if pending.offline_since and now - pending.offline_since > MAX_OFFLINE_SECONDS
        ]

    def _outcome(
        self, client_id: int, pending: PendingRequest, header: dict[str, Any], payload: bytes
    ) -> ClientResponse | ClientFailure | None:
        """Return a client's response or failure, or None if its request is to be sent again."""
        if "reply" in header:
            return ClientResponse(client_id, payload)
        reason = transient_failure(header["code"], header["reason"])
        if reason is None:
            text = printable_text(" ".join(header["reason"].split()), MAX_REASON_CHARS)
            return ClientFailure(client_id, f"no response: {text}")
        pending.is_sent, pending.reason, pending.retry_at = False, reason, time.monotonic() + RELAY_RETRY_SECONDS
        return None

    def _query_online(self) -> None:
        """Ask the relay for the online nodes, unless such a query is pending."""
        if self._query_sent_at is None:
            self._query_sent_at = time.monotonic()
            self._send_frame(list_nodes=True)

    def _send_frame(self, payload: bytes = b"", **header: Any) -> None:
        try:
            if self._relay is None:
                raise EOFError
            self._relay.send_bytes(encode_frame(header, payload))
        except DISCONNECT_ERRORS:
            raise RelayLostError from None

    def _receive_frame(self, timeout_seconds: float) -> tuple[dict[str, Any], bytes] | None:
        """Return the relay's next frame, or None after the timeout."""
        try:
            if self._relay is None or not self._superlink.is_alive:
                raise EOFError
            if not self._relay.poll(timeout_seconds):
                if time.monotonic() - (self._query_sent_at or time.monotonic()) > RELAY_SILENCE_SECONDS:
                    raise EOFError
                return None
            header, payload = decode_frame(receive_bytes(self._relay))
        except DISCONNECT_ERRORS:
            raise RelayLostError from None
        if "online" in header:
            self._query_sent_at = None
            online = map(parse_node_name, header["online"])
            self._online = {client for client in online if client in self._client_ids}
        return header, payload

    def _start_relay(self) -> None:
        """Start the SuperLink and the relay unless they run, and wait for the relay's connection."""
        self._superlink.start()
        deadline = time.monotonic() + RELAY_START_SECONDS
        while self._relay is None and self._superlink.is_alive and time.monotonic() < deadline:
            self._relay = self._listener.next_connection(0.5)
        if self._relay is None:
            raise RunFailedError(
                f"the relay did not start, {self._superlink.relay_status()} ({self.address}): "
                "run fedmosaic in an environment with flwr"
            )
        self._query_sent_at = None

    def _recover(self) -> None:
        """Restart the relay, and the SuperLink if it ended, with a few attempts."""
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
    """Raise `RequestError` if a certificate or key is invalid, before any process is started."""
    if listen_address.credentials is None:
        return
    from fedmosaic_cli.federation.flower.keys import check_certificate, check_public_key

    check_certificate(listen_address.credentials.ca_certificate)
    check_certificate(listen_address.credentials.certificate, listen_address.connect_host)
    for client, key in public_keys.items():
        if key is None:
            raise RequestError(f"client {client} has no public key (keys): register one, or use --insecure")
        check_public_key(key)
