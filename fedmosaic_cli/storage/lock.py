"""One writer per directory. The system releases the lock when the holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    make_directories,
    read_regular_file,
    remove_path,
    require_no_link,
    write_and_close,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from filelock import BaseFileLock

LOCK_FILE = ".lock"
MAX_OWNER_BYTES = 1 << 12
# `is_locked` of another process holds a shared lock for an instant, or longer if the machine is busy.
TIMEOUT_SECONDS, POLL_SECONDS = 0.1, 0.01
HELD_DIRECTORIES: set[Path] = set()
"""The directories whose locks this process holds."""


def require_unlocked(folder: Path) -> None:
    """Raise `RunStateError` if another process writes to a directory. Nothing is changed."""
    if is_locked(folder):
        raise locked_error(folder)


def is_locked(folder: Path) -> bool:
    """Return whether a process writes to a directory. Nothing is changed, and several processes may ask at once."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # A shared lock, which filelock does not offer: two processes that ask do not see each other as writers.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def directory_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory, created if missing; directories created for it are removed again if still empty.

    Raises:
        RunStateError: If another process holds the lock.
        RequestError: If the lock file is a symbolic link.
    """
    created: list[Path] = []
    try:
        lock = acquire_lock(folder, created)
        held = folder.resolve()
        HELD_DIRECTORIES.add(held)
        try:
            write_owner(folder / LOCK_FILE)
            yield
        finally:
            try:
                # While still locked: a process that has opened the same file notices that it is unlinked.
                with suppress(OSError):
                    remove_path(folder / LOCK_FILE)
            finally:
                HELD_DIRECTORIES.discard(held)
                lock.release()
    finally:
        for empty in reversed(created):
            with suppress(OSError):
                syscalls.remove_directory(empty)


def is_held_here(folder: Path) -> bool:
    """Return whether this process holds the lock of a directory."""
    return folder.resolve() in HELD_DIRECTORIES


def acquire_lock(folder: Path, created: list[Path]) -> BaseFileLock:
    """Acquire the lock of a directory and add the directories created for it to `created`."""
    from filelock import FileLock, Timeout

    while True:
        created += make_directories(folder)
        require_no_link(folder / LOCK_FILE)
        # A mode that is given ignores the umask.
        mode: dict[str, Any] = {"mode": syscalls.file_mode()} if syscalls.IS_PRIVATE.get() else {}
        lock = FileLock(folder / LOCK_FILE, TIMEOUT_SECONDS, thread_local=False, fallback_to_soft=False, **mode)
        try:
            lock.acquire(poll_interval=POLL_SECONDS)
        except FileNotFoundError:  # the previous holder removed the directory
            continue
        except Timeout:
            if is_locked(folder):
                raise locked_error(folder) from None
            continue  # other processes only ask
        return lock


def write_owner(path: Path) -> None:
    """Write who holds the lock, for the error message of others."""
    fd = syscalls.open_append(path)
    try:
        syscalls.truncate(fd)
    except BaseException:
        os.close(fd)
        raise
    since = datetime.now(UTC).isoformat(timespec="seconds")
    write_and_close(fd, json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode())


def read_owner(folder: Path) -> dict[str, Any]:
    """Return what the last holder wrote; empty if unreadable."""
    try:
        content = json.loads(read_regular_file(folder / LOCK_FILE, MAX_OWNER_BYTES))
    except (OSError, ValueError, RecursionError, RequestError):
        content = None
    return content if isinstance(content, dict) else {}


def locked_error(folder: Path) -> RunStateError:
    owner = read_owner(folder)
    try:
        holder = f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except KeyError:
        holder = "it has just started"
    return RunStateError(f"another process is writing here, {holder} ({folder}): wait for it or stop it")
