"""Progress of runs on stderr: a bar on a terminal, one line per round in a pipe."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmosaic_cli.cli.console import print_stderr, stderr_console

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedmosaic_cli.runner.events import RoundCompleted, RunStarted

MIN_COLUMNS_FOR_BAR = 100
EXECUTION_DESCRIPTIONS = {
    "threads": "one by one",
    "stacked": "stacked",
    "stacked and threads": "stacked where they are alike",
}


class RunProgressView(AbstractContextManager["RunProgressView"]):
    """Receives the progress of runs. This base class shows nothing."""

    def __exit__(self, *exc_info: object) -> None:
        return None

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

    def __init__(self, num_runs: int) -> None:
        console = stderr_console()
        columns = (
            TextColumn("{task.description}", markup=False),
            *([BarColumn(bar_width=16)] if console.width >= MIN_COLUMNS_FOR_BAR else []),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}", markup=False),
            TextColumn("eta"),
            TimeRemainingColumn(compact=True),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._run_task = self._progress.add_task("runs", total=num_runs, values="") if num_runs > 1 else None
        self._round_task = self._progress.add_task("", total=None, values="")
        self._num_started = 0
        self._shown_execution = ""

    def __enter__(self) -> RunProgressView:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def on_prepare(self, title: str, num_rounds: int) -> None:
        if self._run_task is not None:
            self._progress.update(self._run_task, completed=self._num_started)
        self._num_started += 1
        self._progress.reset(self._round_task, description=title, total=num_rounds, values="preparing")

    def on_start(self, event: RunStarted) -> None:
        if execution_text(event) != self._shown_execution:  # once for all runs that execute in the same way
            self._shown_execution = execution_text(event)
            self._progress.console.print(self._shown_execution, markup=False, highlight=False)

    def on_resume(self, round_number: int) -> None:
        self._progress.update(self._round_task, completed=round_number)

    def on_waiting(self, clients: Collection[int]) -> None:
        self._progress.update(self._round_task, values=waiting_text(clients))

    def on_round(self, event: RoundCompleted) -> None:
        warn_about_missing_clients(event)
        self._progress.update(self._round_task, completed=event.round, values=round_metrics_text(event, "acc"))


def waiting_text(clients: Collection[int]) -> str:
    return f"waiting for client {', '.join(map(str, sorted(clients)))}"


def warn_about_missing_clients(event: RoundCompleted) -> None:
    """Warn about clients that failed or diverged in a round."""
    for client, reason in event.failed_clients.items():
        print_stderr(f"warning: lost in round {event.round}: client {client}, {reason}")
    if event.skipped_clients:
        clients = ", ".join(map(str, event.skipped_clients))
        print_stderr(f"warning: left out of round {event.round}, diverged: client {clients}")


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
