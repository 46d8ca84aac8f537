"""`fedmosaic watch`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption
from fedmosaic_cli.cli.console import print_json, stdout_console
from fedmosaic_cli.cli.interrupt import InterruptedBySignal
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.report.run_progress import WatchedRuns

MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.1, 3600


def watch(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", envvar="FEDMOSAIC_RUNS", help="A run, or where run directories lie.")
    ] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Show it once and end, as in a pipe.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how far runs are, from their files alone, while others make them.

    A directory of runs is a line a run, those that run first; one run is its curves and its clients.
    On a terminal it goes on until everything is finished, or Ctrl-C. Nothing is changed.

    \b
    [bold]Examples[/bold]
    fedmosaic watch
    fedmosaic watch runs/quickstart/fedmosaic-entropy/seed-0
    fedmosaic watch /mnt/cluster/runs --interval 10
    fedmosaic watch --json | jq '.[] | select(.state == "running")'
    """
    if not (math.isfinite(interval) and MIN_INTERVAL_SECONDS <= interval <= MAX_INTERVAL_SECONDS):
        limits = f"it must be between {MIN_INTERVAL_SECONDS} and {MAX_INTERVAL_SECONDS}"
        raise RequestError(f"a time of {interval} s (--interval): {limits}")

    from fedmosaic_cli.cli.views.watch_view import progress_to_json, render_watched_runs
    from fedmosaic_cli.report.run_progress import WatchedRuns

    runs = WatchedRuns(path)
    if as_json:
        print_json([progress_to_json(progress, runs.is_single_run) for progress in runs.poll()])
    elif once or not sys.stdout.isatty():
        stdout_console().print(render_watched_runs(runs.poll(), runs, stdout_console(), None))
    else:
        watch_until_finished(runs, interval)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Being told to stop is how watching ends: nothing has failed, so nothing is said."""
    try:
        yield
    except InterruptedBySignal as interrupt:
        raise typer.Exit(interrupt.exit_code) from None


def watch_until_finished(runs: WatchedRuns, interval: float) -> None:
    """Show the runs again and again on the terminal, until there is nothing more to wait for."""
    from rich.live import Live

    from fedmosaic_cli.cli.views.watch_view import render_watched_runs
    from fedmosaic_cli.report.run_progress import UNFINISHED_STATUSES

    console = stdout_console()
    found = runs.poll()
    with Live(console=console, auto_refresh=False) as live, exit_on_interrupt():
        while True:
            live.update(render_watched_runs(found, runs, console, console.height), refresh=True)
            if not any(progress.status in UNFINISHED_STATUSES for progress in found):
                return
            time.sleep(interval)
            found = runs.poll()
