"""Writing so that a file is there whole or not at all, and reading so that a damaged one is never believed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.storage import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

FILES_AT_ONCE = 16
BLOCK = 1 << 20
LARGEST_JSON = 1 << 28
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.part")
SEAL = "checksum"


def write(path: Path, data: bytes) -> None:
    """Put `data` under `path` in one step: after a crash there is the old file or the new one, never a part."""
    write_together({path: data})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files, none of which takes its name before all of them lie on the disk."""
    with claimed_files(list(contents)) as temporaries:
        for data, (handle, temporary) in zip(contents.values(), temporaries, strict=True):
            pour(handle, [data])
            syscalls.keep(temporary)
        for path, (_, temporary) in zip(contents, temporaries, strict=True):
            syscalls.rename(temporary, path)
    for folder in dict.fromkeys(path.parent for path in contents):
        syscalls.keep(folder)


def write_stream(path: Path, content: BinaryIO) -> None:
    """Put content that need not fit into memory under `path`, in one step."""
    with claimed_files([path]) as [(handle, temporary)]:
        pour(handle, iter(lambda: content.read(BLOCK), b""))
        syscalls.keep(temporary)
        syscalls.rename(temporary, path)
    syscalls.keep(path.parent)


def put(path: Path, data: bytes) -> None:
    """Write a new file plainly, where what it lies in is nobody's yet."""
    fill(syscalls.create(path), data)


def put_private(path: Path, data: bytes) -> None:
    """The same, for what nobody else may read. There must be nothing of this name yet."""
    fill(syscalls.create_private(path), data)


def append(path: Path, data: bytes) -> None:
    """Write to the end of a file."""
    fill(syscalls.extend(path), data)


def fill(handle: int, data: bytes) -> None:
    """Write to an open file, and close it."""
    try:
        pour(handle, [data])
    finally:
        os.close(handle)


def pour(handle: int, blocks: Iterable[bytes]) -> None:
    """Write all of it: the system may take any part of what it is given at a time."""
    for block in blocks:
        rest = memoryview(block)
        while rest:
            rest = rest[syscalls.write(handle, rest) :]


def check_room(folder: Path, need: int, way_out: str) -> None:
    """Refuse to begin what the disk cannot hold. The folder need not be there yet."""
    free = syscalls.free_bytes(next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()))
    if free < need:
        raise ResourceError(
            f"{need / 1e6:,.1f} MB of room are needed and {free / 1e6:,.1f} are left ({folder}): {way_out}"
        )


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes its real name only when everything in it lies on the disk.

    Until then it is nobody's, so files in it are written plainly, with `put`.
    """
    make_directories(path.parent)
    sweep(path.parent)
    handle, temporary = claim(path, of_directory)
    try:
        yield temporary
        # A disk takes many requests to keep files in hardly more time than one.
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(syscalls.keep, (entry for entry in temporary.rglob("*") if entry.is_file())))
        syscalls.keep(temporary)
        syscalls.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            remove(temporary)
        raise
    finally:
        os.close(handle)
    syscalls.keep(path.parent)


def make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it that are missing; which ones had to be made, outermost first."""
    missing = [folder for folder in reversed((path, *path.parents)) if not folder.exists()]
    for folder in missing:
        with suppress(FileExistsError):  # somebody else made it in the meantime
            syscalls.make_directory(folder)
        syscalls.keep(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return missing


def remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            remove(entry)
        syscalls.remove_directory(path)
    else:
        with suppress(FileNotFoundError):
            syscalls.remove_file(path)


@contextmanager
def claimed_files(paths: list[Path]) -> Iterator[list[tuple[int, Path]]]:
    """Files to fill beside `paths`, with handles to write to; those that are not renamed meanwhile are removed."""
    claimed: list[tuple[int, Path]] = []
    try:
        for path in paths:
            sweep(path.parent)
            claimed.append(claim(path, syscalls.create))
        yield claimed
    except BaseException as error:
        if (
            isinstance(error, OSError) and error.errno
        ):  # people know the names they gave, not those of files that are not whole yet
            claiming = len(claimed) < len(paths)
            error.filename = str(paths[len(claimed)] if claiming else paths[0] if len(paths) == 1 else paths[0].parent)
            error.filename2 = None
        for _, temporary in claimed:
            with suppress(OSError):
                remove(temporary)
        raise
    finally:
        for handle, _ in claimed:
            os.close(handle)


def claim(path: Path, make: Callable[[Path], int | None]) -> tuple[int, Path]:
    """Make something under a name beside `path`, locked as long as this process lives; its handle and name."""
    while True:
        temporary = temporary_name(path)
        handle = make(temporary)
        if handle is None:
            continue
        if is_ours(handle) and temporary.exists():
            return handle, temporary
        os.close(handle)  # swept away between its making and its locking: once more


def is_ours(handle: int) -> bool:
    """Lock what was just made, unless somebody who sweeps has done so."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not every file system has locks; there, what is left behind stays
        pass
    return True


def of_directory(path: Path) -> int | None:
    """Make a directory; a handle to lock it by, unless it was swept away at once."""
    syscalls.make_directory(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def sweep(folder: Path, name: str = "") -> None:
    """Remove what writers that were killed left in a directory: nobody holds a lock on it any more.

    In a directory that is not ours alone, only what was to have a certain name.
    """
    for leftover in [entry for entry in folder.glob(f".{name}*.part") if TEMPORARY.fullmatch(entry.name)]:
        with suppress(OSError):
            handle = os.open(leftover, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(leftover)
            finally:
                os.close(handle)


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def is_temporary(path: Path) -> bool:
    """Whether this is what a writer that was killed left behind."""
    return TEMPORARY.fullmatch(path.name) is not None


def to_json(content: Any) -> bytes:
    """The one way we write JSON documents: the same content is the same bytes."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def sealed(content: Mapping[str, Any]) -> bytes:
    """A JSON document that carries its own checksum."""
    return to_json({**content, SEAL: sha256(to_json(content))})


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a document with a checksum; any change of a single bit is found."""
    content = read_json(path)
    if isinstance(content, dict) and SEAL in content:
        content.pop(SEAL)
        with suppress(RecursionError, ValueError):  # it could be read, but not have been written: too deep, or infinite
            if sealed(content) == path.read_bytes():
                return content
    raise RequestError(f"the file does not match its checksum ({path}): it was changed or is damaged; make it anew")


def read_json(path: Path) -> Any:
    """The content of a JSON file; no key may stand twice, no number may be none."""
    try:
        return json.loads(read_file(path, LARGEST_JSON), object_pairs_hook=without_repetition, parse_constant=no_number)
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, RecursionError):
        raise RequestError(f"not valid JSON ({path}): the file is damaged; make it anew") from None


def read_file(path: Path, most: int | None = None) -> bytes:
    """The content of a file of at most so many bytes; what is no file could be read for ever."""
    if path.exists() and not path.is_file():
        raise RequestError(f"not a file ({path}): move it away")
    if most is not None and path.stat().st_size > most:
        raise RequestError(f"the file is too large to be one of ours ({path}): at most {most} bytes")
    return path.read_bytes()


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content


def no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """The same for a file that need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
