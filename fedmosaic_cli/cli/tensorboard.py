"""`--tensorboard`: event files with the metrics of each round, in the run directory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.runner.tensorboard_log import log_to_tensorboard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.runner.events import RunEvent
    from fedmosaic_cli.storage.runs import RunDirectory


@contextmanager
def tensorboard_logging(
    events: Iterator[RunEvent], files: RunDirectory, is_enabled: bool
) -> Iterator[Iterator[RunEvent]]:
    """Pass on the events of a run and, if enabled, write each round to event files."""
    if not is_enabled:
        yield events
        return
    with log_to_tensorboard(events, files, lambda text: print_stderr(f"warning: {text}")) as logged:
        yield logged
