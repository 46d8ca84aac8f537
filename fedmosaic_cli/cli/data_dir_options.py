"""Where data lies, as options and environment say, with a bar for whatever takes long there."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fedmosaic_cli.cli.console import err, remark
from fedmosaic_cli.data.data_dirs import DATA_DIR, Place, unseen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.progress import TaskID

    from fedmosaic_cli.data.data_dirs import Watch

# In a pipe, a line this often is enough.
SECONDS_BETWEEN_LINES = 2.0


@contextmanager
def data_place(data_dir: Path | None, quiet: bool) -> Iterator[Place]:
    """The place of this command. What it watches is shown while the context lasts."""
    with watching(quiet) as watch:
        yield Place(data_dir or DATA_DIR, watch=watch)


@contextmanager
def watching(quiet: bool) -> Iterator[Watch]:
    """Somebody to tell how far work has come, who shows it in the way that suits where stderr goes."""
    if quiet:
        yield unseen
    elif sys.stderr.isatty():
        with Bar() as bar:
            yield bar
    else:
        yield Lines()


class Bar:
    """A bar with the time to go, for whatever is being done."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TaskProgressColumn())
        self._progress = Progress(*columns, TextColumn("eta"), TimeRemainingColumn(), console=err(), transient=True)
        self._task: TaskID | None = None
        self._what = ""
        self._closed = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *failure: object) -> None:
        self._progress.stop()
        self._closed = True

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._closed:  # the terminal belongs to somebody else by now
            return
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(what, total=total)
        if what != self._what:
            self._progress.reset(self._task, description=what, total=total)
            self._what = what
        self._progress.update(self._task, completed=done)
        if done >= total:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task, self._what = None, ""


class Lines:
    """A plain line now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            remark(f"{what}  {100 * done // max(total, 1)}%")
