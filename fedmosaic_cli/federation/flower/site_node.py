"""A site's node: its program is kept running, and the coordinator's requests are handled one at a time.

The program is `node_program`, not Flower's SuperNode, which would execute the apps that it receives.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.flower.flower_processes import FlowerProcess, terminate_all
from fedmosaic_cli.federation.flower.flwr_commands import require_flower
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, IpcListener, RuntimeDir, receive_bytes
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path
    from typing import Self

RESTART_DELAYS_SECONDS = (5.0, 10.0, 15.0)
"""Delay before a restart: after the first failure, the second, and all later ones."""
NODE_REFUSED_EXIT_CODE = 305
"""Flower's code for a node that the SuperLink refused: unknown key, or its previous session has not expired."""
CONNECTED_TEXT = "connected to the SuperLink as node"
"""Printed by `node_program`."""
NODE_PROGRAM = "fedmosaic_cli.federation.flower.node_program"
STOP_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ConnectionEvent:
    """A change of the site's connection."""

    kind: Literal["started", "connected", "refused", "ended", "response_lost"]
    detail: str = ""


class SiteNode:
    """Keeps the process of a node running and handles its requests.

    Args:
        client_id: The client of this site.
        superlink_address: HOST:PORT of the coordinator's SuperLink.
        handle_request: Returns the response to a request. `serve` calls it in its own thread.
        root: Certificate of the authority that signed the SuperLink's certificate.
        key: Private key of this site. Without `root` and `key` the connection is not authenticated.
        on_event: Receives connection events, from another thread.
    """

    def __init__(
        self,
        client_id: int,
        superlink_address: str,
        handle_request: Callable[[bytes], bytes],
        *,
        root: Path | None = None,
        key: Path | None = None,
        on_event: Callable[[ConnectionEvent], None] = lambda event: None,
    ) -> None:
        require_flower()
        self._client_id = client_id
        self._superlink_address = superlink_address
        self._handle_request = handle_request
        self._root_certificate, self._private_key = root, key
        self._on_event = on_event
        self._stop_event, self._connected_event = Event(), Event()
        self._runtime_dir = RuntimeDir()
        files.make_directories(self._runtime_dir.path / "flwr")
        self._listener = IpcListener(self._runtime_dir.path)
        self._thread = Thread(target=self._keep_running, name="site-node", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Handle requests one after another until `should_stop` returns True.

        An exception of `handle_request` ends this. The coordinator repeats the request later.
        """
        while not should_stop():
            connection = self._listener.next_connection(STOP_POLL_SECONDS)
            if connection is not None:
                with connection:
                    self._serve_request(connection)

    def _serve_request(self, connection: Connection[bytes, bytes]) -> None:
        try:
            request = receive_bytes(connection)
        except DISCONNECT_ERRORS:
            return
        response = self._handle_request(request)
        try:
            connection.send_bytes(response)
        except DISCONNECT_ERRORS:
            detail = "the coordinator's connection was lost before the response was sent"
            self._on_event(ConnectionEvent("response_lost", detail))

    def close(self) -> None:
        """End the node's process."""
        self._stop_event.set()
        while self._thread.is_alive():  # it may just have started another process
            terminate_all(self._runtime_dir.path)
            self._thread.join(timeout=STOP_POLL_SECONDS)
        self._listener.close()
        self._runtime_dir.close()

    def _keep_running(self) -> None:
        """Restart the process whenever it ends. It ends gracefully, so that it signs off at the SuperLink."""
        num_failures = 0
        while not self._stop_event.is_set():
            self._connected_event.clear()
            terminate_all(self._runtime_dir.path)
            process = FlowerProcess(
                self._command(), self._runtime_dir.path, graceful=True, on_line=self._on_output_line
            )
            self._on_event(ConnectionEvent("started"))
            process.process.wait()
            if self._stop_event.is_set():
                break
            reason, is_refused = process.exit_reason(), process.exit_code() == NODE_REFUSED_EXIT_CODE
            self._on_event(ConnectionEvent("refused" if is_refused else "ended", reason))
            num_failures = 0 if self._connected_event.is_set() else num_failures + 1
            self._stop_event.wait(RESTART_DELAYS_SECONDS[min(num_failures, len(RESTART_DELAYS_SECONDS) - 1)])
        terminate_all(self._runtime_dir.path)

    def _on_output_line(self, line: str) -> None:
        if CONNECTED_TEXT in line:
            self._connected_event.set()
            self._on_event(ConnectionEvent("connected"))

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", NODE_PROGRAM, node_name(self._client_id), self._superlink_address]
        if self._root_certificate is None or self._private_key is None:
            return command
        return [*command, str(self._root_certificate.absolute()), str(self._private_key.absolute())]
