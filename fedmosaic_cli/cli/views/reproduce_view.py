"""How the work of `fedmosaic reproduce` looks: before it begins, and while it goes on."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout, stderr_console, stdout_console
from fedmosaic_cli.cli.views.watch_view import clock_text
from fedmosaic_cli.report.run_progress import WatchedRun
from fedmosaic_cli.sweeps.durations import estimate_duration
from fedmosaic_cli.sweeps.studies import STUDIES
from fedmosaic_cli.sweeps.sweep_plan import SweepRunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from fedmosaic_cli.report.run_progress import RunProgress
    from fedmosaic_cli.sweeps.durations import DurationEstimate
    from fedmosaic_cli.sweeps.jobs import JobRunner
    from fedmosaic_cli.sweeps.processes import JobProcess
    from fedmosaic_cli.sweeps.studies import Scale
    from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepPlan, SweepRun

REFRESH_SECONDS = 1.0
ESTIMATE_REFRESH_SECONDS = 15.0
STATE_NAMES = {
    SweepRunState.FINISHED: "done",
    SweepRunState.STARTED: "begun",
    SweepRunState.LOCKED: "held",
    SweepRunState.PENDING: "to do",
}


@dataclass(frozen=True)
class SweepSchedule:
    """What is to be done for a study, so many jobs at once, and how far its runs were before."""

    study_name: str
    scale: Scale
    plan: SweepPlan
    states: dict[Path, SweepRunState]
    jobs: list[SweepJob]
    max_parallel: int
    estimate: DurationEstimate

    @property
    def num_remaining(self) -> int:
        return sum(len(job.runs) for job in self.jobs)


def list_studies(as_json: bool) -> None:
    """What can be reproduced, a line each."""
    if as_json:
        print_json([{"name": name, "line": study.description} for name, study in STUDIES.items()])
        return
    table = Table("what", "is", box=None, pad_edge=False)
    for name, study in STUDIES.items():
        table.add_row(name, study.description)
    stdout_console().print(table)


def show_sweep_schedule(schedule: SweepSchedule, is_dry_run: bool) -> None:
    """What is done, what remains, and how long that takes: a result if nothing else is asked for, else a remark."""
    (stdout_console() if is_dry_run else stderr_console()).print(schedule_table(schedule))
    for line in remaining_time_lines(schedule):
        (print_stdout if is_dry_run else print_stderr)(line)


def schedule_table(schedule: SweepSchedule) -> Table:
    """A line a row of the study, a column a setting, and in each cell how many seeds are done, begun and to do."""
    cells: dict[tuple[str, str], list[SweepRunState]] = {}
    for cell in schedule.plan.runs:
        cells.setdefault((cell.row.title, cell.scenario.name), []).append(schedule.states[cell.files.path])
    table = Table(box=None, pad_edge=False)
    table.add_column("row", overflow="fold")
    settings = list(dict.fromkeys(setting for _, setting in cells))
    for setting in settings:
        table.add_column(setting, overflow="fold")
    for row in dict.fromkeys(row for row, _ in cells):
        table.add_row(row, *(state_counts_text(cells.get((row, setting), [])) for setting in settings))
    return table


def state_counts_text(states: Sequence[SweepRunState]) -> str:
    """The states of the seeds in few words."""
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {word}" for state, word in STATE_NAMES.items() if counts[state]) or "-"


def remaining_time_lines(schedule: SweepSchedule) -> list[str]:
    """How much remains, and how long it will take."""
    total, left = len(schedule.plan.runs), schedule.num_remaining
    if not left:
        return [f"all {total} runs are done"]
    side_by_side = f"{schedule.max_parallel} job{'s' * (schedule.max_parallel > 1)}"
    begin = f"{total - left} of {total} runs are done, {left} remain: "
    if schedule.estimate.seconds is None:
        return [f"{begin}how long they take is unknown, as none was made here yet", *schedule.estimate.preset_notes]
    guess = " (a guess where no run here tells yet)" if schedule.estimate.is_guess else ""
    return [f"{begin}about {duration_text(schedule.estimate.seconds)} with {side_by_side}{guess}"]


def duration_text(seconds: float) -> str:
    """A time to one unit or two."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class SweepProgressView(Protocol):
    """Shows how far the work is."""

    def __enter__(self) -> SweepProgressView: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None: ...


def make_sweep_progress_view(quiet: bool, schedule: SweepSchedule) -> SweepProgressView:
    """The view that suits where stderr goes."""
    if quiet:
        return SilentSweepProgress()
    return LiveSweepProgress(schedule) if sys.stderr.isatty() else SweepProgressLines(schedule)


