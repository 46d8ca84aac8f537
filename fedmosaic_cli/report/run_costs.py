"""Communication and time of runs, from their summaries and logs of times."""

from __future__ import annotations

import json
from math import isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING

from fedmosaic_cli.storage.runs import TIMINGS_FILE, RunDirectory

if TYPE_CHECKING:
    import pandas as pd

BITS_PER_KILOBYTE = 8000


def kilobytes_per_client_and_round(runs: pd.DataFrame, num_rounds: int) -> float | None:
    """Return what a client sends and receives per round, as the mean over clients, rounds and seeds.

    Returns:
        Kilobytes of 1,000 bytes; None if raw data moves, or if the number of clients is unknown.
    """
    values = []
    for bits, accuracies in zip(runs.bits, runs.per_client, strict=True):
        if not accuracies or bits is None or not isfinite(bits):
            return None
        values.append(bits / BITS_PER_KILOBYTE / len(accuracies) / num_rounds)
    return fmean(values)


def seconds_per_round(runs: pd.DataFrame) -> float | None:
    """Return the median duration of a round, as the mean over seeds; None if no run has a readable log of times.

    The first round includes start-up costs, which hardly change the median.
    """
    durations = [logged_round_seconds(RunDirectory(path)) for path in runs.path]
    medians = [median(seconds) for seconds in durations if seconds]
    return fmean(medians) if medians else None


def logged_round_seconds(files: RunDirectory) -> list[float]:
    """Return the duration of each logged round; empty if the log is missing or damaged."""
    try:
        lines = (files.path / TIMINGS_FILE).read_text(encoding="utf-8").splitlines()
        seconds = [float(json.loads(line)["seconds"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return seconds if all(isfinite(value) and value >= 0 for value in seconds) else []
