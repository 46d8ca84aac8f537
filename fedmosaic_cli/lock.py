"""One writer a directory. The system releases the lock when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fedmosaic_cli import disk
from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.files import make_directories, pour, remove

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"


def check_free(folder: Path) -> None:
    """Refuse a directory that somebody is writing to; nothing is touched."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise taken(folder) from None
    finally:
        os.close(handle)


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
                disk.remove_directory(empty)


def acquire(folder: Path, made: list[Path]) -> int:
    """The handle of the lock, held; the directories that had to be made for it are added to `made`."""
    while True:
        made += make_directories(folder)
        # Whoever held it before may take file and directory away at any moment until it is ours.
        with suppress(FileNotFoundError):
            handle = disk.extend(folder / LOCK)
            with ExitStack() as otherwise:
                otherwise.callback(os.close, handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise taken(folder) from None
                if os.path.samestat(os.fstat(handle), (folder / LOCK).stat()):
                    otherwise.pop_all()
                    return handle


def introduce(handle: int) -> None:
    """Leave word for others who want to write here."""
    disk.empty(handle)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    pour(handle, [json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode()])


def taken(folder: Path) -> RunStateError:
    """The error for a directory that another process writes to."""
    try:
        note = json.loads((folder / LOCK).read_bytes())
        holder = f"process {note['pid']} on {note['host']}, since {note['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        holder = "it has just begun"
    return RunStateError(f"another process is writing here, {holder} ({folder}): wait for it or stop it")