class SilentSweepProgress:
    """Shows nothing."""

    def __enter__(self) -> SweepProgressView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None:
        return None


class SweepProgressLines(SilentSweepProgress):
    """A plain line a finished run."""

    def __init__(self, schedule: SweepSchedule) -> None:
        self._num_runs = schedule.num_remaining
        self._num_finished = 0
        self._num_reported_failures = 0
        self._num_reported_crashes = 0

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None:
        for cell in finished:
            self._num_finished += 1
            progress = WatchedRun(cell.files.path, with_history=False).poll()
            accuracy = "" if progress.mean_accuracy is None else f"  accuracy {100 * progress.mean_accuracy:.2f}%"
            host = f"  on {runner.remote_hosts[cell.files.path]}" if cell.files.path in runner.remote_hosts else ""
            print_stderr(
                f"[{self._num_finished}/{self._num_runs}] {cell.title}{accuracy}  {progress.elapsed_seconds:.1f} s{host}"
            )
        for crash in runner.crashes[self._num_reported_crashes :]:
            print_stderr(f"crashed, and dealt again: {crash.job.title}: {crash.error}")
        self._num_reported_crashes = len(runner.crashes)
        for failure in runner.failures[self._num_reported_failures :]:
            print_stderr(f"failed: {failure.job.title}: {failure.error}")
        self._num_reported_failures = len(runner.failures)


class LiveSweepProgress(SilentSweepProgress):
    """One bar for everything, with the time to go, and a line for each job under way."""

    def __init__(self, schedule: SweepSchedule) -> None:
        self._schedule = schedule
        self._console = stderr_console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._watched_runs: dict[Path, WatchedRun] = {}
        self._finished_paths: set[Path] = set()
        self._refreshed_at = 0.0
        self._estimated_at = time.monotonic()
        self._estimated_seconds = schedule.estimate.seconds

    def __enter__(self) -> SweepProgressView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None:
        self._finished_paths |= {cell.files.path for cell in finished}
        now = time.monotonic()
        if now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        if now - self._estimated_at > ESTIMATE_REFRESH_SECONDS:
            self._estimated_at = now
            left = [*(running.job for running in runner.running), *runner.queue]
            self._estimated_seconds = estimate_duration(
                left, self._schedule.plan.runs, self._schedule.max_parallel
            ).seconds
        self._live.update(self._render(runner, now), refresh=True)

    def _render(self, runner: JobRunner, now: float) -> Group:
        lines, parts = [], 0.0
        for running in runner.running:
            looks = [(cell, self._poll_run(cell)) for cell in running.job.runs]
            parts += sum(
                finished_fraction(progress) for cell, progress in looks if cell.files.path not in self._finished_paths
            )
            cell, progress = next(((c, p) for c, p in looks if p.round < (p.num_rounds or 1)), looks[-1])
            accuracy = "" if progress.mean_accuracy is None else f"  acc {100 * progress.mean_accuracy:.2f}%"
            lines.append(
                Text(
                    f"{cell.title}  round {progress.round}/{cell.config.train.rounds}{accuracy}{process_location(running.process)}"
                )
            )
        done = len(self._finished_paths) + parts
        left = (
            None if self._estimated_seconds is None else max(0.0, self._estimated_seconds - (now - self._estimated_at))
        )
        head = Table.grid(padding=(0, 1))
        failed = f"  {len(runner.failures)} failed" if runner.failures else ""
        failed += f"  {len(runner.crashes)} dealt again" if runner.crashes else ""
        head.add_row(
            Text(f"{self._schedule.study_name}: {int(done)} of {self._schedule.num_remaining} runs{failed}"),
            ProgressBar(total=self._schedule.num_remaining, completed=done, width=24),
            Text(f"eta {clock_text(left)}"),
        )
        return Group(head, *lines)

    def _poll_run(self, run: SweepRun) -> RunProgress:
        return self._watched_runs.setdefault(run.files.path, WatchedRun(run.files.path, with_history=False)).poll()


def process_location(process: JobProcess) -> str:
    """Where a job is under way, if it is not here."""
    if process.host is None:
        return "  waits for room"
    return f"  on {process.host}, process {process.pid}" if process.host else ""


def finished_fraction(progress: RunProgress) -> float:
    """Which part of a run is done."""
    return min(1.0, progress.round / progress.num_rounds) if progress.num_rounds else 0.0
