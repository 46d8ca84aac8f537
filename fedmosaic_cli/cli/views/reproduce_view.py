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

from fedmosaic_cli.cli.console import err, out, remark, say, say_json
from fedmosaic_cli.cli.views.watch_view import clock
from fedmosaic_cli.report.run_progress import WatchedRun
from fedmosaic_cli.sweeps.durations import estimate
from fedmosaic_cli.sweeps.studies import STUDIES
from fedmosaic_cli.sweeps.sweep_plan import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from fedmosaic_cli.report.run_progress import Progress
    from fedmosaic_cli.sweeps.durations import Estimate
    from fedmosaic_cli.sweeps.jobs import Crew
    from fedmosaic_cli.sweeps.processes import Process
    from fedmosaic_cli.sweeps.studies import Scale
    from fedmosaic_cli.sweeps.sweep_plan import Cell, Job, Program

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_ESTIMATES = 15.0
WORDS = {State.DONE: "done", State.BEGUN: "begun", State.HELD: "held", State.TO_DO: "to do"}


@dataclass(frozen=True)
class Plan:
    """What is to be done for a study, so many jobs at once, and how far its runs were before."""

    what: str
    scale: Scale
    program: Program
    states: dict[Path, State]
    jobs: list[Job]
    at_once: int
    expected: Estimate

    @property
    def remaining(self) -> int:
        return sum(len(job.cells) for job in self.jobs)


def list_studies(as_json: bool) -> None:
    """What can be reproduced, a line each."""
    if as_json:
        say_json([{"name": name, "line": study.line} for name, study in STUDIES.items()])
        return
    table = Table("what", "is", box=None, pad_edge=False)
    for name, study in STUDIES.items():
        table.add_row(name, study.line)
    out().print(table)


def show_plan(plan: Plan, dry: bool) -> None:
    """What is done, what remains, and how long that takes: a result if nothing else is asked for, else a remark."""
    (out() if dry else err()).print(plan_table(plan))
    for line in time_lines(plan):
        (say if dry else remark)(line)


def plan_table(plan: Plan) -> Table:
    """A line a row of the study, a column a setting, and in each cell how many seeds are done, begun and to do."""
    cells: dict[tuple[str, str], list[State]] = {}
    for cell in plan.program.cells:
        cells.setdefault((cell.row.title, cell.scenario.name), []).append(plan.states[cell.files.path])
    table = Table(box=None, pad_edge=False)
    table.add_column("row", overflow="fold")
    settings = list(dict.fromkeys(setting for _, setting in cells))
    for setting in settings:
        table.add_column(setting, overflow="fold")
    for row in dict.fromkeys(row for row, _ in cells):
        table.add_row(row, *(counted(cells.get((row, setting), [])) for setting in settings))
    return table


def counted(states: Sequence[State]) -> str:
    """The states of the seeds in few words."""
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {word}" for state, word in WORDS.items() if counts[state]) or "-"


def time_lines(plan: Plan) -> list[str]:
    """How much remains, and how long it will take."""
    total, left = len(plan.program.cells), plan.remaining
    if not left:
        return [f"all {total} runs are done"]
    side_by_side = f"{plan.at_once} job{'s' * (plan.at_once > 1)}"
    begin = f"{total - left} of {total} runs are done, {left} remain: "
    if plan.expected.seconds is None:
        return [f"{begin}how long they take is unknown, as none was made here yet", *plan.expected.words]
    guess = " (a guess where no run here tells yet)" if plan.expected.guessed else ""
    return [f"{begin}about {in_words(plan.expected.seconds)} with {side_by_side}{guess}"]


def in_words(seconds: float) -> str:
    """A time to one unit or two."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class View(Protocol):
    """Shows how far the work is."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, crew: Crew, finished: Sequence[Cell]) -> None: ...


def view(quiet: bool, plan: Plan) -> View:
    """The view that suits where stderr goes."""
    if quiet:
        return Silent()
    return Moving(plan) if sys.stderr.isatty() else Lines(plan)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, crew: Crew, finished: Sequence[Cell]) -> None:
        return None


class Lines(Silent):
    """A plain line a finished run."""

    def __init__(self, plan: Plan) -> None:
        self._total = plan.remaining
        self._finished = 0
        self._failed = 0
        self._crashed = 0

    def update(self, crew: Crew, finished: Sequence[Cell]) -> None:
        for cell in finished:
            self._finished += 1
            progress = WatchedRun(cell.files.path, whole=False).look()
            accuracy = "" if progress.accuracy is None else f"  accuracy {100 * progress.accuracy:.2f}%"
            host = f"  on {crew.hosts[cell.files.path]}" if cell.files.path in crew.hosts else ""
            remark(f"[{self._finished}/{self._total}] {cell.title}{accuracy}  {progress.seconds:.1f} s{host}")
        for crash in crew.crashes[self._crashed :]:
            remark(f"crashed, and dealt again: {crash.job.title}: {crash.error}")
        self._crashed = len(crew.crashes)
        for failure in crew.failures[self._failed :]:
            remark(f"failed: {failure.job.title}: {failure.error}")
        self._failed = len(crew.failures)


class Moving(Silent):
    """One bar for everything, with the time to go, and a line for each job under way."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = err()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._watched: dict[Path, WatchedRun] = {}
        self._finished: set[Path] = set()
        self._looked = 0.0
        self._estimated = time.monotonic()
        self._expected = plan.expected.seconds

    def __enter__(self) -> View:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, crew: Crew, finished: Sequence[Cell]) -> None:
        self._finished |= {cell.files.path for cell in finished}
        now = time.monotonic()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        if now - self._estimated > SECONDS_BETWEEN_ESTIMATES:
            self._estimated = now
            left = [*(running.job for running in crew.running), *crew.waiting]
            self._expected = estimate(left, self._plan.program.cells, self._plan.at_once).seconds
        self._live.update(self._drawn(crew, now), refresh=True)

    def _drawn(self, crew: Crew, now: float) -> Group:
        lines, parts = [], 0.0
        for running in crew.running:
            looks = [(cell, self._look(cell)) for cell in running.job.cells]
            parts += sum(share(progress) for cell, progress in looks if cell.files.path not in self._finished)
            cell, progress = next(((c, p) for c, p in looks if p.round < (p.rounds or 1)), looks[-1])
            accuracy = "" if progress.accuracy is None else f"  acc {100 * progress.accuracy:.2f}%"
            lines.append(
                Text(
                    f"{cell.title}  round {progress.round}/{cell.config.train.rounds}{accuracy}{place(running.process)}"
                )
            )
        done = len(self._finished) + parts
        left = None if self._expected is None else max(0.0, self._expected - (now - self._estimated))
        head = Table.grid(padding=(0, 1))
        failed = f"  {len(crew.failures)} failed" if crew.failures else ""
        failed += f"  {len(crew.crashes)} dealt again" if crew.crashes else ""
        head.add_row(
            Text(f"{self._plan.what}: {int(done)} of {self._plan.remaining} runs{failed}"),
            ProgressBar(total=self._plan.remaining, completed=done, width=24),
            Text(f"eta {clock(left)}"),
        )
        return Group(head, *lines)

    def _look(self, cell: Cell) -> Progress:
        return self._watched.setdefault(cell.files.path, WatchedRun(cell.files.path, whole=False)).look()


def place(process: Process) -> str:
    """Where a job is under way, if it is not here."""
    if process.host is None:
        return "  waits for room"
    return f"  on {process.host}, process {process.pid}" if process.host else ""


def share(progress: Progress) -> float:
    """Which part of a run is done."""
    return min(1.0, progress.round / progress.rounds) if progress.rounds else 0.0
