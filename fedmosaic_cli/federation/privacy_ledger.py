"""The durable privacy ledger of a site: all releases from its data, over all runs and coordinators.

An entry is on disk before anything of it leaves the site. Entries are chained by digests, so that a changed or removed
entry is detected. The last entry is also recorded outside the site's directory, under the digest of the site's data: an
older copy of the directory, or a second site with the same data, is then refused on the same machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.labels.privacy.accounting import Release, total_epsilon
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import append_bytes, make_directories, sha256, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable

LEDGER_FILE = "privacy-ledger.jsonl"
STATE_DIR_VARIABLE = "XDG_STATE_HOME"
FIRST_DIGEST = "0" * 64


def default_anchor_dir() -> Path:
    """Return the directory in which the last entries of ledgers are recorded, outside of any site's directory."""
    base = os.environ.get(STATE_DIR_VARIABLE)
    return (Path(base) if base else Path.home() / ".local" / "state") / "fedmosaic" / "ledgers"


class PrivacyLedger:
    """All releases of a site. They count together, also if the site's data has changed in the meantime.

    Args:
        path: The ledger's file.
        data_digest: Digest of the data that new releases are about.
        num_classes: Number of classes of this data.
        anchor_dir: Where the last entry is recorded a second time.

    Raises:
        RunStateError: The file is damaged, or older than the record of its last entry.
    """

    def __init__(self, path: Path, data_digest: str, num_classes: int, anchor_dir: Path) -> None:
        self._path = path
        self._data_digest = data_digest
        self._num_classes = num_classes
        self._anchor_path = anchor_dir / f"{data_digest}.json"
        self._last_digest = FIRST_DIGEST
        self._num_entries = 0
        self._releases: list[Release] = []
        self._read()
        self._check_anchor()

    @property
    def num_entries(self) -> int:
        return self._num_entries

    def total_epsilon(self, delta: float, more: Iterable[Release] = ()) -> float:
        """Return the total epsilon of all releases, and of `more`.

        Labels of fewer classes cost more, so those of all data count as the ones with the fewest classes.
        """
        return total_epsilon([*self._releases, *more], delta, self._num_classes)

    def record(self, run_id: str, releases: Iterable[Release]) -> None:
        """Append the releases of a message. When this returns, they are on disk."""
        new = list(releases)
        entry = {
            "data": self._data_digest,
            "classes": self._num_classes,
            "run": run_id,
            "releases": [release.to_dict() for release in new],
            "previous": self._last_digest,
        }
        line = to_line(entry)
        make_directories(self._path.parent)
        append_bytes(self._path, line)
        syscalls.fsync(self._path)
        syscalls.fsync(self._path.parent)
        self._accept(line, new, self._num_classes)
        self._write_anchor()

    def _read(self) -> None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        lines = content.splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            # A crash while the line was written: nothing of its message has left the site.
            lines.pop()
            write_atomic(self._path, b"".join(lines))
        for number, line in enumerate(lines, start=1):
            try:
                entry: Any = json.loads(line)
                releases = [Release.from_dict(release) for release in entry["releases"]]
                num_classes = int(entry["classes"])
                is_valid = entry["previous"] == self._last_digest
            except (KeyError, TypeError, ValueError):
                is_valid, releases, num_classes = False, [], 0
            if not is_valid:
                raise RunStateError(f"line {number} of the privacy ledger is damaged ({self._path}): restore the file")
            self._accept(line, releases, num_classes)

    def _accept(self, line: bytes, releases: list[Release], num_classes: int) -> None:
        self._num_classes = min(self._num_classes, num_classes)
        self._last_digest = sha256(line)
        self._num_entries += 1
        self._releases += releases

    def _check_anchor(self) -> None:
        try:
            anchor = json.loads(self._anchor_path.read_bytes())
            recorded, digest = int(anchor["entries"]), str(anchor["digest"])
        except FileNotFoundError:
            return
        except (KeyError, TypeError, ValueError):
            raise RunStateError(
                f"the record of the last release is damaged ({self._anchor_path}): restore the file"
            ) from None
        if recorded > self._num_entries or (recorded == self._num_entries and digest != self._last_digest):
            raise RunStateError(
                f"the privacy ledger has {self._num_entries} entries, and {recorded} were recorded for this data "
                f"({self._path}, {self._anchor_path}): restore the newest copy of the site's directory"
            )

    def _write_anchor(self) -> None:
        make_directories(self._anchor_path.parent)
        content = {"entries": self._num_entries, "digest": self._last_digest}
        write_atomic(self._anchor_path, json.dumps(content).encode() + b"\n")


def to_line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
