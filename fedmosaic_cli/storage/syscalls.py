"""The requests by which files of ours change. Whatever is written goes through here, and nowhere else.

So a test can let any single one of them fail, and see that nothing is lost. Errors are the system's own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def create_file(path: Path) -> int:
    """A new file to write into; there must be none of this name."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def create_private_file(path: Path) -> int:
    """The same, for nobody's eyes but ours."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def open_append(path: Path) -> int:
    """A file to write to the end of; it is made if there is none. Nobody is waited for at the other end of a pipe."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def write(fd: int, data: memoryview) -> int:
    """Write at least a part of `data`; how much of it."""
    return os.write(fd, data)


def truncate(fd: int) -> None:
    """Drop what a file holds."""
    os.ftruncate(fd, 0)


def fsync(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a directory."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(source: Path, target: Path) -> None:
    """Give a file or directory another name; a file that has it is replaced in the same instant."""
    source.replace(target)


def hard_link(source: Path, target: Path) -> None:
    """A second name for the same file."""
    os.link(source, target)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_private_directory(prefix: str, parent: Path) -> Path:
    """A new directory that nobody else can look into."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def remove_file(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    """Remove a directory that is empty."""
    path.rmdir()


def free_bytes(path: Path) -> int:
    """How much more can be written below `path`."""
    return shutil.disk_usage(path).free
