"""Downloads that resume after an interruption and are checked by size and SHA-256 before use."""

from __future__ import annotations

import http.client
import lzma
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.data.io.npz_files import EXPANSION_ALLOWANCE_BYTES, MAX_EXPANSION_RATIO
from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    BLOCK_BYTES,
    append_bytes,
    file_sha256,
    flush_directory,
    make_directories,
    remove_path,
    require_free_space,
    scratch_directory,
    write_atomic,
    write_new_blocks,
)
from fedmosaic_cli.storage.lock import directory_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.data.data_dirs import DataDirs

DOWNLOAD_BLOCK_BYTES = 1 << 20
TIMEOUT_SECONDS = 30
DISTRUST = "do not trust this archive"


@dataclass(frozen=True)
class Download:
    """A published file and its subdirectory of the data directory.

    With `extracted_directories` the file is an archive, from which only these directories are extracted.
    """

    url: str
    subdirectory: str
    size_bytes: int
    sha256: str
    extracted_directories: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.url).name


def download_files(downloads: tuple[Download, ...], data_dirs: DataDirs) -> None:
    """Download and extract all files that are missing in the data directory.

    Raises:
        ResourceError: If the network, the disk space or a checksum fails.
    """
    for download in downloads:
        folder = data_dirs.data_dir / download.subdirectory
        done = folder / f".{download.file_name}.done" if download.extracted_directories else folder / download.file_name
        if done.exists() and all((folder / member).is_dir() for member in download.extracted_directories):
            continue
        with directory_lock(folder):
            partial = download_verified(download, folder, data_dirs)
            if download.extracted_directories:
                extract_archive(partial, folder, download.extracted_directories)
                remove_path(partial)
                write_atomic(done, b"")
            else:
                syscalls.fsync(partial)
                syscalls.rename(partial, done)
                syscalls.fsync(folder)


def download_verified(download: Download, folder: Path, data_dirs: DataDirs) -> Path:
    """Download a file, check it and return its temporary path."""
    partial = folder / f".{download.file_name}.part"
    offset = partial.stat().st_size if partial.exists() else 0
    hint = f"free some space for {download.file_name} or choose another --data-dir"
    require_free_space(folder, download.size_bytes - offset, hint)
    if offset < download.size_bytes:
        try:
            download_remaining(download, partial, offset, data_dirs)
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            verb = "unpack" if download.extracted_directories else "put"
            raise ResourceError(
                f"cannot download {download.url}: {reason} (network): try again, or {verb} it into {folder} yourself"
            ) from None
    if partial.stat().st_size < download.size_bytes:
        raise ResourceError(f"the connection was closed ({download.url}): run the command again to resume")
    if partial.stat().st_size != download.size_bytes or file_sha256(partial) != download.sha256:
        remove_path(partial)
        raise ResourceError(f"the file differs from the published one ({download.url}): try again, or use a mirror")
    return partial


def download_remaining(download: Download, partial: Path, offset: int, data_dirs: DataDirs) -> None:
    """Append the missing bytes to the partial file."""
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={offset}-"} if offset else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        resumed = offset and getattr(answer, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        if not resumed:
            remove_path(partial)
        done = offset if resumed else 0
        while block := answer.read(DOWNLOAD_BLOCK_BYTES):
            append_bytes(partial, block)
            done += len(block)
            size = download.size_bytes
            data_dirs.on_progress(f"downloading {download.file_name}", min(done, size), size)


def extract_archive(archive: Path, folder: Path, wanted_directories: tuple[str, ...]) -> None:
    """Extract the wanted directories of a tar or zip archive. Each appears in `folder` when all files are on the disk.

    Raises:
        RequestError: The archive is damaged, or it contains links, paths outside `folder` or more data than plausible.
    """
    allowed_bytes = max(EXPANSION_ALLOWANCE_BYTES, MAX_EXPANSION_RATIO * archive.stat().st_size)
    num_bytes = 0
    with scratch_directory(folder / f".{archive.name}.extracted") as scratch:
        try:
            for member in iter_archive_members(archive):
                path = PurePosixPath(member.name)
                if not any(path.is_relative_to(directory) for directory in wanted_directories):
                    continue
                num_bytes += member.size_bytes
                check_archive_member(member, path, archive)
                if num_bytes > allowed_bytes:
                    raise RequestError(f"it would expand to more than {allowed_bytes} bytes ({archive}): {DISTRUST}")
                target = scratch.joinpath(*path.parts)
                make_directories(target.parent)
                if target.exists():
                    raise RequestError(f"'{member.name}' occurs twice ({archive}): {DISTRUST}")
                with member.open() as content:
                    write_new_blocks(target, iter(partial(content.read, BLOCK_BYTES), b""))
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
            raise RequestError(f"cannot extract: {error} ({archive}): download it again") from None
        flush_directory(scratch)
        for directory in wanted_directories:
            if (scratch / directory).is_dir():
                move_directory(scratch / directory, folder / directory)


def check_archive_member(member: ArchiveMember, path: PurePosixPath, archive: Path) -> None:
    """Raise `RequestError` unless a member is a regular file inside the target directory."""
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise RequestError(f"'{member.name}' is outside the target directory ({archive}): {DISTRUST}")
    if not member.is_regular:
        raise RequestError(f"'{member.name}' is a link or a device ({archive}): {DISTRUST}")


@dataclass(frozen=True)
class ArchiveMember:
    """A file in an archive. Anything but a regular file is not opened."""

    name: str
    size_bytes: int
    is_regular: bool
    open: Callable[[], AbstractContextManager[Any]]


def iter_archive_members(archive: Path) -> Iterator[ArchiveMember]:
    """Yield all members of a tar or zip archive but its directories."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if not info.is_dir():
                    is_regular = kind in (0, stat.S_IFREG)
                    yield ArchiveMember(info.filename, info.file_size, is_regular, partial(zipped.open, info))
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            if not member.isdir():
                # Returns None only for members that are not regular files.
                reader: Callable[[], Any] = partial(tarred.extractfile, member)
                yield ArchiveMember(member.name, member.size, member.isreg(), reader)


def move_directory(source: Path, target: Path) -> None:
    """Rename a directory. If the target exists, its files stay, and those of the same name are replaced."""
    make_directories(target.parent)
    if not target.exists():
        syscalls.rename(source, target)
        syscalls.fsync(target.parent)
        return
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            move_directory(entry, target / entry.name)
        else:
            syscalls.rename(entry, target / entry.name)
    syscalls.fsync(target)
