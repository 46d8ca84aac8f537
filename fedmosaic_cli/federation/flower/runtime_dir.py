"""A private directory for as long as a process needs it: settings of Flower, sockets, what it has to remember."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from fedmosaic_cli.federation.flower.ipc import is_socket_path_too_long
from fedmosaic_cli.storage import files, syscalls

RUNTIME_DIR_PREFIX = "fedmosaic-"
RUNTIME_LOCK_FILE = "lock"
SHORT_TEMP_DIR = Path("/tmp")
"""Where rooms are made if the user's own place has too long a name for a socket."""


class RuntimeDir:
    """A directory that nobody else can look into. It is removed in the end; if we are killed, by whoever comes next."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        parent = (
            SHORT_TEMP_DIR
            if is_socket_path_too_long(parent / f"{RUNTIME_DIR_PREFIX}12345678") and SHORT_TEMP_DIR.is_dir()
            else parent
        )
        remove_stale_runtime_dirs(parent)
        while not self._create_locked(parent):
            pass

    def _create_locked(self, parent: Path) -> bool:
        """Make the directory, and say whether it is ours: until it is locked, others take it for one of the dead."""
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
        """Remove the directory with all that is in it."""
        if self._lock_fd is None:
            return
        with suppress(OSError):
            files.remove_path(self.path)
        os.close(self._lock_fd)
        self._lock_fd = None


def remove_stale_runtime_dirs(parent: Path) -> None:
    """Remove the rooms of those who were killed: nobody holds a lock in them any more."""
    for room in parent.glob(f"{RUNTIME_DIR_PREFIX}*"):
        with suppress(OSError):
            handle = os.open(room / RUNTIME_LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                files.remove_path(room)
            finally:
                os.close(handle)
