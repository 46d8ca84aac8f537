"""Private runtime directories, and sockets in them between processes of one user.

Sockets transmit bytes, never pickled objects.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.federation.protocol import MAX_MESSAGE_BYTES
from fedmosaic_cli.storage import files, syscalls

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_FILE, SOCKET_KEY_FILE, RUNTIME_LOCK_FILE = "socket", "socket.key", "lock"
RUNTIME_DIR_PREFIX = "fedmosaic-"
SHORT_TEMP_DIR = Path("/tmp")
"""Parent of runtime directories if the path of a socket in the user's temporary directory is too long."""
MAX_SOCKET_PATH_BYTES = 100
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + (1 << 16)
"""The largest frame: a message and the header of a frame. A longer one is an `OSError` before memory is allocated."""
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
        self.path = syscalls.make_private_directory(RUNTIME_DIR_PREFIX, parent)
        self._lock_fd: int | None = syscalls.create_private_file(self.path / RUNTIME_LOCK_FILE)
        # The lock is held before the marker is written: only marked directories without a lock are removed.
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        files.write_all(self._lock_fd, [runtime_dir_marker(self.path)])

    def close(self) -> None:
        """Remove the directory and its content."""
        if self._lock_fd is None:
            return
        with suppress(OSError):
            files.remove_path(self.path)
        os.close(self._lock_fd)
        self._lock_fd = None


def runtime_dir_marker(path: Path) -> bytes:
    """Return the content of the lock file of a runtime directory, which shows that this tool and user created it."""
    return f"fedmosaic runtime directory {path.name} of user {os.geteuid()}\n".encode()


def remove_stale_runtime_dirs(parent: Path) -> None:
    """Remove the runtime directories of killed processes: those with this user's marker whose lock is free."""
    for path in parent.glob(f"{RUNTIME_DIR_PREFIX}*"):
        with suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                remove_if_stale(path, folder)
            finally:
                os.close(folder)


def remove_if_stale(path: Path, folder_fd: int) -> None:
    """Remove one directory if this user owns it, its marker is valid and no process holds its lock."""
    if not is_private(os.fstat(folder_fd)):
        return
    lock_fd = os.open(RUNTIME_LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder_fd)
    try:
        status, marker = os.fstat(lock_fd), runtime_dir_marker(path)
        if not stat.S_ISREG(status.st_mode) or not is_private(status):
            return
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.pread(lock_fd, len(marker) + 1, 0) == marker:
            files.remove_path(path)
    finally:
        os.close(lock_fd)


def is_private(status: os.stat_result) -> bool:
    """Return whether this user owns an entry and no other user has any permission for it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


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


def receive_bytes(connection: Connection[bytes, bytes]) -> bytes:
    """Return the next frame or message of a connection.

    Raises:
        EOFError: The other side has closed the connection.
        OSError: The connection is broken, or the frame is longer than `MAX_FRAME_BYTES`.
    """
    return connection.recv_bytes(MAX_FRAME_BYTES)


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
