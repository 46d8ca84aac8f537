"""Progress of runs, read from their files. Other processes or other machines may be executing the runs."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.run_status import RunStatus, RunStatusReader, UnreadableRunError, file_signature
from fedmosaic_cli.storage.lock import LOCK_FILE, is_locked, read_owner
from fedmosaic_cli.storage.log_tail import LogTail
from fedmosaic_cli.storage.runs import CONFIG_FILE, CRASH_FILE, ROUNDS_FILE, SUMMARY_FILE, TIMINGS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_MAGNITUDE = 1e300
MAX_INDEX = 10**9
LOG_WINDOW_BYTES = 1 << 16
NUM_RECENT_ROUNDS = 20
# Locks may not work across machines. There, a log that was written recently shows that the run is active.
ACTIVE_LOG_SECONDS = 120
# A stopped run can be resumed at any time.
UNFINISHED_STATUSES = (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.STOPPED)
MAX_SEARCH_DEPTH = 6
DEFINITE_RUN_MARKERS = (SUMMARY_FILE, ROUNDS_FILE, LOCK_FILE, CRASH_FILE)
RUN_MARKERS = (CONFIG_FILE, *DEFINITE_RUN_MARKERS)


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run. Accuracy and trust are means over clients in the last complete round.

    `history` contains round, mean accuracy and mean lambda of each round.
    """

    path: Path
    status: RunStatus
    reason: str
    round: int
    num_rounds: int | None
    mean_accuracy: float | None
    mean_trust: float | None
    elapsed_seconds: float
    remaining_seconds: float | None
    history: tuple[tuple[int, float | None, float | None], ...] = ()
    client_rows: tuple[dict[str, Any], ...] = ()


@dataclass
class RoundSums:
    """Sums over the clients of a round. Not every client has a lambda in every round."""

    num_clients: int = 0
    accuracy_sum: float = 0.0
    num_with_trust: int = 0
    trust_sum: float = 0.0

    def means(self) -> tuple[float | None, float | None]:
        """Return mean accuracy and mean lambda."""
        mean_trust = self.trust_sum / self.num_with_trust if self.num_with_trust else None
        return self.accuracy_sum / self.num_clients if self.num_clients else None, mean_trust


class RoundHistory:
    """Mean accuracy and lambda per round, from log rows in order.

    Args:
        keep_all_rounds: Keep all rounds instead of the two newest.
        read_from_start: False if the first round may lack clients. That round is ignored.
    """

    def __init__(self, keep_all_rounds: bool, read_from_start: bool = True) -> None:
        self.has_invalid_rows = False
        self._keep_all_rounds = keep_all_rounds
        self._partial_round: int | None = None
        self._read_from_start = read_from_start
        self._round_sums: dict[int, RoundSums] = {}
        self._recent_rows: dict[int, list[dict[str, Any]]] = {}

    def add_row(self, row: dict[str, Any]) -> None:
        """Add one row of the log."""
        number, accuracy, trust = row.get("round"), row.get("accuracy"), row.get("lambda")
        # Remote sites may keep their accuracy to themselves, and not every round is evaluated.
        is_unreported = accuracy is None and bool(row.keys() & {"accuracy", "withheld", "evaluation_error"})
        is_valid = is_unreported or is_finite_number(accuracy)
        if not is_index(number) or not is_valid or not is_index(row.get("client"), minimum=0):
            self.has_invalid_rows = True
            return
        if not self._read_from_start and self._partial_round is None:
            self._partial_round = number
        if number == self._partial_round:
            return
        sums = self._round_sums.setdefault(number, RoundSums())
        sums.num_clients += not is_unreported
        sums.accuracy_sum += accuracy or 0.0
        if is_finite_number(trust):
            sums.num_with_trust += 1
            sums.trust_sum += trust
        self._recent_rows.setdefault(number, []).append(row)
        while len(self._recent_rows) > 2:
            del self._recent_rows[min(self._recent_rows)]
        while not self._keep_all_rounds and len(self._round_sums) > 2:
            del self._round_sums[min(self._round_sums)]

    @property
    def last_complete_round(self) -> int:
        """The last round with rows of all clients, 0 without one."""
        newest = sorted(self._recent_rows)[-2:]
        if len(newest) == 2 and len(self._recent_rows[newest[1]]) < len(self._recent_rows[newest[0]]):
            return newest[0]
        return newest[-1] if newest else 0

    def last_round_means(self) -> tuple[float | None, float | None]:
        """Return mean accuracy and lambda of the last complete round."""
        return self._round_sums[self.last_complete_round].means() if self.last_complete_round else (None, None)

    def mean_curve(self) -> tuple[tuple[int, float | None, float | None], ...]:
        """Return round, mean accuracy and mean lambda up to the last complete round."""
        last = self.last_complete_round
        return tuple((number, *sums.means()) for number, sums in sorted(self._round_sums.items()) if number <= last)

    def last_round_rows(self) -> tuple[dict[str, Any], ...]:
        """Return the rows of the last complete round, one per client."""
        return tuple(self._recent_rows.get(self.last_complete_round, ()))


