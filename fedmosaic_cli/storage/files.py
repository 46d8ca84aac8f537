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

FSYNC_THREADS = 16
BLOCK_BYTES = 1 << 20
MAX_JSON_BYTES = 1 << 28
TEMPORARY_NAME_PATTERN = re.compile(r"\..*\.[0-9a-f]{12}\.part")
CHECKSUM_KEY = "checksum"


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` under `path` in one step: after a crash there is the old file or the new one, never a part."""
    write_files_atomic({path: data})


def write_files_atomic(contents: Mapping[Path, bytes]) -> None:
    """Write several files, none of which takes its name before all of them lie on the disk."""
    with locked_temporaries(list(contents)) as temporaries:
        for data, (handle, temporary) in zip(contents.values(), temporaries, strict=True):
            write_all(handle, [data])
            syscalls.fsync(temporary)
        for path, (_, temporary) in zip(contents, temporaries, strict=True):
            syscalls.rename(temporary, path)
    for folder in dict.fromkeys(path.parent for path in contents):
        syscalls.fsync(folder)


def write_stream_atomic(path: Path, stream: BinaryIO) -> None:
    """Put content that need not fit into memory under `path`, in one step."""
    with locked_temporaries([path]) as [(handle, temporary)]:
        write_all(handle, iter(lambda: stream.read(BLOCK_BYTES), b""))
        syscalls.fsync(temporary)
        syscalls.rename(temporary, path)
    syscalls.fsync(path.parent)


def write_new_file(path: Path, data: bytes) -> None:
    """Write a new file plainly, where what it lies in is nobody's yet."""
    write_and_close(syscalls.create_file(path), data)


def write_new_private_file(path: Path, data: bytes) -> None:
    """The same, for what nobody else may read. There must be nothing of this name yet."""
    write_and_close(syscalls.create_private_file(path), data)


def append_bytes(path: Path, data: bytes) -> None:
    """Write to the end of a file."""
    write_and_close(syscalls.open_append(path), data)


def write_and_close(fd: int, data: bytes) -> None:
    """Write to an open file, and close it."""
    try:
        write_all(fd, [data])
    finally:
        os.close(fd)


def write_all(fd: int, blocks: Iterable[bytes]) -> None:
    """Write all of it: the system may take any part of what it is given at a time."""
    for block in blocks:
        rest = memoryview(block)
        while rest:
            rest = rest[syscalls.write(fd, rest) :]


def require_free_space(folder: Path, needed_bytes: int, hint: str) -> None:
    """Refuse to begin what the disk cannot hold. The folder need not be there yet."""
    free = syscalls.free_bytes(next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()))
    if free < needed_bytes:
        raise ResourceError(
            f"{needed_bytes / 1e6:,.1f} MB of room are needed and {free / 1e6:,.1f} are left ({folder}): {hint}"
        )


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes its real name only when everything in it lies on the disk.

    Until then it is nobody's, so files in it are written plainly, with `put`.
    """
    make_directories(path.parent)
    remove_stale_temporaries(path.parent)
    handle, temporary = create_locked_temporary(path, create_and_open_directory)
    try:
        yield temporary
        # A disk takes many requests to keep files in hardly more time than one.
        with ThreadPoolExecutor(FSYNC_THREADS) as pool:
            list(pool.map(syscalls.fsync, (entry for entry in temporary.rglob("*") if entry.is_file())))
        syscalls.fsync(temporary)
        syscalls.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            remove_path(temporary)
        raise
    finally:
        os.close(handle)
    syscalls.fsync(path.parent)


def make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it that are missing; which ones had to be made, outermost first."""
    missing = [folder for folder in reversed((path, *path.parents)) if not folder.exists()]
    for folder in missing:
        with suppress(FileExistsError):  # somebody else made it in the meantime
            syscalls.make_directory(folder)
        syscalls.fsync(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return missing


def remove_path(path: Path) -> None:
    """Remove a file, or a directory with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            remove_path(entry)
        syscalls.remove_directory(path)
    else:
        with suppress(FileNotFoundError):
            syscalls.remove_file(path)


@contextmanager
def locked_temporaries(paths: list[Path]) -> Iterator[list[tuple[int, Path]]]:
    """Files to fill beside `paths`, with handles to write to; those that are not renamed meanwhile are removed."""
    claimed: list[tuple[int, Path]] = []
    try:
        for path in paths:
            remove_stale_temporaries(path.parent)
            claimed.append(create_locked_temporary(path, syscalls.create_file))
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
                remove_path(temporary)
        raise
    finally:
        for handle, _ in claimed:
            os.close(handle)


def create_locked_temporary(path: Path, create: Callable[[Path], int | None]) -> tuple[int, Path]:
    """Make something under a name beside `path`, locked as long as this process lives; its handle and name."""
    while True:
        temporary = temporary_path(path)
        handle = create(temporary)
        if handle is None:
            continue
        if try_lock_temporary(handle) and temporary.exists():
            return handle, temporary
        os.close(handle)  # swept away between its making and its locking: once more


def try_lock_temporary(fd: int) -> bool:
    """Lock what was just made, unless somebody who sweeps has done so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not every file system has locks; there, what is left behind stays
        pass
    return True


def create_and_open_directory(path: Path) -> int | None:
    """Make a directory; a handle to lock it by, unless it was swept away at once."""
    syscalls.make_directory(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def remove_stale_temporaries(folder: Path, name_prefix: str = "") -> None:
    """Remove what writers that were killed left in a directory: nobody holds a lock on it any more.

    In a directory that is not ours alone, only what was to have a certain name.
    """
    for leftover in [
        entry for entry in folder.glob(f".{name_prefix}*.part") if TEMPORARY_NAME_PATTERN.fullmatch(entry.name)
    ]:
        with suppress(OSError):
            handle = os.open(leftover, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_path(leftover)
            finally:
                os.close(handle)


def temporary_path(path: Path) -> Path:
    """A name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def is_temporary_path(path: Path) -> bool:
    """Whether this is what a writer that was killed left behind."""
    return TEMPORARY_NAME_PATTERN.fullmatch(path.name) is not None


def to_json_bytes(content: Any) -> bytes:
    """The one way we write JSON documents: the same content is the same bytes."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def to_checksummed_json(content: Mapping[str, Any]) -> bytes:
    """A JSON document that carries its own checksum."""
    return to_json_bytes({**content, CHECKSUM_KEY: sha256(to_json_bytes(content))})


def read_checksummed_json(path: Path) -> dict[str, Any]:
    """The content of a document with a checksum; any change of a single bit is found."""
    content = read_json(path)
    if isinstance(content, dict) and CHECKSUM_KEY in content:
        content.pop(CHECKSUM_KEY)
        with suppress(RecursionError, ValueError):  # it could be read, but not have been written: too deep, or infinite
            if to_checksummed_json(content) == path.read_bytes():
                return content
    raise RequestError(f"the file does not match its checksum ({path}): it was changed or is damaged; make it anew")


def read_json(path: Path) -> Any:
    """The content of a JSON file; no key may stand twice, no number may be none."""
    try:
        return json.loads(
            read_regular_file(path, MAX_JSON_BYTES), object_pairs_hook=reject_duplicate_keys, parse_constant=reject_nan
        )
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, RecursionError):
        raise RequestError(f"not valid JSON ({path}): the file is damaged; make it anew") from None


def read_regular_file(path: Path, max_bytes: int | None = None) -> bytes:
    """The content of a file of at most so many bytes; what is no file could be read for ever."""
    if path.exists() and not path.is_file():
        raise RequestError(f"not a file ({path}): move it away")
    if max_bytes is not None and path.stat().st_size > max_bytes:
        raise RequestError(f"the file is too large to be one of ours ({path}): at most {max_bytes} bytes")
    return path.read_bytes()


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content


def reject_nan(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """The same for a file that need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
