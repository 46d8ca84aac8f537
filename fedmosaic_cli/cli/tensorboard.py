"""The values of each round for TensorBoard, in event files beside the run."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import remove_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.tensorboard import SummaryWriter

    from fedmosaic_cli.runner.run import RunEvent
    from fedmosaic_cli.storage.runs import RunDirectory

TENSORBOARD_INSTALL_HINT = "pip install 'fedmosaic[tensorboard]'"
EVENT_FILES = "events.out.tfevents.*"
FIRST_ROUND = 1
INDEX_KEYS = ("round", "client")
# What is counted is added up over clients; of everything else there is a mean.
SUMMED_METRICS = ("bits_up", "bits_down", "left_out")
# Never by itself: we flush after every round.
NO_AUTO_FLUSH_SECONDS = 10**9


def require_tensorboard_installed() -> None:
    """Refuse to begin where the package is missing; nothing is loaded."""
    if find_spec("tensorboard") is None:
        raise RequestError(f"the package tensorboard is not installed (--tensorboard): {TENSORBOARD_INSTALL_HINT}")


def require_tensorboard_importable() -> None:
    """Refuse to begin where the package is there but cannot be loaded."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except Exception as error:
        raise RequestError(
            f"the package tensorboard cannot be loaded, {type(error).__name__}: {error} (--tensorboard): {TENSORBOARD_INSTALL_HINT}"
        ) from None


@contextmanager
def tensorboard_logging(
    events: Iterator[RunEvent], files: RunDirectory, is_enabled: bool
) -> Iterator[Iterator[RunEvent]]:
    """The events of a run as they come, each round written to event files on its way if that is wanted."""
    if not is_enabled:
        yield events
        return
    board = TensorBoardLogger(files)
    try:
        yield log_events(events, board)
    finally:
        board.close()


def log_events(events: Iterator[RunEvent], logger: TensorBoardLogger) -> Iterator[RunEvent]:
    """The same events, after the board has heard of them. A run that was finished before gets its files as well."""
    from fedmosaic_cli.runner.run import RoundCompleted, RunFinished, RunStarted

    for event in events:
        if isinstance(event, RunStarted) or (isinstance(event, RunFinished) and not logger.has_opened):
            logger.open()
        elif isinstance(event, RoundCompleted):
            logger.log_round(event.log_rows)
        yield event


class TensorBoardLogger:
    """The event files of one run. If they cannot be written, that is said once, and the run goes on without them.

    What the run's log holds when it begins is always written anew: so no round is there twice after --resume, and none
    is missing, whatever the files of before had.
    """

    def __init__(self, files: RunDirectory) -> None:
        self.has_opened = False
        self._files = files
        self._writer: SummaryWriter | None = None
        self._original_excepthook = threading.excepthook

    def open(self) -> None:
        """Begin with the rounds that have been played already."""
        self.has_opened = True
        with self._warn_on_error():
            self._writer = self._new_writer()
            rows = self._files.read_rounds()
            for _, played in groupby(rows, key=lambda row: row["round"]):
                write_round_scalars(self._writer, list(played))
            self._writer.flush()

    def log_round(self, rows: list[dict[str, Any]]) -> None:
        """Write one more round, so that whoever looks sees it."""
        with self._warn_on_error():
            if self._writer:
                write_round_scalars(self._writer, rows)
                self._writer.flush()

    def close(self) -> None:
        """End the last event file."""
        with self._warn_on_error():
            if self._writer:
                self._writer.close()
        threading.excepthook = self._original_excepthook

    def _new_writer(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._files.tensorboard_dir
        outdated = sorted(folder.glob(EVENT_FILES))
        threading.excepthook = self._on_thread_exception
        # Whoever reads the old files is told to forget them. The last one stays: a TensorBoard that is open waits at
        # its end for the next, and would wait for ever if it were gone.
        writer = SummaryWriter(
            str(folder), purge_step=FIRST_ROUND if outdated else None, flush_secs=NO_AUTO_FLUSH_SECONDS
        )
        clock_went_back = max(folder.glob(EVENT_FILES)) in outdated
        for path in outdated if clock_went_back else outdated[:-1]:
            remove_path(path)
        return writer

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        # What goes wrong in the writer's own thread comes to us with the next request.
        if not type(args.thread).__module__.startswith("tensorboard."):
            self._original_excepthook(args)

    @contextmanager
    def _warn_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._writer = None
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            folder = self._files.tensorboard_dir
            print_stderr(f"warning: cannot write for TensorBoard, {reason} ({folder}): the run goes on without")


def write_round_scalars(writer: SummaryWriter, rows: list[dict[str, Any]]) -> None:
    """Hand the values of one round to the writer, all in one record: a record each would be a write to disk each."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in round_scalars(rows)]
    events: Any = writer.file_writer  # declared as None, until there is one
    events.add_summary(Summary(value=values), rows[0]["round"])


def round_scalars(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """The values of a round under their tags: those of each client, then means and sums over clients."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in INDEX_KEYS and isinstance(value, int | float):
                values.setdefault(name, []).append(value)
                yield f"{name}/client-{row['client']:03d}", value
    for name, found in values.items():
        yield (f"sum/{name}", sum(found)) if name in SUMMED_METRICS else (f"mean/{name}", fmean(found))
