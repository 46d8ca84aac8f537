"""A private directory for as long as a process needs it: settings of Flower, sockets, what it has to remember."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from fedmosaic_cli.federation.flower.ipc import too_long
from fedmosaic_cli.storage import files, syscalls

PREFIX = "fedmosaic-"
LOCK = "lock"
SHORT = Path("/tmp")
"""Where rooms are made if the user's own place has too long a name for a socket."""


class Room:
    """A directory that nobody else can look into. It is removed in the end; if we are killed, by whoever comes next."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        parent = SHORT if too_long(parent / f"{PREFIX}12345678") and SHORT.is_dir() else parent
        sweep(parent)
        while not self._moved_in(parent):
            pass

    def _moved_in(self, parent: Path) -> bool:
        """Make the directory, and say whether it is ours: until it is locked, others take it for one of the dead."""
        self.path = syscalls.make_private_directory(PREFIX, parent)
        try:
            self._handle: int | None = syscalls.create_private(self.path / LOCK)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (self.path / LOCK).exists():
                return True
        except BlockingIOError:
            pass
        os.close(self._handle)
        return False

    def close(self) -> None:
        """Remove the directory with all that is in it."""
        if self._handle is None:
            return
        with suppress(OSError):
            files.remove(self.path)
        os.close(self._handle)
        self._handle = None


def sweep(parent: Path) -> None:
    """Remove the rooms of those who were killed: nobody holds a lock in them any more."""
    for room in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            handle = os.open(room / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                files.remove(room)
            finally:
                os.close(handle)
