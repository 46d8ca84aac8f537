"""Sockets between processes of one user on one machine. Bytes go through them, never objects."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SOCKET_FILE, SOCKET_KEY_FILE = "socket", "socket.key"
DISCONNECT_ERRORS = (EOFError, OSError)
"""What is raised where nobody is at the other end."""


def encode_frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """A frame: a line of JSON, and bytes."""
    return json.dumps(header).encode() + b"\n" + payload


def decode_frame(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of a frame."""
    line, _, payload = frame.partition(b"\n")
    header = json.loads(line)
    if not isinstance(header, dict):
        raise ValueError("a frame without a header")
    return header, payload


def connect_socket(folder: Path) -> Connection[bytes, bytes]:
    """The other end of the socket that somebody listens at in a directory."""
    return Client(str(folder / SOCKET_FILE), "AF_UNIX", authkey=(folder / SOCKET_KEY_FILE).read_bytes())


class IpcListener:
    """Listens at a socket in a private directory; those who come are let in one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        key = secrets.token_bytes(32)
        files.write_new_private_file(folder / SOCKET_KEY_FILE, key)
        self._listener = Listener(str(folder / SOCKET_FILE), "AF_UNIX", backlog=16, authkey=key)
        self._closed = False
        self._connections: Queue[Connection[bytes, bytes]] = Queue()
        self._thread = Thread(target=self._accept_connections, name="door", daemon=True)
        self._thread.start()

    def next_connection(self, timeout_seconds: float) -> Connection[bytes, bytes] | None:
        """Whoever comes next, if anybody does within so many seconds."""
        try:
            return self._connections.get(timeout=timeout_seconds)
        except Empty:
            return None

    def close(self) -> None:
        """Let nobody in any more, and see those off who wait."""
        self._closed = True
        with suppress(AuthenticationError, *DISCONNECT_ERRORS):  # whoever waits for guests is woken by one
            connect_socket(self._folder).close()
        self._thread.join(timeout=1)
        self._listener.close()
        while (guest := self.next_connection(0)) is not None:
            guest.close()

    def _accept_connections(self) -> None:
        while not self._closed:
            with suppress(AuthenticationError, EOFError, ConnectionError):
                self._connections.put(self._listener.accept())


def is_socket_path_too_long(folder: Path) -> bool:
    """Whether the path of a socket in a directory is more than the system takes."""
    return len(os.fsencode(folder / SOCKET_FILE)) > 100
