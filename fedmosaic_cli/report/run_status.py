"""What the files of a run say about its plan and its end, read again only when they change."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import read_file
from fedmosaic_cli.storage.run_summary import ForeignSummaryError, NewerSummaryError
from fedmosaic_cli.storage.runs import CONFIG, SUMMARY, RunFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGEST_CONFIG = 1 << 20
LARGEST_CRASH = 1 << 24
# We write configurations in one form alone. To parse all of YAML would take longer than everything else here.
METHOD = re.compile(r"^method: \S", re.MULTILINE)
CONFIGURED_ROUNDS = re.compile(r"^train:\n(?: +.*\n)*? {2}rounds: (\d{1,9})$", re.MULTILINE)


class Signature(NamedTuple):
    """What changes whenever a file does."""

    number: int
    size: int
    modified_ns: int


class State(StrEnum):
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


class UnreadableError(Exception):
    """A run that cannot be told of, and in what state that leaves it."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state


class Standing:
    """The plan of a run and its end, as far as they are written down."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._known: dict[str, tuple[Signature, int | UnreadableError]] = {}

    def planned(self) -> int | None:
        """How many rounds the run is to have; None where it has not begun."""
        return self._read_once(CONFIG, self._rounds_of_config)

    def ended(self) -> int | None:
        """How many rounds the run had when it was finished; None where it is not."""
        return self._read_once(SUMMARY, self._rounds_of_summary)

    def last_words(self) -> str | None:
        """The error that the traceback of a crash ends in; None where there was none."""
        if signature_of(self._files.crash) is None:
            return None
        try:
            text = read_file(self._files.crash, LARGEST_CRASH).decode(errors="replace")
        except (RequestError, OSError) as error:
            return str(error)
        return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "no traceback")

    def _read_once(self, name: str, read: Callable[[], int]) -> int | None:
        signature = signature_of(self._files.path / name)
        if signature is None:
            return None
        if name not in self._known or self._known[name][0] != signature:
            self._known[name] = signature, attempt(read)
        found = self._known[name][1]
        if isinstance(found, UnreadableError):
            if signature_of(self._files.path / name) is None:  # the run went on in this very moment
                return None
            raise found
        return found

    def _rounds_of_summary(self) -> int:
        try:
            return int(self._files.summary()["rounds"])
        except ForeignSummaryError as error:
            raise UnreadableError(State.FOREIGN, str(error)) from None
        except NewerSummaryError as error:
            raise UnreadableError(State.NEWER, str(error)) from None

    def _rounds_of_config(self) -> int:
        path = self._files.config
        text = read_file(path, LARGEST_CONFIG).decode(errors="replace")
        rounds = CONFIGURED_ROUNDS.search(text)
        if not METHOD.search(text):
            raise UnreadableError(State.FOREIGN, f"not the configuration of a run ({path}): it was made by others")
        if not rounds:
            raise UnreadableError(State.DAMAGED, f"the number of rounds cannot be read ({path}): the file is damaged")
        return int(rounds[1])


def attempt(read: Callable[[], int]) -> int | UnreadableError:
    """What can be read, or why it cannot."""
    try:
        return read()
    except UnreadableError as error:
        return error
    except (RequestError, OSError) as error:
        return UnreadableError(State.DAMAGED, str(error))


def signature_of(path: Path) -> Signature | None:
    """The signature of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Signature(status.st_ino, status.st_size, status.st_mtime_ns)
