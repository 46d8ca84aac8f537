"""Downloads that resume after an interruption and are checked by size and SHA-256 before use."""

from __future__ import annotations

import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    append_bytes,
    file_sha256,
    make_directories,
    remove_path,
    require_free_space,
    write_atomic,
    write_stream_atomic,
)
from fedmosaic_cli.storage.lock import directory_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.data.data_dirs import DataDirs

DOWNLOAD_BLOCK_BYTES = 1 << 20
TIMEOUT_SECONDS = 30


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
    """Extract the regular files in the wanted directories of a tar or zip archive, each atomically."""
    try:
        for name, content in iter_archive_files(archive):
            path = PurePosixPath(name)
            if not any(path.is_relative_to(directory) for directory in wanted_directories):
                continue
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise RequestError(f"'{name}' is outside the target directory ({archive}): do not trust this archive")
            target = folder.joinpath(*path.parts)
            make_directories(target.parent)
            write_stream_atomic(target, content)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RequestError(f"cannot extract: {error} ({archive}): download it again") from None


def iter_archive_files(archive: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Yield names and contents of the regular files in an archive; links and devices are skipped."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as content:
                        yield info.filename, content  # type: ignore[misc]
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            opened = tarred.extractfile(member) if member.isreg() else None
            if opened is not None:
                yield member.name, opened  # type: ignore[misc]
