"""How far runs are, from their files alone: they may be made by another process, or on another machine."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.round_history import History, duration
from fedmosaic_cli.report.run_status import Standing, State, UnreadableError, signature_of
from fedmosaic_cli.storage.lock import LOCK, is_held, note
from fedmosaic_cli.storage.log_tail import Tail
from fedmosaic_cli.storage.runs import CONFIG, CRASH, ROUNDS, SUMMARY, TIMINGS, RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW = 1 << 16
PACE_ROUNDS = 20
# Locks need not reach from machine to machine; there, a log that grows is a sign of life.
SIGN_OF_LIFE_SECONDS = 120
# What may still come to an end: a run that was stopped can be resumed at any moment.
EXPECTED = (State.RUNNING, State.WAITING, State.STOPPED)
MOST_DEPTH = 6
SURE_SIGNS = (SUMMARY, ROUNDS, LOCK, CRASH)
SIGNS = (CONFIG, *SURE_SIGNS)


@dataclass(frozen=True)
class Progress:
    """A run at a moment. Accuracy and trust are means over clients in the last round, `seconds` the time in rounds."""

    path: Path
    state: State
    reason: str
    round: int
    rounds: int | None
    accuracy: float | None
    trust: float | None
    seconds: float
    remaining_seconds: float | None
    history: tuple[tuple[int, float, float | None], ...] = ()
    clients: tuple[dict[str, Any], ...] = ()


class WatchedRun:
    """A run directory that is looked at again and again; only what is new is read.

    `whole` keeps the history of all rounds and the clients of the last one; else the log is read from near its end.
    """

    def __init__(self, path: Path, whole: bool = True) -> None:
        self.path = path
        self._whole = whole
        self._window = None if whole else WINDOW
        self._standing = Standing(RunFiles(path))
        self._log, self._timings = Tail(path / ROUNDS, self._window), Tail(path / TIMINGS)
        self._history = History(whole)
        self._seconds: list[float] = []
        self._left_lock: object = None

    def look(self) -> Progress:
        """How the run stands now. Whatever lies there, it is told and not raised."""
        try:
            # First of all: who lets go of the lock has written down before that the run is finished.
            held = self._is_held()
            ended, trouble = self._standing.ended(), self._read_logs()
            planned = self._standing.planned()
            if ended is not None:
                return self._finished(ended, trouble)
            if held:
                return self._progress(State.WAITING if planned is None else State.RUNNING, trouble, planned)
        except UnreadableError as error:
            return self._progress(error.state, str(error), None)
        crash = self._standing.last_words()
        if crash is not None:
            return self._progress(State.FAILED, crash, planned)
        if planned is None and not trouble and not self._history.last:
            return self._progress(State.EMPTY, f"nothing of a run is here ({self.path})", None)
        if planned is None:
            trouble = trouble or f"file is missing ({self.path / CONFIG}): the run cannot go on"
        return self._progress(State.DAMAGED if trouble else State.STOPPED, trouble, planned)

    def _finished(self, rounds: int, trouble: str) -> Progress:
        if not trouble and self._history.last != rounds:
            trouble = f"the log does not end in round {rounds} ({self._log.path}): mend the run with --resume"
        return self._progress(State.DAMAGED if trouble else State.FINISHED, trouble, rounds)

    def _progress(self, state: State, reason: str, rounds: int | None) -> Progress:
        history = self._history
        accuracy, trust = history.means()
        return Progress(
            path=self.path,
            state=state,
            reason=reason,
            round=history.last,
            rounds=rounds,
            accuracy=accuracy,
            trust=trust,
            seconds=sum(self._seconds),
            remaining_seconds=self._remaining(rounds) if state is State.RUNNING else None,
            history=history.points() if self._whole else (),
            clients=history.rows() if self._whole else (),
        )

    def _read_logs(self) -> str:
        """Read what has come since the last time; what is wrong with it, if anything."""
        try:
            self._read_rounds()
            anew, lines = self._timings.new_lines()
            self._seconds = [*([] if anew else self._seconds), *map(duration, lines)]
        except RequestError as error:
            return str(error)
        except OSError as error:
            return f"{error.strerror or error} ({error.filename or self.path}): it cannot be read"
        return f"a line is none of a round ({self._log.path}): the file is damaged" if self._history.damaged else ""

    def _read_rounds(self) -> None:
        while True:
            anew, rows = self._log.new_lines()
            if anew:
                self._history = History(self._whole, self._log.from_start)
            for row in rows:
                self._history.add(row)
            if self._window is None or self._log.from_start or self._history.last:
                return
            self._window *= 4  # so many clients that not even one round fitted
            self._log = Tail(self._log.path, self._window)

    def _is_held(self) -> bool:
        """Whether somebody is making the run. A lock that was left behind is tried once, and not again."""
        lock = signature_of(self.path / LOCK)
        if lock is None:
            return False
        if lock != self._left_lock:
            with suppress(OSError):  # not every file system has locks: then there is no telling
                if is_held(self.path):
                    return True
            self._left_lock = lock
        return self._is_alive_elsewhere()

    def _is_alive_elsewhere(self) -> bool:
        log = signature_of(self._log.path)
        if log is None or note(self.path).get("host", platform.node()) == platform.node():
            return False
        return time.time() - log.modified_ns / 1e9 < max(SIGN_OF_LIFE_SECONDS, 3 * self._pace())

    def _pace(self) -> float:
        """Seconds a round, of late."""
        latest = self._seconds[-PACE_ROUNDS:]
        return sum(latest) / len(latest) if latest else 0.0

    def _remaining(self, rounds: int | None) -> float | None:
        if rounds is None or not self._seconds or self._timings.modified is None:
            return None
        under_way = min(max(0.0, time.time() - self._timings.modified), self._pace())
        return max(0.0, self._pace() * (rounds - self._history.last) - under_way)


class WatchedRuns:
    """One run, or all runs below a directory, looked at again and again. New ones are found, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Somebody's config.yaml may lie beside the directory of runs.
        self.single = is_run(path, SURE_SIGNS) or (is_run(path) and next(run_folders(path), None) is None)
        self._runs: dict[Path, WatchedRun] = {}

    def look(self) -> list[Progress]:
        """How all of them stand, those that run first; at least one."""
        if not self.path.is_dir():
            raise RequestError(f"no such directory ({self.path}): name a run, or a directory of runs")
        folders = [self.path] if self.single else list(run_folders(self.path))
        self._runs = {folder: self._runs.get(folder) or WatchedRun(folder, self.single) for folder in folders}
        found = [run.look() for run in self._runs.values()]
        shown = [progress for progress in found if self.single or progress.state is not State.EMPTY]
        if not shown:
            raise RequestError(f"no runs here ({self.path}): make some with 'fedmosaic train --preset quickstart'")
        order = list(State)
        return sorted(shown, key=lambda progress: (order.index(progress.state), progress.path))


def is_run(folder: Path, signs: tuple[str, ...] = SIGNS) -> bool:
    """Whether a directory looks like that of a run, or of one that is about to begin."""
    return any(signature_of(folder / sign) for sign in signs)


def run_folders(folder: Path, depth: int = MOST_DEPTH) -> Iterator[Path]:
    """The directories of runs below a directory; what lies within a run is its own business."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        if depth == MOST_DEPTH:
            raise
        return
    for name in below:
        if is_run(folder / name):
            yield folder / name
        elif depth > 1:
            yield from run_folders(folder / name, depth - 1)
