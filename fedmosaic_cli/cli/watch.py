"""`fedmosaic watch`."""

from __future__ import annotations

import math
import sys
import time
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
        Path, typer.Argument(metavar="PATH", envvar="FEDMOSAIC_RUNS", help="A run, or a directory that contains runs.")
    ] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print the progress once, as in a pipe.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds between two updates.")] = 1.0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the progress of runs that other processes execute, read from their files.

    A directory of runs is shown as one line per run, running ones first; a single run with its curves and clients.
    On a terminal the view is updated until all runs are finished or Ctrl-C is pressed.

    \b
    [bold]Examples[/bold]
    fedmosaic watch
    fedmosaic watch runs/quickstart/fedmosaic-entropy/seed-0
    fedmosaic watch /mnt/cluster/runs --interval 10
    fedmosaic watch --json | jq '.[] | select(.state == "running")'
    """
    if not (math.isfinite(interval) and MIN_INTERVAL_SECONDS <= interval <= MAX_INTERVAL_SECONDS):
        limits = f"it must be between {MIN_INTERVAL_SECONDS} and {MAX_INTERVAL_SECONDS}"
        raise RequestError(f"{interval} seconds is out of range (--interval): {limits}")

    from fedmosaic_cli.cli.views.watch_view import progress_to_json, render_watched_runs
    from fedmosaic_cli.report.run_progress import WatchedRuns

    runs = WatchedRuns(path)
    if as_json:
        print_json([progress_to_json(progress, runs.is_single_run) for progress in runs.poll()])
    elif once or not sys.stdout.isatty():
        stdout_console().print(render_watched_runs(runs.poll(), runs, stdout_console(), None))
    else:
        watch_until_finished(runs, interval)


def watch_until_finished(runs: WatchedRuns, interval: float) -> None:
    """Update the view until no run can make further progress."""
    from rich.live import Live

    from fedmosaic_cli.cli.views.watch_view import render_watched_runs
    from fedmosaic_cli.report.run_progress import UNFINISHED_STATUSES

    console = stdout_console()
    progress_list = runs.poll()
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(render_watched_runs(progress_list, runs, console, console.height), refresh=True)
                if not any(progress.status in UNFINISHED_STATUSES for progress in progress_list):
                    return
                time.sleep(interval)
                progress_list = runs.poll()
    except InterruptedBySignal as interrupt:  # the normal way to stop: exit without a message
        raise typer.Exit(interrupt.exit_code) from None
