"""Progress of runs on stderr: a bar on a terminal, one line per round in a pipe."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from fedmosaic_cli.cli.console import print_stderr, stderr_console
from fedmosaic_cli.cli.views.watch_view import clock_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from fedmosaic_cli.runner.events import RoundCompleted, RunStarted

MIN_WIDE_COLUMNS = 100
BAR_WIDTH, WIDE_BAR_WIDTH = 8, 20
# The widths of "acc 99.99%  lambda 0.123" and "eta 1:23:45", and of the spaces between the columns.
NUMBERS_WIDTH = 24 + 11 + 4
MIN_TITLE_WIDTH = 10
EXECUTION_DESCRIPTIONS = {
    "threads": "one by one",
    "stacked": "stacked",
    "stacked and threads": "stacked where they are alike",
}


class RunProgressView(AbstractContextManager["RunProgressView"]):
    """Receives the progress of runs. This base class shows nothing."""

    num_live_lines = 0
    """Number of lines that are redrawn in place."""

    def __exit__(self, *exc_info: object) -> None:
        return None

    def on_write_shards(self) -> None:
        """Handle that the shards of the next run are written."""

    def on_prepare(self, title: str, num_rounds: int) -> None:
        """Handle the preparation of the next run."""

    def on_start(self, event: RunStarted) -> None:
        """Handle the start of a run."""

    def on_resume(self, round_number: int) -> None:
        """Handle that a run continues after this round."""

    def on_waiting(self, clients: Collection[int]) -> None:
        """Handle that the run waits for these clients."""

    def on_round(self, event: RoundCompleted) -> None:
        """Handle a completed round."""


def make_run_progress_view(quiet: bool, num_runs: int) -> RunProgressView:
    """Return the view that fits stderr."""
    if quiet:
        return RunProgressView()
    return RunProgressBars(num_runs) if sys.stderr.isatty() else RunProgressLines(num_runs)


class RunProgressLines(RunProgressView):
    """Prints one line per round."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs = num_runs
        self._run_number = 0
        self._title = ""
        self._num_rounds = 0
        self._missing_clients: set[int] = set()

    def on_prepare(self, title: str, num_rounds: int) -> None:
        self._run_number += 1
        self._num_rounds = num_rounds
        self._title = f"[{self._run_number}/{self._num_runs}] {title}" if self._num_runs > 1 else title

    def on_start(self, event: RunStarted) -> None:
        print_stderr(f"{self._title}  {execution_text(event)}")

    def on_resume(self, round_number: int) -> None:
        print_stderr(f"{self._title}  resumed after round {round_number}")

    def on_waiting(self, clients: Collection[int]) -> None:
        if set(clients) != self._missing_clients:  # one line per change, not per poll
            self._missing_clients = set(clients)
            print_stderr(f"{self._title}  {waiting_text(clients)}")

    def on_round(self, event: RoundCompleted) -> None:
        warn_about_missing_clients(event)
        print_stderr(
            f"{self._title}  round {event.round}/{self._num_rounds}  {round_metrics_text(event)}  {event.seconds:.2f} s"
        )


