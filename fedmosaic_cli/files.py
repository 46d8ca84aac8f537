"""Writing so that a file is there whole or not at all, and reading with errors that name the file."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES_AT_ONCE = 16


def write(path: Path, data: bytes) -> None:
    """Put `data` under `path` in one step: after a crash there is the old file or the new one, never a part."""
    write_stream(path, BytesIO(data))


def write_stream(path: Path, content: BinaryIO) -> None:
    """The same for content that need not fit into memory."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    make_last(path.parent)


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def is_temporary(path: Path) -> bool:
    """Whether this is what a writer that was killed left behind."""
    return path.name.startswith(".") and path.name.endswith(".part")


def write_json(path: Path, content: Any) -> None:
    write(path, to_json(content))


def to_json(content: Any) -> bytes:
    """The one way we write JSON documents: the same content is the same bytes."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """The content of a JSON file that we wrote."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, RecursionError):
        raise RequestError(f"not valid JSON ({path}): the file is damaged; make it anew") from None


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes its real name only when everything in it lies on the disk.

    Until then it is nobody's, so files in it may be written plainly.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        # A disk takes many requests to make files last in hardly more time than one.
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(make_last, (entry for entry in temporary.rglob("*") if entry.is_file())))
        make_last(temporary)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    make_last(path.parent)


def make_last(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
