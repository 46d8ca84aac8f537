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
from fedmosaic_cli.storage.files import make_directories, pour, read_file, remove

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"
LARGEST_NOTE = 1 << 12
ATTEMPTS, PAUSE_SECONDS = 10, 0.01


def check_free(folder: Path) -> None:
    """Refuse a directory that somebody is writing to; nothing is touched."""
    if is_held(folder):
        raise taken(folder)


def is_held(folder: Path) -> bool:
    """Whether somebody is writing to a directory; nothing is touched, and others may ask at the same time."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
def locked(folder: Path) -> Iterator[None]:
    """Hold a directory, which is made if it is not there; if nothing came of it, it is removed again."""
    made: list[Path] = []
    try:
        handle = acquire(folder, made)
        try:
            introduce(handle)
            yield
        finally:
            try:
                # Still locked: whoever has opened the same file meanwhile will see that it is not there any more.
                with suppress(OSError):
                    remove(folder / LOCK)
            finally:
                os.close(handle)
    finally:
        for empty in reversed(made):
            with suppress(OSError):
                syscalls.remove_directory(empty)


def acquire(folder: Path, made: list[Path]) -> int:
    """The handle of the lock, held; the directories that had to be made for it are added to `made`."""
    while True:
        made += make_directories(folder)
        # Whoever held it before may take file and directory away at any moment until it is ours.
        with suppress(FileNotFoundError):
            handle = syscalls.extend(folder / LOCK)
            with ExitStack() as otherwise:
                otherwise.callback(os.close, handle)
                if not hold(handle):
                    raise taken(folder)
                if os.path.samestat(os.fstat(handle), (folder / LOCK).stat()):
                    otherwise.pop_all()
                    return handle


def hold(handle: int) -> bool:
    """Lock a file for ourselves, unless somebody keeps it. Who merely asks whether it is held has it for an instant."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def introduce(handle: int) -> None:
    """Leave word for others who want to write here."""
    syscalls.empty(handle)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    pour(handle, [json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode()])


def note(folder: Path) -> dict[str, Any]:
    """The word that the last holder left; nothing where there is none."""
    try:
        content = json.loads(read_file(folder / LOCK, LARGEST_NOTE))
    except (OSError, ValueError, RecursionError, RequestError):
        content = None
    return content if isinstance(content, dict) else {}


def taken(folder: Path) -> RunStateError:
    """The error for a directory that another process writes to."""
    word = note(folder)
    try:
        holder = f"process {word['pid']} on {word['host']}, since {word['since']}"
    except KeyError:
        holder = "it has just begun"
    return RunStateError(f"another process is writing here, {holder} ({folder}): wait for it or stop it")
