"""The durable privacy ledger of a site: all releases from its data, over all runs and coordinators.

An entry is on disk before anything of it leaves the site. Entries are chained by digests, so that a changed or removed
entry is detected. The anchor is a copy of the last entry's digest outside the site's directory, under the digest of the
site's data: an older copy of the directory, or a second site with the same data, is then refused on the same machine.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.labels.privacy.accounting import Release, total_epsilon
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import append_bytes, make_directories, require_no_link, sha256, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEDGER_FILE = "privacy-ledger.jsonl"
STATE_DIR_VARIABLE = "XDG_STATE_HOME"
ANCHOR_DIR = Path("fedmosaic", "ledgers")
LOCK_TIMEOUT_SECONDS = 10.0
FIRST_DIGEST = "0" * 64


def user_state_dir() -> Path:
    """Return the directory in which programs of this user keep their state."""
    base = os.environ.get(STATE_DIR_VARIABLE)
    return Path(base).absolute() if base else Path.home() / ".local" / "state"


def default_anchor_dir() -> Path:
    """Return the directory of the anchors of all ledgers of this user."""
    return user_state_dir() / ANCHOR_DIR


@dataclass(frozen=True)
class LedgerEntry:
    """The releases of one message, from data with `num_classes` classes. `line` is the entry as stored."""

    line: bytes
    releases: list[Release]
    num_classes: int


@dataclass(frozen=True)
class SpentBudget:
    """The total epsilon of all releases of a site, and their number."""

    epsilon: float
    num_releases: int


class PrivacyLedger:
    """All releases of a site. They count together, also if the site's data has changed in the meantime.

    Args:
        path: The ledger's file.
        data_digest: Digest of the data that new releases are about.
        num_classes: Number of classes of this data.
        anchor_dir: The directory of the anchor.

    Raises:
        OSError: The anchor cannot be written, so no release could be recorded.
        RunStateError: The file is damaged, or older than its anchor.
    """

    def __init__(self, path: Path, data_digest: str, num_classes: int, anchor_dir: Path) -> None:
        self._path = path
        self._data_digest = data_digest
        self._num_classes = num_classes
        self._anchor_path = anchor_dir / f"{data_digest}.json"
        self._digests = [FIRST_DIGEST]
        """The digest of each entry, after the one that represents an empty ledger."""
        self._num_bytes = 0
        self._releases: list[Release] = []
        self._read()
        with self._locked_anchor():
            self._check_anchor()
            self._write_anchor()

    @property
    def num_entries(self) -> int:
        return len(self._digests) - 1

    def total_epsilon(self, delta: float, more: Iterable[Release] = ()) -> float:
        """Return the total epsilon of all releases, and of `more`.

        Labels of fewer classes cost more, so those of all data count as the ones with the fewest classes.
        """
        return total_epsilon([*self._releases, *more], delta, self._num_classes)

    def append(self, run_id: str, releases: Iterable[Release]) -> None:
        """Append the releases of a message. When this returns, they are on disk.

        Raises:
            OSError: They cannot be written. A part of them that was written is removed before the next ones.
            RunStateError: Another site with the same data has recorded a release in the meantime.
        """
        with self._locked_anchor():
            self._check_anchor()
            self._remove_unaccepted()
            self._append(run_id, list(releases))

    def _append(self, run_id: str, new: list[Release]) -> None:
        entry = {
            "data": self._data_digest,
            "classes": self._num_classes,
            "run": run_id,
            "releases": [release.to_dict() for release in new],
            "previous": self._digests[-1],
        }
        line = to_line(entry)
        make_directories(self._path.parent)
        append_bytes(self._path, line)
        syscalls.fsync(self._path)
        syscalls.fsync(self._path.parent)
        self._accept(line, new, self._num_classes)
        self._write_anchor()

    def _remove_unaccepted(self) -> None:
        """Remove what an append that failed has written. Nothing of its message has left the site."""
        if self._path.exists() and self._path.stat().st_size > self._num_bytes:
            write_atomic(self._path, self._path.read_bytes()[: self._num_bytes])

    @contextmanager
    def _locked_anchor(self) -> Iterator[None]:
        """Keep other processes with the same data from recording a release at the same time."""
        from filelock import FileLock, Timeout

        make_directories(self._anchor_path.parent)
        lock_path = self._anchor_path.with_suffix(".lock")
        require_no_link(lock_path)
        lock = FileLock(lock_path, LOCK_TIMEOUT_SECONDS, mode=0o600, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise RunStateError(
                f"another process holds the lock of the privacy ledger's anchor ({lock_path}): end it"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _read(self) -> None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        complete = complete_lines(content)
        if complete != content:
            # A crash while the line was written: nothing of its message has left the site.
            write_atomic(self._path, complete)
        for entry in parse_entries(complete, self._path):
            self._accept(entry.line, entry.releases, entry.num_classes)

    def _accept(self, line: bytes, releases: list[Release], num_classes: int) -> None:
        self._num_classes = min(self._num_classes, num_classes)
        self._digests.append(sha256(line))
        self._num_bytes += len(line)
        self._releases += releases

    def _check_anchor(self) -> None:
        try:
            anchor = json.loads(self._anchor_path.read_bytes())
            recorded, digest = int(anchor["entries"]), str(anchor["digest"])
            is_known = 0 <= recorded < len(self._digests) and self._digests[recorded] == digest
        except FileNotFoundError:
            return
        except (KeyError, TypeError, ValueError):
            raise RunStateError(
                f"the anchor of the privacy ledger is damaged ({self._anchor_path}): restore the file"
            ) from None
        if not is_known:
            raise RunStateError(
                f"the privacy ledger has {self.num_entries} entries and does not continue the {recorded} that its "
                f"anchor records for this data ({self._path}, {self._anchor_path}): restore the newest copy of the "
                "site's directory"
            )

    def _write_anchor(self) -> None:
        content = {"entries": self.num_entries, "digest": self._digests[-1]}
        write_atomic(self._anchor_path, json.dumps(content).encode() + b"\n")


def read_spent_budget(path: Path, delta: float) -> SpentBudget:
    """Return what the releases in a ledger's file cost together. Nothing is written, also if the site runs.

    Raises:
        RunStateError: The file is damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return SpentBudget(0.0, 0)
    entries = list(parse_entries(complete_lines(content), path))
    releases = [release for entry in entries for release in entry.releases]
    if not releases:
        return SpentBudget(0.0, 0)
    num_classes = min(entry.num_classes for entry in entries)
    return SpentBudget(total_epsilon(releases, delta, num_classes), len(releases))


def complete_lines(content: bytes) -> bytes:
    """Return the content without a last line that is not written completely."""
    return content[: content.rfind(b"\n") + 1]


def parse_entries(content: bytes, path: Path) -> Iterator[LedgerEntry]:
    """Yield the entries of a ledger. Raise `RunStateError` if one is invalid or does not follow the one before."""
    last_digest = FIRST_DIGEST
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            values: Any = json.loads(line)
            releases = [Release.from_dict(release) for release in values["releases"]]
            entry = LedgerEntry(line, releases, int(values["classes"]))
            is_valid = values["previous"] == last_digest
        except (KeyError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise RunStateError(f"line {number} of the privacy ledger is damaged ({path}): restore the file")
        last_digest = sha256(line)
        yield entry


def to_line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
