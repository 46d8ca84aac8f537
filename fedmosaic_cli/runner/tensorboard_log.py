"""Event files for TensorBoard with the metrics of each round. The package tensorboard is optional."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, install_command
from fedmosaic_cli.runner.events import RoundCompleted, RunFinished, RunStarted
from fedmosaic_cli.storage.files import remove_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

    from fedmosaic_cli.runner.events import RunEvent
    from fedmosaic_cli.storage.runs import RunDirectory

TENSORBOARD_INSTALL_HINT = install_command("tensorboard")
EVENT_FILES = "events.out.tfevents.*"
FIRST_ROUND = 1
INDEX_KEYS = ("round", "client")
# Counts are summed over clients; all other metrics are averaged.
SUMMED_METRICS = ("bits_up", "bits_down", "left_out")
# Disables automatic flushing; the logger flushes after every round.
NO_AUTO_FLUSH_SECONDS = 10**9


def require_tensorboard_installed() -> None:
    """Raise RequestError if tensorboard is not installed, without importing it."""
    if find_spec("tensorboard") is None:
        raise RequestError(f"the package tensorboard is not installed (--tensorboard): {TENSORBOARD_INSTALL_HINT}")


def require_tensorboard_importable() -> None:
    """Raise RequestError if tensorboard is installed but cannot be imported."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except Exception as error:
        raise RequestError(
            f"the package tensorboard cannot be imported, {type(error).__name__}: {error} (--tensorboard): "
            f"{TENSORBOARD_INSTALL_HINT}"
        ) from None


@contextmanager
def log_to_tensorboard(
    events: Iterator[RunEvent], files: RunDirectory, warn: Callable[[str], object], folder: Path | None = None
) -> Iterator[Iterator[RunEvent]]:
    """Pass on the events of a run and write each round to event files.

    Args:
        events: The events of the run.
        files: The run.
        warn: Called once with a text if writing fails.
        folder: Directory of the event files; None is the directory `tensorboard` of the run.
    """
    logger = TensorBoardLogger(files, warn, folder)
    try:
        yield log_events(events, logger)
    finally:
        logger.close()


def log_events(events: Iterator[RunEvent], logger: TensorBoardLogger) -> Iterator[RunEvent]:
    """Yield the events after logging them. A run that was already finished gets its event files, too."""
    for event in events:
        if isinstance(event, RunStarted) or (isinstance(event, RunFinished) and not logger.has_opened):
            logger.open()
        elif isinstance(event, RoundCompleted):
            logger.log_round(event.log_rows)
        yield event


class TensorBoardLogger:
    """Writes the event files of one run. If writing fails, it warns once and the run continues without them.

    `open` rewrites all logged rounds, so after --resume no round is missing or duplicated.
    """

    def __init__(self, files: RunDirectory, warn: Callable[[str], object], folder: Path | None = None) -> None:
        self.has_opened = False
        self._files = files
        self._warn = warn
        self._folder = folder or files.tensorboard_dir
        self._is_folder_of_run = folder is None
        self._writer: SummaryWriter | None = None
        self._original_excepthook = threading.excepthook

    def open(self) -> None:
        """Start a new event file with the rounds that are already logged."""
        self.has_opened = True
        with self._warn_on_error():
            self._writer = self._new_writer()
            rows = self._files.read_rounds()
            for _, round_rows in groupby(rows, key=lambda row: row["round"]):
                write_round_scalars(self._writer, list(round_rows))
            self._writer.flush()

    def log_round(self, rows: list[dict[str, Any]]) -> None:
        with self._warn_on_error():
            if self._writer:
                write_round_scalars(self._writer, rows)
                self._writer.flush()

    def close(self) -> None:
        with self._warn_on_error():
            if self._writer:
                self._writer.close()
        threading.excepthook = self._original_excepthook

    def _new_writer(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        outdated = sorted(self._folder.glob(EVENT_FILES))
        threading.excepthook = self._on_thread_exception
        # `purge_step` makes readers discard the old files. The last old file stays: an open TensorBoard waits at its
        # end for the next file, and would wait forever without it.
        writer = SummaryWriter(
            str(self._folder), purge_step=FIRST_ROUND if outdated else None, flush_secs=NO_AUTO_FLUSH_SECONDS
        )
        if self._is_folder_of_run:  # a directory that the user names may contain files of others
            is_clock_behind = max(self._folder.glob(EVENT_FILES)) in outdated
            for path in outdated if is_clock_behind else outdated[:-1]:
                remove_path(path)
        return writer

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        # The writer raises errors of its thread again on the next call.
        if not type(args.thread).__module__.startswith("tensorboard."):
            self._original_excepthook(args)

    @contextmanager
    def _warn_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._writer = None
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._warn(f"cannot write for TensorBoard, {reason} ({self._folder}): the run continues without")


def write_round_scalars(writer: SummaryWriter, rows: list[dict[str, Any]]) -> None:
    """Write the values of one round as a single record, which is a single write to disk."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in round_scalars(rows)]
    events: Any = writer.file_writer  # its declared type is None
    events.add_summary(Summary(value=values), rows[0]["round"])


def round_scalars(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the tag and value of each metric: per client, then the mean or sum over clients."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in INDEX_KEYS and isinstance(value, int | float):
                values.setdefault(name, []).append(value)
                yield f"{name}/client-{row['client']:03d}", value
    for name, per_client in values.items():
        yield (f"sum/{name}", sum(per_client)) if name in SUMMED_METRICS else (f"mean/{name}", fmean(per_client))
