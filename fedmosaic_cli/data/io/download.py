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
from fedmosaic_cli.storage.files import append, check_room, file_sha256, make_directories, remove, write, write_stream
from fedmosaic_cli.storage.lock import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.data.data_dirs import Place

BLOCK = 1 << 20
PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Download:
    """A published file, and where below the data directory it goes.

    An archive is unpacked there and then removed: those members that lie in one of the directories `members`.
    """

    url: str
    folder: str
    size: int
    sha256: str
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name


def fetch(downloads: tuple[Download, ...], place: Place) -> None:
    """Bring everything of `downloads` into the data directory that is not there yet."""
    for download in downloads:
        folder = place.data_dir / download.folder
        done = folder / f".{download.name}.done" if download.members else folder / download.name
        if done.exists() and all((folder / member).is_dir() for member in download.members):
            continue
        with locked(folder):
            arrived = receive(download, folder, place)
            if download.members:
                unpack(arrived, folder, download.members)
                remove(arrived)
                write(done, b"")
            else:
                syscalls.keep(arrived)
                syscalls.rename(arrived, done)
                syscalls.keep(folder)


def receive(download: Download, folder: Path, place: Place) -> Path:
    """The checked file, still under a temporary name."""
    partial = folder / f".{download.name}.part"
    there = partial.stat().st_size if partial.exists() else 0
    check_room(folder, download.size - there, f"make room for {download.name} or choose another --data-dir")
    if there < download.size:
        try:
            transfer(download, partial, there, place)
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            verb = "unpack" if download.members else "put"
            raise ResourceError(
                f"cannot download {download.url}: {reason} (network): try again, or {verb} it into {folder} yourself"
            ) from None
    if partial.stat().st_size < download.size:
        raise ResourceError(f"the connection broke ({download.url}): do it again to go on where it stopped")
    if partial.stat().st_size != download.size or file_sha256(partial) != download.sha256:
        remove(partial)
        raise ResourceError(f"what arrived is not the published file ({download.url}): try again, or use a mirror")
    return partial


def transfer(download: Download, partial: Path, there: int, place: Place) -> None:
    """Append what is missing to the partial file."""
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={there}-"} if there else {})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        resumed = there and getattr(answer, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        if not resumed:
            remove(partial)
        done = there if resumed else 0
        while block := answer.read(BLOCK):
            append(partial, block)
            done += len(block)
            place.watch(f"downloading {download.name}", min(done, download.size), download.size)


def unpack(archive: Path, folder: Path, wanted: tuple[str, ...]) -> None:
    """The regular files of a tar or zip archive that lie in a wanted directory, each whole or not at all."""
    try:
        unpack_members(archive, folder, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RequestError(f"cannot unpack: {error} ({archive}): fetch it anew") from None


def unpack_members(archive: Path, folder: Path, wanted: tuple[str, ...]) -> None:
    for name, content in members(archive):
        parts = PurePosixPath(name).parts
        if not any(parts[: len(PurePosixPath(prefix).parts)] == PurePosixPath(prefix).parts for prefix in wanted):
            continue
        if name.startswith("/") or ".." in parts or "\\" in name:
            raise RequestError(f"'{name}' would leave the directory ({archive}): this archive is not to be trusted")
        target = folder.joinpath(*parts)
        make_directories(target.parent)
        write_stream(target, content)


def members(archive: Path) -> Iterator[tuple[str, BinaryIO]]:
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
