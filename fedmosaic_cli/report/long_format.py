"""Results in long format: one CSV line per run, round, client and metric."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import SkippedRun
from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.formats.text_formats import records_to_csv
from fedmosaic_cli.report.round_logs import TEXT_KEYS
from fedmosaic_cli.storage.files import file_sha256, make_directories, write_blocks_atomic
from fedmosaic_cli.storage.runs import ROUNDS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.report.comparison import ComparisonGroup

RUN_FIELDS = ("setting", "method", "variant", "hyperparameters", "seed")
LONG_FIELDS = (*RUN_FIELDS, "client", "round", "metric", "value")
LINES_PER_BLOCK = 1000
"""Lines of a log that are in memory at once."""


def write_long_format(path: Path, groups: Sequence[ComparisonGroup], on_progress: ProgressCallback) -> list[SkippedRun]:
    """Write the logs of all runs to a CSV file, with the columns of `LONG_FIELDS`.

    Logs are streamed. Missing values have no line; true and false are 1 and 0.

    Returns:
        The runs whose log is missing or damaged, which are left out from the damaged line on.
    """
    skipped: list[SkippedRun] = []
    make_directories(path.parent)
    write_blocks_atomic(path.resolve(), long_format_blocks(groups, skipped, on_progress))
    return skipped


def long_format_blocks(
    groups: Sequence[ComparisonGroup], skipped: list[SkippedRun], on_progress: ProgressCallback
) -> Iterator[bytes]:
    """Yield the file in blocks, and add runs with an unusable log to `skipped`."""
    yield records_to_csv(LONG_FIELDS, []).encode()
    total, number = sum(len(group.runs) for group in groups), 0
    for group in groups:
        for key, runs in group.runs_by_method.items():
            for run in runs.to_dict("records"):
                identity = (group.label, method_title(key), *(run[name] for name in RUN_FIELDS[2:]))
                prefix = run_prefix(dict(zip(RUN_FIELDS, identity, strict=True)))
                try:
                    yield from log_blocks(run["path"], prefix)
                except (RequestError, OSError) as error:
                    skipped.append(SkippedRun(run["path"], str(error)))
                number += 1
                on_progress("reading logs", number, total)


def run_prefix(identity: dict[str, object]) -> str:
    """Return the columns that all lines of a run share."""
    _, _, line = records_to_csv(RUN_FIELDS, [identity]).partition("\n")
    return line.removesuffix("\n")


@cache
def csv_cell_text(text: str) -> str:
    return records_to_csv([text], []).removesuffix("\n")


def log_blocks(run_path: Path, prefix: str) -> Iterator[bytes]:
    """Yield the lines of a run in blocks.

    Raises:
        RequestError: The log was changed or is damaged.
    """
    files, path = RunDirectory(run_path), run_path / ROUNDS_FILE
    digests = files.read_digests()
    if digests is not None and file_sha256(path) != digests.get(ROUNDS_FILE):
        raise RequestError(f"the log was changed after the run ({path}): run it again")
    lines: list[str] = []
    with path.open("rb") as log:
        for number, text in enumerate(log, start=1):
            try:
                lines += metric_lines(text, prefix)
            except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
                raise RequestError(f"the log is damaged ({path}, line {number}): run it again") from None
            if number % LINES_PER_BLOCK == 0:
                yield "".join(lines).encode()
                lines.clear()
    yield "".join(lines).encode()


def metric_lines(text: bytes, prefix: str) -> list[str]:
    """Return a line per number of one line of a log."""
    row = json.loads(text)
    client, round_number = int(row.pop("client")), int(row.pop("round"))
    start = f"{prefix},{client},{round_number}"
    return [
        f"{start},{csv_cell_text(name)},{float(value) if isinstance(value, float) else int(value)}\n"
        for name, value in row.items()
        if value is not None and name not in TEXT_KEYS
    ]