class RunProgressBars(RunProgressView):
    """Shows one bar for the rounds of the current run, and one for the runs if there are several."""

    def __init__(self, num_runs: int, console: Console | None = None) -> None:
        console = console or stderr_console()
        bar_width = WIDE_BAR_WIDTH if console.width >= MIN_WIDE_COLUMNS else BAR_WIDTH
        self._width_without_bar = console.width - bar_width
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=bar_width, table_column=Column(width=bar_width)),
            CountColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[values]}", markup=False, table_column=Column(no_wrap=True)),
            RemainingTimeColumn(table_column=Column(no_wrap=True)),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._run_task = self._progress.add_task("runs", total=num_runs, values="") if num_runs > 1 else None
        self._round_task = self._progress.add_task("preparing", total=None, values="")
        self.num_live_lines = len(self._progress.tasks)
        self._num_started = 0
        self._shown_execution = ""

    def __enter__(self) -> RunProgressView:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def on_write_shards(self) -> None:
        self._reset("writing shards", None)

    def on_prepare(self, title: str, num_rounds: int) -> None:
        width = self._width_without_bar - NUMBERS_WIDTH - len(f"{num_rounds}/{num_rounds}")
        self._reset(shorten_title(title, max(MIN_TITLE_WIDTH, width)), num_rounds, "preparing")
        self._num_started += 1

    def on_start(self, event: RunStarted) -> None:
        if execution_text(event) != self._shown_execution:  # once for all runs that execute in the same way
            self._shown_execution = execution_text(event)
            self._progress.console.print(self._shown_execution, markup=False, highlight=False)

    def _reset(self, description: str, total: int | None, values: str = "") -> None:
        """Start the line of the next run or step, and count the runs before it as completed."""
        if self._run_task is not None:
            self._progress.update(self._run_task, completed=self._num_started)
        # `Progress.reset` ignores a total of None.
        self._progress.reset(self._round_task, description=description, values=values)
        self._progress.tasks[-1].total = total
        self._progress.refresh()

    def on_resume(self, round_number: int) -> None:
        self._progress.update(self._round_task, completed=round_number)

    def on_waiting(self, clients: Collection[int]) -> None:
        self._progress.update(self._round_task, values=waiting_text(clients))

    def on_round(self, event: RoundCompleted) -> None:
        warn_about_missing_clients(event)
        self._progress.update(self._round_task, completed=event.round, values=round_metrics_text(event, "acc"))


class CountColumn(ProgressColumn):
    """Shows the completed and all steps, if their number is known."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)}", style="progress.download")


class RemainingTimeColumn(ProgressColumn):
    """Shows the remaining time once it can be estimated."""

    def render(self, task: Task) -> Text:
        is_known = task.total is not None and task.time_remaining is not None and not task.finished
        return Text(f"eta {clock_text(task.time_remaining)}" if is_known else "", style="progress.remaining")


def shorten_title(title: str, width: int) -> str:
    """Return the title of a run without the number of clients, shortened in the middle if it is still too long."""
    if len(title) > width:
        title = title.partition(", ")[0]
    start = width // 2 - 1
    return title if len(title) <= width else f"{title[:start]}...{title[len(title) - (width - start - 3) :]}"


def waiting_text(clients: Collection[int]) -> str:
    return f"waiting for client {', '.join(map(str, sorted(clients)))}"


def warn_about_missing_clients(event: RoundCompleted) -> None:
    """Warn about clients that failed or diverged in a round."""
    for client, reason in event.failed_clients.items():
        print_stderr(f"warning: lost in round {event.round}: client {client}, {reason}")
    if event.skipped_clients:
        clients = ", ".join(map(str, event.skipped_clients))
        print_stderr(
            f"warning: skipped in round {event.round}, diverged: client {clients}; if this repeats, lower train.lr"
        )


def execution_text(event: RunStarted) -> str:
    """Describe devices, execution mode and workers of a run."""
    workers = f"{event.num_workers} worker{'' if event.num_workers == 1 else 's'}"
    return f"on {', '.join(map(str, event.devices))}: clients {EXECUTION_DESCRIPTIONS[event.execution]}, {workers}"


def round_metrics_text(event: RoundCompleted, accuracy_name: str = "accuracy") -> str:
    trust = "" if event.mean_trust is None else f"  lambda {event.mean_trust:.3f}"
    is_withheld = any(row.keys() & {"withheld", "evaluation_error"} for row in event.log_rows)
    missing = "withheld" if is_withheld else "not evaluated"
    accuracy = missing if event.mean_accuracy is None else f"{100 * event.mean_accuracy:.2f}%"
    return f"{accuracy_name} {accuracy}{trust}"
