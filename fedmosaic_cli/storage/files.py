"""Atomic writes and checked reads: a file is complete or absent, and a damaged file is never used."""

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
from typing import TYPE_CHECKING, Any, NoReturn

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
    """Write a file in one step: after a crash the old or the new content exists, never a part."""
    write_files_atomic({path: data})


def write_files_atomic(contents: Mapping[Path, bytes]) -> None:
    """Write several files; none gets its name before the contents of all are on the disk."""
    with locked_temporaries(list(contents)) as temporaries:
        for data, (fd, temporary) in zip(contents.values(), temporaries, strict=True):
            write_all(fd, [data])
            syscalls.fsync(temporary)
        for path, (_, temporary) in zip(contents, temporaries, strict=True):
            syscalls.rename(temporary, path)
    for folder in dict.fromkeys(path.parent for path in contents):
        syscalls.fsync(folder)


def write_blocks_atomic(path: Path, blocks: Iterable[bytes]) -> None:
    """Write blocks to `path` in one step while they are produced. If that fails, nothing is written."""
    with locked_temporaries([path]) as [(fd, temporary)]:
        write_all(fd, blocks)
        syscalls.fsync(temporary)
        syscalls.rename(temporary, path)
    syscalls.fsync(path.parent)


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file directly, inside a directory that no other process uses yet."""
    write_and_close(syscalls.create_file(path), data)


def write_new_blocks(path: Path, blocks: Iterable[bytes | memoryview]) -> str:
    """Write a file like `write_new_file`, from blocks that are made one after the other; return its SHA-256."""
    digest = hashlib.sha256()
    fd = syscalls.create_file(path)
    try:
        for block in blocks:
            write_all(fd, [block])
            digest.update(block)
    finally:
        os.close(fd)
    return digest.hexdigest()


def write_new_private_file(path: Path, data: bytes) -> None:
    """Write a file that only this user can read; it must not exist yet."""
    write_and_close(syscalls.create_private_file(path), data)


def append_bytes(path: Path, data: bytes) -> None:
    write_and_close(syscalls.open_append(path), data)


def write_and_close(fd: int, data: bytes) -> None:
    try:
        write_all(fd, [data])
    finally:
        os.close(fd)


def write_all(fd: int, blocks: Iterable[bytes | memoryview]) -> None:
    """Write all blocks; a single system call may write only a part."""
    for block in blocks:
        rest = memoryview(block)
        while rest:
            rest = rest[syscalls.write(fd, rest) :]


def require_free_space(folder: Path, needed_bytes: int, hint: str) -> None:
    """Raise `ResourceError` if the disk is too full. The folder need not exist yet."""
    free = syscalls.free_bytes(next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir()))
    if free < needed_bytes:
        raise ResourceError(
            f"{needed_bytes / 1e6:,.1f} MB of disk space are needed, {free / 1e6:,.1f} are free ({folder}): {hint}"
        )


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `path` once everything in it is on the disk.

    No other process uses it before, so its files can be written directly with `write_new_file`.
    """
    make_directories(path.parent)
    remove_stale_temporaries(path.parent)
    fd, temporary = create_locked_temporary(path, create_and_open_directory)
    try:
        yield temporary
        flush_directory(temporary)
        syscalls.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            remove_path(temporary)
        raise
    finally:
        os.close(fd)
    syscalls.fsync(path.parent)


def flush_directory(path: Path) -> None:
    """Flush all files below a directory, and the names in it, to the disk."""
    entries = (entry for entry in path.rglob("*") if entry.is_file() or entry.is_dir())
    # Concurrent fsync calls take hardly longer than one.
    with ThreadPoolExecutor(FSYNC_THREADS) as pool:
        list(pool.map(syscalls.fsync, entries))
    syscalls.fsync(path)


@contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory next to `path` that is removed at the end, or by a later process after a kill."""
    make_directories(path.parent)
    remove_stale_temporaries(path.parent)
    fd, temporary = create_locked_temporary(path, create_and_open_directory)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            remove_path(temporary)
        os.close(fd)


def make_directories(path: Path) -> list[Path]:
    """Create a directory and its missing parents; return the created ones, outermost first."""
    missing = [folder for folder in reversed((path, *path.parents)) if not folder.exists()]
    for folder in missing:
        with suppress(FileExistsError):  # another process created it
            syscalls.make_directory(folder)
        syscalls.fsync(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return missing


def remove_path(path: Path) -> None:
    """Remove a file or a directory tree if it exists."""
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            remove_path(entry)
        syscalls.remove_directory(path)
    else:
        with suppress(FileNotFoundError):
            syscalls.remove_file(path)


def require_no_link(path: Path) -> None:
    """Raise `RequestError` if a path is a symbolic link: what it points to does not belong to the directory."""
    if path.is_symlink():
        raise RequestError(f"symbolic links are not used here ({path}): replace it by what it points to, or remove it")


def require_no_links_below(folder: Path) -> None:
    """Raise `RequestError` for a symbolic link inside a directory. The directory itself may be reached by one."""
    for path in sorted(folder.rglob("*")):
        require_no_link(path)


@contextmanager
def locked_temporaries(paths: list[Path]) -> Iterator[list[tuple[int, Path]]]:
    """Yield descriptors and names of temporary files next to `paths`; files not renamed by then are removed."""
    temporaries: list[tuple[int, Path]] = []
    try:
        for path in paths:
            remove_stale_temporaries(path.parent)
            temporaries.append(create_locked_temporary(path, syscalls.create_file))
        yield temporaries
    except BaseException as error:
        if isinstance(error, OSError) and error.errno:  # name the user's file, not the temporary one
            incomplete = len(temporaries) < len(paths)
            target = paths[len(temporaries)] if incomplete else paths[0] if len(paths) == 1 else paths[0].parent
            error.filename, error.filename2 = str(target), None
        for _, temporary in temporaries:
            with suppress(OSError):
                remove_path(temporary)
        raise
    finally:
        for fd, _ in temporaries:
            os.close(fd)


def create_locked_temporary(path: Path, create: Callable[[Path], int | None]) -> tuple[int, Path]:
    """Create a temporary entry next to `path` with `create`, locked until its descriptor is closed.

    Returns:
        The descriptor and the temporary path.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        fd = create(temporary)
        if fd is None:
            continue
        if try_lock_temporary(fd) and temporary.exists():
            return fd, temporary
        os.close(fd)  # another process removed it before it was locked


def try_lock_temporary(fd: int) -> bool:
    """Lock a new temporary entry; False if `remove_stale_temporaries` of another process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks, and stale temporaries stay there
        pass
    return True


def create_and_open_directory(path: Path) -> int | None:
    """Create a directory and return a descriptor to lock it by; None if it was removed immediately."""
    syscalls.make_directory(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def remove_stale_temporaries(folder: Path, name_prefix: str = "") -> None:
    """Remove unlocked temporaries, which killed processes left; in shared directories only those with a prefix."""
    for path in filter(is_temporary_path, list(folder.glob(f".{name_prefix}*.part"))):
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_path(path)
            finally:
                os.close(fd)


def is_temporary_path(path: Path) -> bool:
    return TEMPORARY_NAME_PATTERN.fullmatch(path.name) is not None


def to_json_bytes(content: Any) -> bytes:
    """Encode JSON so that equal content gives equal bytes."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def to_checksummed_json(content: Mapping[str, Any]) -> bytes:
    """Encode JSON that contains its own checksum."""
    return to_json_bytes({**content, CHECKSUM_KEY: sha256(to_json_bytes(content))})


def read_checksummed_json(path: Path) -> dict[str, Any]:
    """Read JSON written by `to_checksummed_json`; a change of a single bit is an error."""
    content = read_json(path)
    if isinstance(content, dict) and CHECKSUM_KEY in content:
        content.pop(CHECKSUM_KEY)
        with suppress(RecursionError, ValueError):  # content that can be read but not written: too deep or infinite
            if to_checksummed_json(content) == path.read_bytes():
                return content
    raise RequestError(f"the file does not match its checksum ({path}): it was changed or is damaged; create it again")


def read_json(path: Path) -> Any:
    """Read a JSON file without duplicate keys, NaN or infinite constants."""
    try:
        return json.loads(
            read_regular_file(path, MAX_JSON_BYTES), object_pairs_hook=reject_duplicate_keys, parse_constant=reject_nan
        )
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, RecursionError):
        raise RequestError(f"not valid JSON ({path}): the file is damaged; create it again") from None


def read_regular_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a regular file; reading a pipe or a device might never end."""
    if path.exists() and not path.is_file():
        raise RequestError(f"not a file ({path}): move it away")
    if max_bytes is not None and path.stat().st_size > max_bytes:
        raise RequestError(f"the file is too large for fedmosaic ({path}): at most {max_bytes} bytes")
    return path.read_bytes()


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("duplicate key")
    return content


def reject_nan(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
