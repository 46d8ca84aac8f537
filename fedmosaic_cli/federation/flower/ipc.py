"""Private runtime directories, and sockets in them between processes of one user.

Sockets carry bytes, never pickled objects.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.storage import files, syscalls

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_FILE, SOCKET_KEY_FILE, RUNTIME_LOCK_FILE = "socket", "socket.key", "lock"
RUNTIME_DIR_PREFIX = "fedmosaic-"
SHORT_TEMP_DIR = Path("/tmp")
"""Parent of runtime directories if the path of a socket in the user's temporary directory is too long."""
MAX_SOCKET_PATH_BYTES = 100
DISCONNECT_ERRORS = (EOFError, OSError)
"""Raised if no process is at the other end of a socket."""


class RuntimeDir:
    """A directory that only this user can read: Flower's settings, sockets and output files.

    `close` removes it. The directory of a killed process is removed when the next one is created.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        longest_path = parent / f"{RUNTIME_DIR_PREFIX}12345678" / SOCKET_FILE
        if len(os.fsencode(longest_path)) > MAX_SOCKET_PATH_BYTES and SHORT_TEMP_DIR.is_dir():
            parent = SHORT_TEMP_DIR
        remove_stale_runtime_dirs(parent)
        while not self._create_locked(parent):
            pass

    def _create_locked(self, parent: Path) -> bool:
        """Create and lock the directory. Return False if another process removed it before the lock was held."""
        self.path = syscalls.make_private_directory(RUNTIME_DIR_PREFIX, parent)
        try:
            self._lock_fd: int | None = syscalls.create_private_file(self.path / RUNTIME_LOCK_FILE)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (self.path / RUNTIME_LOCK_FILE).exists():
                return True
        except BlockingIOError:
            pass
        os.close(self._lock_fd)
        return False

    def close(self) -> None:
        """Remove the directory and its content."""
        if self._lock_fd is None:
            return
        with suppress(OSError):
            files.remove_path(self.path)
        os.close(self._lock_fd)
        self._lock_fd = None


def remove_stale_runtime_dirs(parent: Path) -> None:
    """Remove the runtime directories of killed processes: those whose lock is free."""
    for path in parent.glob(f"{RUNTIME_DIR_PREFIX}*"):
        with suppress(OSError):
            handle = os.open(path / RUNTIME_LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                files.remove_path(path)
            finally:
                os.close(handle)


def encode_frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Return a frame: one line of JSON, then the payload."""
    return json.dumps(header).encode() + b"\n" + payload


def decode_frame(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the payload of a frame. Raise `ValueError` if the header is not a JSON object."""
    line, _, payload = frame.partition(b"\n")
    header = json.loads(line)
    if not isinstance(header, dict):
        raise ValueError("a frame without a header")
    return header, payload


def connect_socket(folder: Path) -> Connection[bytes, bytes]:
    """Connect to the `IpcListener` of a directory."""
    return Client(str(folder / SOCKET_FILE), "AF_UNIX", authkey=(folder / SOCKET_KEY_FILE).read_bytes())


class IpcListener:
    """Listens on a socket in a private directory and queues the connections of processes that know its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        key = secrets.token_bytes(32)
        files.write_new_private_file(folder / SOCKET_KEY_FILE, key)
        self._listener = Listener(str(folder / SOCKET_FILE), "AF_UNIX", backlog=16, authkey=key)
        self._closed = False
        self._connections: Queue[Connection[bytes, bytes]] = Queue()
        self._thread = Thread(target=self._accept_connections, name="ipc-listener", daemon=True)
        self._thread.start()

    def next_connection(self, timeout_seconds: float) -> Connection[bytes, bytes] | None:
        """Return the next connection, or None after the timeout."""
        try:
            return self._connections.get(timeout=timeout_seconds)
        except Empty:
            return None

    def close(self) -> None:
        """Stop listening and close the queued connections."""
        self._closed = True
        with suppress(AuthenticationError, *DISCONNECT_ERRORS):  # a connection wakes the accepting thread
            connect_socket(self._folder).close()
        self._thread.join(timeout=1)
        self._listener.close()
        while (connection := self.next_connection(0)) is not None:
            connection.close()

    def _accept_connections(self) -> None:
        while not self._closed:
            with suppress(AuthenticationError, EOFError, ConnectionError):
                self._connections.put(self._listener.accept())
