"""The callback that writes event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.api.api_errors import python_wording, warn
from fedmosaic_cli.runner.tensorboard_log import (
    log_to_tensorboard,
    require_tensorboard_installed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.runner.events import RunEvent
    from fedmosaic_cli.storage.runs import RunDirectory


class TensorBoard:
    """Writes the metrics of each round as event files, as `fedmosaic train --tensorboard` does.

    It needs the extra `tensorboard`. A finished run gets its event files, too. If a file cannot be written, a
    `FedMosaicWarning` is issued and the run continues.

    Args:
        log_dir: Directory of the event files of one run; by default the directory `tensorboard` of the run.

    Raises:
        FedMosaicError: The package tensorboard is not installed.

    Example:
        >>> fedmosaic.Experiment("quickstart").run(callbacks=[fedmosaic.TensorBoard()])
    """

    def __init__(self, log_dir: str | Path | None = None) -> None:
        with python_wording():
            require_tensorboard_installed()
        self.log_dir = None if log_dir is None else Path(log_dir)

    def observe(self, events: Iterator[RunEvent], files: RunDirectory) -> AbstractContextManager[Iterator[RunEvent]]:
        """Return a context manager with the events of a run, which are logged on the way."""
        return log_to_tensorboard(events, files, lambda text: warn([text]), self.log_dir)
