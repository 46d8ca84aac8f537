"""Read the planned and finished rounds of a run. Files are read again only when they change."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import read_regular_file
from fedmosaic_cli.storage.run_summary import NewerSummaryError, NotASummaryError
from fedmosaic_cli.storage.runs import CONFIG_FILE, SUMMARY_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_PARSED_CONFIG_BYTES = 1 << 20
MAX_CRASH_BYTES = 1 << 24
# Configurations are written in one form only, and parsing YAML would take longer than all other reads.
METHOD_PATTERN = re.compile(r"^method: \S", re.MULTILINE)
ROUNDS_PATTERN = re.compile(r"^train:\n(?: +.*\n)*? {2}rounds: (\d{1,9})$", re.MULTILINE)


class FileSignature(NamedTuple):
    """Values that change whenever a file changes."""

    inode: int
    size: int
    modified_ns: int


class RunStatus(StrEnum):
    """The status of a run, in the order in which runs are listed."""

    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    DAMAGED = "damaged"
    STOPPED = "stopped"
    NEWER = "newer"
    FOREIGN = "foreign"
    EMPTY = "empty"
    FINISHED = "finished"


class UnreadableRunError(Exception):
    """A file of a run cannot be read. `status` is the resulting status of the run."""

    def __init__(self, status: RunStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RunStatusReader:
    """Reads the number of rounds from the configuration and from the summary of a run."""

    def __init__(self, files: RunDirectory) -> None:
        self._files = files
        self._cache: dict[str, tuple[FileSignature, int | UnreadableRunError]] = {}

    def planned_rounds(self) -> int | None:
        """Return the number of rounds in the configuration; None before the run starts."""
        return self._read_cached(CONFIG_FILE, self._rounds_in_config)

    def finished_rounds(self) -> int | None:
        """Return the number of rounds in the summary; None before the run is finished."""
        return self._read_cached(SUMMARY_FILE, lambda: int(self._files.read_summary()["rounds"]))

    def crash_error(self) -> str | None:
        """Return the last line of the traceback of a crash; None without a crash."""
        if file_signature(self._files.crash_path) is None:
            return None
        try:
            text = read_regular_file(self._files.crash_path, MAX_CRASH_BYTES).decode(errors="replace")
        except (RequestError, OSError) as error:
            return str(error)
        return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "no traceback")

    def _read_cached(self, name: str, read: Callable[[], int]) -> int | None:
        path = self._files.path / name
        signature = file_signature(path)
        if signature is None:
            return None
        if name not in self._cache or self._cache[name][0] != signature:
            self._cache[name] = signature, read_or_error(read)
        rounds = self._cache[name][1]
        if isinstance(rounds, UnreadableRunError):
            if file_signature(path) is None:  # a resumed run removed the file in the meantime
                return None
            raise rounds
        return rounds

    def _rounds_in_config(self) -> int:
        path = self._files.config_path
        text = read_regular_file(path, MAX_PARSED_CONFIG_BYTES).decode(errors="replace")
        if not METHOD_PATTERN.search(text):
            message = f"not the configuration of a run ({path}): another program wrote it"
            raise UnreadableRunError(RunStatus.FOREIGN, message)
        rounds = ROUNDS_PATTERN.search(text)
        if not rounds:
            message = f"the number of rounds cannot be read ({path}): the file is damaged"
            raise UnreadableRunError(RunStatus.DAMAGED, message)
        return int(rounds[1])


def read_or_error(read: Callable[[], int]) -> int | UnreadableRunError:
    try:
        return read()
    except UnreadableRunError as error:
        return error
    except NotASummaryError as error:
        return UnreadableRunError(RunStatus.FOREIGN, str(error))
    except NewerSummaryError as error:
        return UnreadableRunError(RunStatus.NEWER, str(error))
    except (RequestError, OSError) as error:
        return UnreadableRunError(RunStatus.DAMAGED, str(error))


def file_signature(path: Path) -> FileSignature | None:
    """Return the signature of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileSignature(status.st_ino, status.st_size, status.st_mtime_ns)
