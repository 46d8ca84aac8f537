"""The data directory of a command, with progress bars for downloads and decoding."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fedmosaic_cli.cli.console import print_stderr, stderr_console
from fedmosaic_cli.data.data_dirs import DEFAULT_DATA_DIR, DataDirs, no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.progress import TaskID

    from fedmosaic_cli.data.data_dirs import ProgressCallback

# Interval of progress lines if stderr is not a terminal.
PROGRESS_LINE_SECONDS = 10.0


@contextmanager
def data_dirs_with_progress(data_dir: Path | None, quiet: bool) -> Iterator[DataDirs]:
    """Yield the data directories of a command; progress is shown within the context."""
    with progress_callback(quiet) as on_progress:
        yield DataDirs(data_dir or DEFAULT_DATA_DIR, on_progress=on_progress)


@contextmanager
def progress_callback(quiet: bool) -> Iterator[ProgressCallback]:
    """Yield a callback that shows progress on stderr as a bar, as lines, or not at all."""
    if quiet:
        yield no_progress
    elif sys.stderr.isatty():
        with DataProgressBar() as bar:
            yield bar
    else:
        with DataProgressLines() as lines:
            yield lines


class DataProgressBar:
    """A progress bar with the remaining time."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TaskProgressColumn())
        self._progress = Progress(
            *columns, TextColumn("eta"), TimeRemainingColumn(), console=stderr_console(), transient=True
        )
        self._task: TaskID | None = None
        self._description = ""
        self._closed = False

    def __enter__(self) -> DataProgressBar:
        return self

    def __exit__(self, *failure: object) -> None:
        self._progress.stop()
        self._closed = True

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._closed:  # other output uses the terminal now
            return
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(task, total=total)
        if task != self._description:
            self._progress.reset(self._task, description=task, total=total)
            self._description = task
        self._progress.update(self._task, completed=done)
        if done >= total:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task, self._description = None, ""


class DataProgressLines:
    """Prints a line at intervals. If a task had a line, it also gets a last one, with 100 %."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_printed = clock()
        self._task = ""
        self._shown_percent: int | None = None

    def __enter__(self) -> DataProgressLines:
        return self

    def __exit__(self, error: object, *failure: object) -> None:
        if error is None:
            self._complete()

    def __call__(self, task: str, done: int, total: int) -> None:
        if task != self._task:
            self._complete()
            self._task = task
        percent, now = 100 * done // max(total, 1), self._clock()
        is_due = now - self._last_printed >= PROGRESS_LINE_SECONDS
        if percent >= 100 and (is_due or self._shown_percent is not None):
            self._show(100)
            self._shown_percent = None
        elif is_due:
            self._show(percent)
        if is_due:
            self._last_printed = now

    def _show(self, percent: int) -> None:
        if percent != self._shown_percent:
            self._shown_percent = percent
            print_stderr(f"{self._task}  {percent}%")

    def _complete(self) -> None:
        """Print the last line of a task that ended without one."""
        if self._shown_percent is not None:
            self._show(100)
        self._shown_percent = None
