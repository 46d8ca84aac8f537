"""What the files of a run say about its plan and its end, read again only when they change."""

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
# We write configurations in one form alone. To parse all of YAML would take longer than everything else here.
METHOD_PATTERN = re.compile(r"^method: \S", re.MULTILINE)
ROUNDS_PATTERN = re.compile(r"^train:\n(?: +.*\n)*? {2}rounds: (\d{1,9})$", re.MULTILINE)


class FileSignature(NamedTuple):
    """What changes whenever a file does."""

    inode: int
    size: int
    modified_ns: int


class RunStatus(StrEnum):
    """What is the matter with a run, in the order in which one wants to know."""

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
    """A run that cannot be told of, and in what state that leaves it."""

    def __init__(self, status: RunStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RunStatusReader:
    """The plan of a run and its end, as far as they are written down."""

    def __init__(self, files: RunDirectory) -> None:
        self._files = files
        self._cache: dict[str, tuple[FileSignature, int | UnreadableRunError]] = {}

    def planned_rounds(self) -> int | None:
        """How many rounds the run is to have; None where it has not begun."""
        return self._read_cached(CONFIG_FILE, self._rounds_in_config)

    def finished_rounds(self) -> int | None:
        """How many rounds the run had when it was finished; None where it is not."""
        return self._read_cached(SUMMARY_FILE, self._rounds_in_summary)

    def crash_error(self) -> str | None:
        """The error that the traceback of a crash ends in; None where there was none."""
        if file_signature(self._files.crash_path) is None:
            return None
        try:
            text = read_regular_file(self._files.crash_path, MAX_CRASH_BYTES).decode(errors="replace")
        except (RequestError, OSError) as error:
            return str(error)
        return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "no traceback")

    def _read_cached(self, name: str, read: Callable[[], int]) -> int | None:
        signature = file_signature(self._files.path / name)
        if signature is None:
            return None
        if name not in self._cache or self._cache[name][0] != signature:
            self._cache[name] = signature, try_read(read)
        found = self._cache[name][1]
        if isinstance(found, UnreadableRunError):
            if file_signature(self._files.path / name) is None:  # the run went on in this very moment
                return None
            raise found
        return found

    def _rounds_in_summary(self) -> int:
        try:
            return int(self._files.read_summary()["rounds"])
        except NotASummaryError as error:
            raise UnreadableRunError(RunStatus.FOREIGN, str(error)) from None
        except NewerSummaryError as error:
            raise UnreadableRunError(RunStatus.NEWER, str(error)) from None

    def _rounds_in_config(self) -> int:
        path = self._files.config_path
        text = read_regular_file(path, MAX_PARSED_CONFIG_BYTES).decode(errors="replace")
        rounds = ROUNDS_PATTERN.search(text)
        if not METHOD_PATTERN.search(text):
            raise UnreadableRunError(
                RunStatus.FOREIGN, f"not the configuration of a run ({path}): it was made by others"
            )
        if not rounds:
            raise UnreadableRunError(
                RunStatus.DAMAGED, f"the number of rounds cannot be read ({path}): the file is damaged"
            )
        return int(rounds[1])


def try_read(read: Callable[[], int]) -> int | UnreadableRunError:
    """What can be read, or why it cannot."""
    try:
        return read()
    except UnreadableRunError as error:
        return error
    except (RequestError, OSError) as error:
        return UnreadableRunError(RunStatus.DAMAGED, str(error))


def file_signature(path: Path) -> FileSignature | None:
    """The signature of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileSignature(status.st_ino, status.st_size, status.st_mtime_ns)
