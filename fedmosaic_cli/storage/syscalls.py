"""System calls that change files. All writes go through this module, so a test can make any single call fail.

Inside `private_files` new files and directories are for this user only; elsewhere the user's umask decides.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

IS_PRIVATE = ContextVar("IS_PRIVATE", default=False)


@contextmanager
def private_files() -> Iterator[None]:
    """Create files with mode 0600 and directories with mode 0700 within this context, in this thread."""
    token = IS_PRIVATE.set(True)
    try:
        yield
    finally:
        IS_PRIVATE.reset(token)


def file_mode() -> int:
    """Return the mode of new files, before the umask."""
    return 0o600 if IS_PRIVATE.get() else 0o666


def create_file(path: Path) -> int:
    """Create a file that must not exist yet and return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode())


def create_private_file(path: Path) -> int:
    """Create a file that only this user can read; it must not exist yet."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def create_private_program(path: Path) -> int:
    """Create a file that only this user can read and execute; it must not exist yet."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)


def open_append(path: Path) -> int:
    """Open a file for appending and create it if necessary.

    A symbolic link is an error, and a pipe without a reader does not block.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, file_mode())


def write(fd: int, data: memoryview) -> int:
    """Write at least a part of `data` and return the number of bytes written."""
    return os.write(fd, data)


def truncate(fd: int) -> None:
    os.ftruncate(fd, 0)


def fsync(path: Path) -> None:
    """Flush a file's content, or the names in a directory, to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory; an existing target file is replaced atomically."""
    source.replace(target)


def hard_link(source: Path, target: Path) -> None:
    os.link(source, target)


def make_directory(path: Path) -> None:
    path.mkdir(0o700 if IS_PRIVATE.get() else 0o777)


def make_private_directory(prefix: str, parent: Path) -> Path:
    """Create a directory with a unique name that only this user can read."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def remove_file(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    """Remove an empty directory."""
    path.rmdir()


def free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free
