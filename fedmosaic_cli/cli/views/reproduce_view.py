"""Terminal views of `fedmosaic reproduce`: the schedule of a sweep, and its progress."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout, stderr_console, stdout_console
from fedmosaic_cli.cli.views.watch_view import clock_text
from fedmosaic_cli.report.run_progress import WatchedRun
from fedmosaic_cli.sweeps.studies import STUDIES
from fedmosaic_cli.sweeps.sweep_plan import SweepRunState, estimate_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedmosaic_cli.report.run_progress import RunProgress
    from fedmosaic_cli.sweeps.jobs import JobRunner
    from fedmosaic_cli.sweeps.processes import JobProcess
    from fedmosaic_cli.sweeps.studies import Scale
    from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepPlan, SweepRun

REFRESH_SECONDS = 1.0
ESTIMATE_REFRESH_SECONDS = 15.0
MAX_SCENARIO_COLUMNS = 12
"""With more scenarios, the schedule has one line per scenario."""
STATE_NAMES = {
    SweepRunState.FINISHED: "done",
    SweepRunState.STARTED: "started",
    SweepRunState.LOCKED: "locked",
    SweepRunState.PENDING: "to do",
}


@dataclass(frozen=True)
class SweepSchedule:
    """The remaining jobs of a study, and the states of its runs before they start."""

    study_name: str
    scale: Scale
    plan: SweepPlan
    states: dict[Path, SweepRunState]
    jobs: list[SweepJob]
    max_parallel: int
    estimated_seconds: float | None

    @property
    def num_remaining(self) -> int:
        return sum(len(job.runs) for job in self.jobs)


def list_studies(as_json: bool) -> None:
    """Print all studies, one per line."""
    if as_json:
        print_json([{"name": name, "line": study.description} for name, study in STUDIES.items()])
        return
    table = Table("what", "is", box=None, pad_edge=False)
    for name, study in STUDIES.items():
        table.add_row(name, study.description)
    stdout_console().print(table)


def show_sweep_schedule(schedule: SweepSchedule, is_dry_run: bool) -> None:
    """Print the states of all runs and the remaining time: to stdout in a dry run, else to stderr."""
    states: defaultdict[tuple[str, str], list[SweepRunState]] = defaultdict(list)
    for run in schedule.plan.runs:
        states[run.row.title, run.scenario.name].append(schedule.states[run.files.path])
    table = Table(box=None, pad_edge=False)
    rows, scenarios = (list(dict.fromkeys(key[number] for key in states)) for number in (0, 1))
    is_transposed = len(scenarios) > MAX_SCENARIO_COLUMNS
    for heading in ("setting", *rows) if is_transposed else ("row", *scenarios):
        table.add_column(heading, overflow="fold")
    for name in scenarios if is_transposed else rows:
        keys = [(row, name) for row in rows] if is_transposed else [(name, scenario) for scenario in scenarios]
        table.add_row(name, *(state_counts_text(states.get(key, [])) for key in keys))
    (stdout_console() if is_dry_run else stderr_console()).print(table)
    (print_stdout if is_dry_run else print_stderr)(remaining_work_text(schedule))


def state_counts_text(states: Sequence[SweepRunState]) -> str:
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {name}" for state, name in STATE_NAMES.items() if counts[state]) or "-"


def remaining_work_text(schedule: SweepSchedule) -> str:
    """Describe how many runs remain and how long they take."""
    total, left = len(schedule.plan.runs), schedule.num_remaining
    if not left:
        return f"all {total} runs are done"
    if schedule.estimated_seconds is None:
        time_text = "their duration is unknown until runs of the same settings have been measured here"
    else:
        jobs = f"{schedule.max_parallel} job{'s' * (schedule.max_parallel > 1)}"
        time_text = f"about {duration_text(schedule.estimated_seconds)} with {jobs}"
    return f"{total - left} of {total} runs are done, {left} remain: {time_text}"


def duration_text(seconds: float) -> str:
    """Format a duration with one or two units."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class SweepProgressView(AbstractContextManager["SweepProgressView"]):
    """Receives the progress of a sweep. This base class shows nothing."""

    num_live_lines = 0
    """Number of lines that are redrawn in place."""

    def __exit__(self, *exc_info: object) -> None:
        return None

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None:
        """Handle the current state and the newly finished runs."""


