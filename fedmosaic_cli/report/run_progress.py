"""How far runs are, from their files alone: they may be made by another process, or on another machine."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.round_history import RoundHistory, logged_seconds
from fedmosaic_cli.report.run_status import RunStatus, RunStatusReader, UnreadableRunError, file_signature
from fedmosaic_cli.storage.lock import LOCK_FILE, is_locked, read_owner
from fedmosaic_cli.storage.log_tail import LogTail
from fedmosaic_cli.storage.runs import CONFIG_FILE, CRASH_FILE, ROUNDS_FILE, SUMMARY_FILE, TIMINGS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG_WINDOW_BYTES = 1 << 16
NUM_RECENT_ROUNDS = 20
# Locks need not reach from machine to machine; there, a log that grows is a sign of life.
ACTIVE_LOG_SECONDS = 120
# What may still come to an end: a run that was stopped can be resumed at any moment.
UNFINISHED_STATUSES = (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.STOPPED)
MAX_SEARCH_DEPTH = 6
DEFINITE_RUN_MARKERS = (SUMMARY_FILE, ROUNDS_FILE, LOCK_FILE, CRASH_FILE)
RUN_MARKERS = (CONFIG_FILE, *DEFINITE_RUN_MARKERS)


@dataclass(frozen=True)
class RunProgress:
    """A run at a moment. Accuracy and trust are means over clients in the last round, `seconds` the time in rounds."""

    path: Path
    status: RunStatus
    reason: str
    round: int
    num_rounds: int | None
    mean_accuracy: float | None
    mean_trust: float | None
    elapsed_seconds: float
    remaining_seconds: float | None
    history: tuple[tuple[int, float, float | None], ...] = ()
    client_rows: tuple[dict[str, Any], ...] = ()


class WatchedRun:
    """A run directory that is looked at again and again; only what is new is read.

    `whole` keeps the history of all rounds and the clients of the last one; else the log is read from near its end.
    """

    def __init__(self, path: Path, with_history: bool = True) -> None:
        self.path = path
        self._with_history = with_history
        self._window_bytes = None if with_history else LOG_WINDOW_BYTES
        self._status_reader = RunStatusReader(RunDirectory(path))
        self._log, self._timings = LogTail(path / ROUNDS_FILE, self._window_bytes), LogTail(path / TIMINGS_FILE)
        self._history = RoundHistory(with_history)
        self._round_durations: list[float] = []
        self._stale_lock: object = None

    def poll(self) -> RunProgress:
        """How the run stands now. Whatever lies there, it is told and not raised."""
        try:
            # First of all: who lets go of the lock has written down before that the run is finished.
            held = self._is_locked()
            ended, trouble = self._status_reader.finished_rounds(), self._read_logs()
            planned = self._status_reader.planned_rounds()
            if ended is not None:
                return self._finished_progress(ended, trouble)
            if held:
                return self._make_progress(
                    RunStatus.WAITING if planned is None else RunStatus.RUNNING, trouble, planned
                )
        except UnreadableRunError as error:
            return self._make_progress(error.status, str(error), None)
        crash = self._status_reader.crash_error()
        if crash is not None:
            return self._make_progress(RunStatus.FAILED, crash, planned)
        if planned is None and not trouble and not self._history.last_complete_round:
            return self._make_progress(RunStatus.EMPTY, f"nothing of a run is here ({self.path})", None)
        if planned is None:
            trouble = trouble or f"file is missing ({self.path / CONFIG_FILE}): the run cannot go on"
        return self._make_progress(RunStatus.DAMAGED if trouble else RunStatus.STOPPED, trouble, planned)

    def _finished_progress(self, rounds: int, problem: str) -> RunProgress:
        if not problem and self._history.last_complete_round != rounds:
            problem = f"the log does not end in round {rounds} ({self._log.path}): mend the run with --resume"
        return self._make_progress(RunStatus.DAMAGED if problem else RunStatus.FINISHED, problem, rounds)

    def _make_progress(self, status: RunStatus, reason: str, rounds: int | None) -> RunProgress:
        history = self._history
        accuracy, trust = history.last_round_means()
        return RunProgress(
            path=self.path,
            status=status,
            reason=reason,
            round=history.last_complete_round,
            num_rounds=rounds,
            mean_accuracy=accuracy,
            mean_trust=trust,
            elapsed_seconds=sum(self._round_durations),
            remaining_seconds=self._remaining_seconds(rounds) if status is RunStatus.RUNNING else None,
            history=history.mean_curve() if self._with_history else (),
            client_rows=history.last_round_rows() if self._with_history else (),
        )

    def _read_logs(self) -> str:
        """Read what has come since the last time; what is wrong with it, if anything."""
        try:
            self._read_rounds()
            anew, lines = self._timings.read_new_lines()
            self._round_durations = [*([] if anew else self._round_durations), *map(logged_seconds, lines)]
        except RequestError as error:
            return str(error)
        except OSError as error:
            return f"{error.strerror or error} ({error.filename or self.path}): it cannot be read"
        return (
            f"a line is none of a round ({self._log.path}): the file is damaged"
            if self._history.has_invalid_rows
            else ""
        )

    def _read_rounds(self) -> None:
        while True:
            anew, rows = self._log.read_new_lines()
            if anew:
                self._history = RoundHistory(self._with_history, self._log.is_complete)
            for row in rows:
                self._history.add_row(row)
            if self._window_bytes is None or self._log.is_complete or self._history.last_complete_round:
                return
            self._window_bytes *= 4  # so many clients that not even one round fitted
            self._log = LogTail(self._log.path, self._window_bytes)

    def _is_locked(self) -> bool:
        """Whether somebody is making the run. A lock that was left behind is tried once, and not again."""
        lock = file_signature(self.path / LOCK_FILE)
        if lock is None:
            return False
        if lock != self._stale_lock:
            with suppress(OSError):  # not every file system has locks: then there is no telling
                if is_locked(self.path):
                    return True
            self._stale_lock = lock
        return self._is_active_on_other_host()

    def _is_active_on_other_host(self) -> bool:
        log = file_signature(self._log.path)
        if log is None or read_owner(self.path).get("host", platform.node()) == platform.node():
            return False
        return time.time() - log.modified_ns / 1e9 < max(ACTIVE_LOG_SECONDS, 3 * self._seconds_per_round())

    def _seconds_per_round(self) -> float:
        """Seconds a round, of late."""
        latest = self._round_durations[-NUM_RECENT_ROUNDS:]
        return sum(latest) / len(latest) if latest else 0.0

    def _remaining_seconds(self, rounds: int | None) -> float | None:
        if rounds is None or not self._round_durations or self._timings.modified_at is None:
            return None
        under_way = min(max(0.0, time.time() - self._timings.modified_at), self._seconds_per_round())
        return max(0.0, self._seconds_per_round() * (rounds - self._history.last_complete_round) - under_way)


class WatchedRuns:
    """One run, or all runs below a directory, looked at again and again. New ones are found, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Somebody's config.yaml may lie beside the directory of runs.
        self.is_single_run = is_run_directory(path, DEFINITE_RUN_MARKERS) or (
            is_run_directory(path) and next(iter_run_directories(path), None) is None
        )
        self._runs: dict[Path, WatchedRun] = {}

    def poll(self) -> list[RunProgress]:
        """How all of them stand, those that run first; at least one."""
        if not self.path.is_dir():
            raise RequestError(f"no such directory ({self.path}): name a run, or a directory of runs")
        folders = [self.path] if self.is_single_run else list(iter_run_directories(self.path))
        self._runs = {folder: self._runs.get(folder) or WatchedRun(folder, self.is_single_run) for folder in folders}
        found = [run.poll() for run in self._runs.values()]
        shown = [progress for progress in found if self.is_single_run or progress.status is not RunStatus.EMPTY]
        if not shown:
            raise RequestError(f"no runs here ({self.path}): make some with 'fedmosaic train --preset quickstart'")
        order = list(RunStatus)
        return sorted(shown, key=lambda progress: (order.index(progress.status), progress.path))


def is_run_directory(directory: Path, markers: tuple[str, ...] = RUN_MARKERS) -> bool:
    """Whether a directory looks like that of a run, or of one that is about to begin."""
    return any(file_signature(directory / sign) for sign in markers)


def iter_run_directories(directory: Path, depth: int = MAX_SEARCH_DEPTH) -> Iterator[Path]:
    """The directories of runs below a directory; what lies within a run is its own business."""
    try:
        with os.scandir(directory) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        if depth == MAX_SEARCH_DEPTH:
            raise
        return
    for name in below:
        if is_run_directory(directory / name):
            yield directory / name
        elif depth > 1:
            yield from iter_run_directories(directory / name, depth - 1)