class WatchedRun:
    """A run directory to poll repeatedly. Each poll reads only new log lines.

    With `with_history`, the progress contains all rounds and the clients of the last one. Without, only the end of
    the log is read.
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
        """Return the current progress. Damaged files are reported in the result and never raise."""
        try:
            # Check the lock first: a run writes its summary before it releases the lock.
            locked = self._is_locked()
            finished, problem = self._status_reader.finished_rounds(), self._read_logs()
            planned = self._status_reader.planned_rounds()
        except UnreadableRunError as error:
            return self._make_progress(error.status, str(error), None)
        last_round = self._history.last_complete_round
        if finished is not None:
            if not problem and last_round != finished:
                problem = (
                    f"the log does not end in round {finished} ({self._log.path}): repeat its command to repair the run"
                )
            return self._make_progress(RunStatus.DAMAGED if problem else RunStatus.FINISHED, problem, finished)
        if locked:
            return self._make_progress(RunStatus.WAITING if planned is None else RunStatus.RUNNING, problem, planned)
        crash = self._status_reader.crash_error()
        if crash is not None:
            return self._make_progress(RunStatus.FAILED, crash, planned)
        if planned is None and not problem and not last_round:
            return self._make_progress(RunStatus.EMPTY, f"the directory contains no run ({self.path})", None)
        if planned is None:
            problem = problem or f"file is missing ({self.path / CONFIG_FILE}): the run cannot be resumed"
        return self._make_progress(RunStatus.DAMAGED if problem else RunStatus.STOPPED, problem, planned)

    def _make_progress(self, status: RunStatus, reason: str, rounds: int | None) -> RunProgress:
        history = self._history
        mean_accuracy, mean_trust = history.last_round_means()
        return RunProgress(
            path=self.path,
            status=status,
            reason=reason,
            round=history.last_complete_round,
            num_rounds=rounds,
            mean_accuracy=mean_accuracy,
            mean_trust=mean_trust,
            elapsed_seconds=sum(self._round_durations),
            remaining_seconds=self._remaining_seconds(rounds) if status is RunStatus.RUNNING else None,
            history=history.mean_curve() if self._with_history else (),
            client_rows=history.last_round_rows() if self._with_history else (),
        )

    def _read_logs(self) -> str:
        """Read new log lines. Return what is wrong with the logs, "" if nothing is."""
        try:
            self._read_rounds()
            restarted, rows = self._timings.read_new_lines()
            seconds = [row.get("seconds") for row in rows]
            durations = [max(0.0, value) if is_finite_number(value) else 0.0 for value in seconds]
            self._round_durations = [*([] if restarted else self._round_durations), *durations]
        except RequestError as error:
            return str(error)
        except OSError as error:
            return f"{error.strerror or error} ({error.filename or self.path}): it cannot be read"
        invalid = f"a line is not a log row ({self._log.path}): the file is damaged"
        return invalid if self._history.has_invalid_rows else ""

    def _read_rounds(self) -> None:
        while True:
            restarted, rows = self._log.read_new_lines()
            if restarted:
                self._history = RoundHistory(self._with_history, self._log.is_complete)
            for row in rows:
                self._history.add_row(row)
            if self._window_bytes is None or self._log.is_complete or self._history.last_complete_round:
                return
            self._window_bytes *= 4  # the window is smaller than one round
            self._log = LogTail(self._log.path, self._window_bytes)

    def _is_locked(self) -> bool:
        """Return whether a process is executing the run. A stale lock file is tested only once."""
        lock = file_signature(self.path / LOCK_FILE)
        if lock is None:
            return False
        if lock != self._stale_lock:
            with suppress(OSError):  # the file system may not support locks
                if is_locked(self.path):
                    return True
            self._stale_lock = lock
        log = file_signature(self._log.path)
        if log is None or read_owner(self.path).get("host", platform.node()) == platform.node():
            return False
        return time.time() - log.modified_ns / 1e9 < max(ACTIVE_LOG_SECONDS, 3 * self._seconds_per_round())

    def _seconds_per_round(self) -> float:
        recent = self._round_durations[-NUM_RECENT_ROUNDS:]
        return sum(recent) / len(recent) if recent else 0.0

    def _remaining_seconds(self, rounds: int | None) -> float | None:
        if rounds is None or not self._round_durations or self._timings.modified_at is None:
            return None
        in_current_round = min(max(0.0, time.time() - self._timings.modified_at), self._seconds_per_round())
        return max(0.0, self._seconds_per_round() * (rounds - self._history.last_complete_round) - in_current_round)


class WatchedRuns:
    """One run, or all runs below a directory, to poll repeatedly. Each poll also finds new runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A config.yaml alone does not mark a run if there are runs below.
        self.is_single_run = is_run_directory(path, DEFINITE_RUN_MARKERS) or (
            is_run_directory(path) and next(iter_run_directories(path), None) is None
        )
        self._runs: dict[Path, WatchedRun] = {}

    def poll(self) -> list[RunProgress]:
        """Return the progress of all runs, running ones first. Raise RequestError if there are no runs."""
        if not self.path.is_dir():
            raise RequestError(f"no such directory ({self.path}): pass a run, or a directory of runs")
        paths = [self.path] if self.is_single_run else list(iter_run_directories(self.path))
        self._runs = {path: self._runs.get(path) or WatchedRun(path, self.is_single_run) for path in paths}
        polled = [run.poll() for run in self._runs.values()]
        shown = [progress for progress in polled if self.is_single_run or progress.status is not RunStatus.EMPTY]
        if not shown:
            raise RequestError(f"no runs here ({self.path}): create one with 'fedmosaic train --preset quickstart'")
        order = list(RunStatus)
        return sorted(shown, key=lambda progress: (order.index(progress.status), progress.path))


def is_run_directory(directory: Path, markers: tuple[str, ...] = RUN_MARKERS) -> bool:
    """Return whether a directory contains one of the marker files."""
    return any(file_signature(directory / name) for name in markers)


def iter_run_directories(directory: Path, depth: int = MAX_SEARCH_DEPTH) -> Iterator[Path]:
    """Yield the run directories below a directory. Run directories are not searched."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        if depth == MAX_SEARCH_DEPTH:
            raise
        return
    for name in names:
        if is_run_directory(directory / name):
            yield directory / name
        elif depth > 1:
            yield from iter_run_directories(directory / name, depth - 1)


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a finite number that can be added up safely."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE


def is_index(value: object, minimum: int = 1) -> TypeGuard[int]:
    """Return whether a JSON value is a valid round or client number."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_INDEX