def make_sweep_progress_view(quiet: bool, schedule: SweepSchedule) -> SweepProgressView:
    """Return the view that fits stderr."""
    if quiet:
        return SweepProgressView()
    return LiveSweepProgress(schedule) if sys.stderr.isatty() else SweepProgressLines(schedule)


class SweepProgressLines(SweepProgressView):
    """Prints one line per finished run, crash and failure."""

    def __init__(self, schedule: SweepSchedule) -> None:
        self._num_runs = schedule.num_remaining
        self._num_finished = 0
        self._num_reported_failures = 0
        self._num_reported_crashes = 0

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None:
        for run in finished:
            self._num_finished += 1
            progress = WatchedRun(run.files.path, with_history=False).poll()
            host = f"  on {runner.remote_hosts[run.files.path]}" if run.files.path in runner.remote_hosts else ""
            print_stderr(
                f"[{self._num_finished}/{self._num_runs}] {run.title}{accuracy_text(progress, 'accuracy')}  "
                f"{progress.elapsed_seconds:.1f} s{host}"
            )
        for crash in runner.crashes[self._num_reported_crashes :]:
            print_stderr(f"crashed, will be retried: {crash.job.title}: {crash.error}")
        self._num_reported_crashes = len(runner.crashes)
        for failure in runner.failures[self._num_reported_failures :]:
            print_stderr(f"failed: {failure.job.title}: {failure.error}")
        self._num_reported_failures = len(runner.failures)


class LiveSweepProgress(SweepProgressView):
    """Shows one bar for the sweep with the remaining time, and one line per running job."""

    def __init__(self, schedule: SweepSchedule) -> None:
        self._schedule = schedule
        self._live = Live(console=stderr_console(), auto_refresh=False, transient=True)
        self._watched_runs: dict[Path, WatchedRun] = {}
        self._finished_paths: set[Path] = set()
        self._refreshed_at = 0.0
        self._estimated_at = time.monotonic()
        self._estimated_seconds = schedule.estimated_seconds

    def __enter__(self) -> SweepProgressView:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def update(self, runner: JobRunner, finished: Sequence[SweepRun]) -> None:
        self._finished_paths |= {run.files.path for run in finished}
        now = time.monotonic()
        if now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        if now - self._estimated_at > ESTIMATE_REFRESH_SECONDS:
            self._estimated_at = now
            jobs = [*(running.job for running in runner.running), *runner.queue]
            self._estimated_seconds = estimate_seconds(jobs, self._schedule.plan.runs, self._schedule.max_parallel)
        self._live.update(self._render(runner, now), refresh=True)

    def _render(self, runner: JobRunner, now: float) -> Group:
        lines, num_done = [], float(len(self._finished_paths))
        for running in runner.running:
            runs = [(run, self._poll_run(run)) for run in running.job.runs]
            for run, progress in runs:
                if progress.num_rounds and run.files.path not in self._finished_paths:
                    num_done += min(1.0, progress.round / progress.num_rounds)
            run, progress = next(((r, p) for r, p in runs if p.round < (p.num_rounds or 1)), runs[-1])
            round_text = f"round {progress.round}/{run.config.train.rounds}{accuracy_text(progress, 'acc')}"
            lines.append(Text(f"{run.title}  {round_text}{process_location(running.process)}"))
        left = self._estimated_seconds
        failed = f"  {len(runner.failures)} failed" if runner.failures else ""
        failed += f"  {len(runner.crashes)} retried" if runner.crashes else ""
        self.num_live_lines = 1 + len(lines)
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{self._schedule.study_name}: {int(num_done)} of {self._schedule.num_remaining} runs{failed}"),
            ProgressBar(total=self._schedule.num_remaining, completed=num_done, width=24),
            Text(f"eta {clock_text(None if left is None else max(0.0, left - (now - self._estimated_at)))}"),
        )
        return Group(head, *lines)

    def _poll_run(self, run: SweepRun) -> RunProgress:
        return self._watched_runs.setdefault(run.files.path, WatchedRun(run.files.path, with_history=False)).poll()


def process_location(process: JobProcess) -> str:
    """Describe where a job runs, if not on this machine."""
    if process.host is None:
        return "  waits for resources"
    return f"  on {process.host}, process {process.pid}" if process.host else ""


def accuracy_text(progress: RunProgress, name: str) -> str:
    return "" if progress.mean_accuracy is None else f"  {name} {100 * progress.mean_accuracy:.2f}%"
