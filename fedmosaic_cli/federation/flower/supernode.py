"""The side of a site: a SuperNode that is kept running, and letters that are answered one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.federation.flower.flower_processes import FlowerProcess, terminate_all
from fedmosaic_cli.federation.flower.flower_version import require_flower
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, IpcListener
from fedmosaic_cli.federation.flower.node_names import node_name
from fedmosaic_cli.federation.flower.runtime_dir import RuntimeDir
from fedmosaic_cli.federation.flower.superlink import free_port
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType
    from typing import Self

RESTART_DELAYS_SECONDS = (5.0, 10.0, 15.0)
"""How long to wait before a SuperNode is started again: after the first end, the second, and all others."""
NODE_REFUSED_EXIT_CODE = 305
"""Flower's code for a node that was not let in: its key is not known, or its last life is not over yet."""
CONNECTED_TEXT = "SuperNode ID:"
STOP_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ConnectionEvent:
    """What happened to the connection."""

    kind: Literal["started", "connected", "refused", "ended", "unheard"]
    detail: str = ""


class SuperNode:
    """Keeps a SuperNode running, however often it ends, and answers what comes.

    `root` vouches for the SuperLink and `key` is the private key of this site; without both everybody is believed, in
    rehearsals on one machine. `answer` is called by `serve`, in its thread; `tell` is called from another one.
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
        self._stop_event = Flag()
        self._connected_event = Flag()
        self._process: FlowerProcess | None = None
        self._runtime_dir = RuntimeDir()
        files.make_directories(self._runtime_dir.path / "flwr")
        self._listener = IpcListener(self._runtime_dir.path)
        self._thread = Thread(target=self._keep_running, name="supernode", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def serve(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Answer letters one after another until `stop` says so. What `answer` raises ends this, and its letter is
        asked for again later."""
        while not should_stop():
            guest = self._listener.next_connection(STOP_POLL_SECONDS)
            if guest is None:
                continue
            with guest:
                self._serve_request(guest)

    def _serve_request(self, connection: Connection[bytes, bytes]) -> None:
        """Answer one letter."""
        asked_by = self._process
        try:
            letter = connection.recv_bytes()
        except DISCONNECT_ERRORS:
            return
        answer = self._handle_request(letter)
        try:
            connection.send_bytes(answer)
        except DISCONNECT_ERRORS:
            self._on_event(ConnectionEvent("unheard", "whoever asked did not wait for the answer"))
            if asked_by is not None and asked_by is self._process:
                # It would take a minute to notice that its app is gone, and take no other letter before.
                asked_by.process.terminate()

    def close(self) -> None:
        """End the SuperNode and all that it started; nothing is left."""
        self._stop_event.set()
        while self._thread.is_alive():  # one more may just have been started
            terminate_all(self._runtime_dir.path)
            self._thread.join(timeout=STOP_POLL_SECONDS)
        self._listener.close()
        self._runtime_dir.close()

    def _keep_running(self) -> None:
        """Start a SuperNode whenever none runs. It hears of our death in time to take its leave from the SuperLink."""
        failures = 0
        while not self._stop_event.is_set():
            self._connected_event.clear()
            terminate_all(self._runtime_dir.path)
            child = self._process = FlowerProcess(
                self._command(), self._runtime_dir.path, graceful=True, on_line=self._on_output_line
            )
            self._on_event(ConnectionEvent("started"))
            child.process.wait()
            if self._stop_event.is_set():
                break
            words = child.exit_reason()
            self._on_event(
                ConnectionEvent("refused" if child.exit_code() == NODE_REFUSED_EXIT_CODE else "ended", words)
            )
            failures = 0 if self._connected_event.is_set() else failures + 1
            self._stop_event.wait(RESTART_DELAYS_SECONDS[min(failures, len(RESTART_DELAYS_SECONDS) - 1)])
        terminate_all(self._runtime_dir.path)

    def _on_output_line(self, line: str) -> None:
        if CONNECTED_TEXT in line:
            self._connected_event.set()
            self._on_event(ConnectionEvent("connected"))

    def _command(self) -> list[str]:
        own = f'room="{self._runtime_dir.path}" name="{node_name(self._client_id)}"'
        port = str(free_port())
        command = ["flower-supernode", "--superlink", self._superlink_address, "--host", "127.0.0.1", "--port", port]
        command += ["--node-config", own]
        if self._root_certificate is None or self._private_key is None:
            return [*command, "--insecure"]
        papers = {"--root-certificates": self._root_certificate, "--auth-supernode-private-key": self._private_key}
        return [*command, *(part for option, path in papers.items() for part in (option, str(path.absolute())))]
