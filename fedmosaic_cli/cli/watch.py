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
from fedmosaic_cli.cli.console import out, say_json
from fedmosaic_cli.cli.interrupt import InterruptedBySignal
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.report.run_progress import WatchedRuns

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 3600


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
    if not (math.isfinite(interval) and SHORTEST_SECONDS <= interval <= LONGEST_SECONDS):
        limits = f"it must be between {SHORTEST_SECONDS} and {LONGEST_SECONDS}"
        raise RequestError(f"a time of {interval} s (--interval): {limits}")

    from fedmosaic_cli.cli.views.watch_view import to_json, view
    from fedmosaic_cli.report.run_progress import WatchedRuns

    runs = WatchedRuns(path)
    if as_json:
        say_json([to_json(progress, runs.single) for progress in runs.look()])
    elif once or not sys.stdout.isatty():
        out().print(view(runs.look(), runs, out(), None))
    else:
        follow(runs, interval)


@contextmanager
def until_enough() -> Iterator[None]:
    """Being told to stop is how watching ends: nothing has failed, so nothing is said."""
    try:
        yield
    except InterruptedBySignal as interrupt:
        raise typer.Exit(interrupt.code) from None


def follow(runs: WatchedRuns, interval: float) -> None:
    """Show the runs again and again on the terminal, until there is nothing more to wait for."""
    from rich.live import Live

    from fedmosaic_cli.cli.views.watch_view import view
    from fedmosaic_cli.report.run_progress import EXPECTED

    console = out()
    found = runs.look()
    with Live(console=console, auto_refresh=False) as live, until_enough():
        while True:
            live.update(view(found, runs, console, console.height), refresh=True)
            if not any(progress.state in EXPECTED for progress in found):
                return
            time.sleep(interval)
            found = runs.look()
