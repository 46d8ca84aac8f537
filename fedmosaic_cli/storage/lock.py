"""One writer a directory. The system releases the lock when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import make_directories, read_regular_file, remove_path, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE = ".lock"
MAX_OWNER_BYTES = 1 << 12
LOCK_ATTEMPTS, RETRY_SECONDS = 10, 0.01


def require_unlocked(folder: Path) -> None:
    """Refuse a directory that somebody is writing to; nothing is touched."""
    if is_locked(folder):
        raise locked_error(folder)


def is_locked(folder: Path) -> bool:
    """Whether somebody is writing to a directory; nothing is touched, and others may ask at the same time."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def directory_lock(folder: Path) -> Iterator[None]:
    """Hold a directory, which is made if it is not there; if nothing came of it, it is removed again."""
    made: list[Path] = []
    try:
        handle = acquire_lock(folder, made)
        try:
            write_owner(handle)
            yield
        finally:
            try:
                # Still locked: whoever has opened the same file meanwhile will see that it is not there any more.
                with suppress(OSError):
                    remove_path(folder / LOCK_FILE)
            finally:
                os.close(handle)
    finally:
        for empty in reversed(made):
            with suppress(OSError):
                syscalls.remove_directory(empty)


def acquire_lock(folder: Path, created: list[Path]) -> int:
    """The handle of the lock, held; the directories that had to be made for it are added to `made`."""
    while True:
        created += make_directories(folder)
        # Whoever held it before may take file and directory away at any moment until it is ours.
        with suppress(FileNotFoundError):
            handle = syscalls.open_append(folder / LOCK_FILE)
            with ExitStack() as otherwise:
                otherwise.callback(os.close, handle)
                if not try_lock_exclusive(handle):
                    raise locked_error(folder)
                if os.path.samestat(os.fstat(handle), (folder / LOCK_FILE).stat()):
                    otherwise.pop_all()
                    return handle


def try_lock_exclusive(fd: int) -> bool:
    """Lock a file for ourselves, unless somebody keeps it. Who merely asks whether it is held has it for an instant."""
    for attempt in range(LOCK_ATTEMPTS):
        if attempt:
            time.sleep(RETRY_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def write_owner(fd: int) -> None:
    """Leave word for others who want to write here."""
    syscalls.truncate(fd)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    write_all(fd, [json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode()])


def read_owner(folder: Path) -> dict[str, Any]:
    """The word that the last holder left; nothing where there is none."""
    try:
        content = json.loads(read_regular_file(folder / LOCK_FILE, MAX_OWNER_BYTES))
    except (OSError, ValueError, RecursionError, RequestError):
        content = None
    return content if isinstance(content, dict) else {}


def locked_error(folder: Path) -> RunStateError:
    """The error for a directory that another process writes to."""
    word = read_owner(folder)
    try:
        holder = f"process {word['pid']} on {word['host']}, since {word['since']}"
    except KeyError:
        holder = "it has just begun"
    return RunStateError(f"another process is writing here, {holder} ({folder}): wait for it or stop it")
