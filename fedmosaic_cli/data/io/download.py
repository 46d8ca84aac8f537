"""Fetching published data: into place only after size and SHA-256 were checked, and going on where it broke off."""

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
    """A published file, and where below the data directory it goes.

    An archive is unpacked there and then removed: those members that lie in one of the directories `members`.
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
    """Bring everything of `downloads` into the data directory that is not there yet."""
    for download in downloads:
        folder = data_dirs.data_dir / download.subdirectory
        done = folder / f".{download.file_name}.done" if download.extracted_directories else folder / download.file_name
        if done.exists() and all((folder / member).is_dir() for member in download.extracted_directories):
            continue
        with directory_lock(folder):
            arrived = download_verified(download, folder, data_dirs)
            if download.extracted_directories:
                extract_archive(arrived, folder, download.extracted_directories)
                remove_path(arrived)
                write_atomic(done, b"")
            else:
                syscalls.fsync(arrived)
                syscalls.rename(arrived, done)
                syscalls.fsync(folder)


def download_verified(download: Download, folder: Path, data_dirs: DataDirs) -> Path:
    """The checked file, still under a temporary name."""
    partial = folder / f".{download.file_name}.part"
    there = partial.stat().st_size if partial.exists() else 0
    require_free_space(
        folder, download.size_bytes - there, f"free some space for {download.file_name} or choose another --data-dir"
    )
    if there < download.size_bytes:
        try:
            download_remaining(download, partial, there, data_dirs)
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            verb = "unpack" if download.extracted_directories else "put"
            raise ResourceError(
                f"cannot download {download.url}: {reason} (network): try again, or {verb} it into {folder} yourself"
            ) from None
    if partial.stat().st_size < download.size_bytes:
        raise ResourceError(f"the connection broke ({download.url}): do it again to go on where it stopped")
    if partial.stat().st_size != download.size_bytes or file_sha256(partial) != download.sha256:
        remove_path(partial)
        raise ResourceError(f"what arrived is not the published file ({download.url}): try again, or use a mirror")
    return partial


def download_remaining(download: Download, partial: Path, offset: int, data_dirs: DataDirs) -> None:
    """Append what is missing to the partial file."""
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={offset}-"} if offset else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        resumed = offset and getattr(answer, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        if not resumed:
            remove_path(partial)
        done = offset if resumed else 0
        while block := answer.read(DOWNLOAD_BLOCK_BYTES):
            append_bytes(partial, block)
            done += len(block)
            data_dirs.on_progress(
                f"downloading {download.file_name}", min(done, download.size_bytes), download.size_bytes
            )


def extract_archive(archive: Path, folder: Path, wanted_directories: tuple[str, ...]) -> None:
    """The regular files of a tar or zip archive that lie in a wanted directory, each whole or not at all."""
    try:
        extract_members(archive, folder, wanted_directories)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RequestError(f"cannot unpack: {error} ({archive}): fetch it anew") from None


def extract_members(archive: Path, folder: Path, wanted_directories: tuple[str, ...]) -> None:
    for name, content in iter_archive_files(archive):
        parts = PurePosixPath(name).parts
        if not any(
            parts[: len(PurePosixPath(prefix).parts)] == PurePosixPath(prefix).parts for prefix in wanted_directories
        ):
            continue
        if name.startswith("/") or ".." in parts or "\\" in name:
            raise RequestError(f"'{name}' would leave the directory ({archive}): this archive is not to be trusted")
        target = folder.joinpath(*parts)
        make_directories(target.parent)
        write_stream_atomic(target, content)


def iter_archive_files(archive: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Names and contents of the regular files in an archive; links and devices are passed over."""
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
