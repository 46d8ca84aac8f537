"""What of the logs goes into the page: as many runs as there is room for, first seeds first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.round_logs import load_round_curves
from fedmosaic_cli.storage.runs import ROUNDS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.round_logs import Matrix

    LogProgressCallback = Callable[[int, int], None]

METRIC_TITLES = {
    "accuracy": "Accuracy",
    "lambda": "Trust (lambda)",
    "loss_private": "Private loss",
    "loss_public": "Public loss",
    "test_loss": "Test loss",
    "agreement": "Agreement with the consensus",
    "pseudo_label_accuracy": "Pseudo-label accuracy (oracle view)",
    "majority_accuracy": "Accuracy of the plain majority (oracle view)",
    "public_share": "Share of the public set in the training loss",
    "vote_agreement": "Agreement of its vote with the outcome",
    "weight_share": "Share of the weight of all votes",
    "reputation": "Reputation",
}
MAX_CURVE_BYTES = 20_000_000
"""Of JSON, for the curves of all runs."""
MAX_TOTAL_LOG_BYTES = 300_000_000
"""So much of logs is read: some ten seconds."""
MAX_KEPT_ROUNDS, MIN_KEPT_ROUNDS, MAX_POINTS_PER_METRIC = 100, 20, 60_000
"""Rounds kept of a run, and points kept of all its clients for one value, where there are very many clients."""
CURVE_BUDGET_EXCEEDED = "there was no room for its curves"


@dataclass(frozen=True)
class EmbeddedCurves:
    """The curves of runs as JSON, by path, and why others are left out."""

    json_by_path: dict[Path, str]
    omitted: dict[Path, str]
    num_subsampled: int
    """How many runs have more rounds than are kept."""


def embed_curves(
    groups: Sequence[ComparisonGroup], on_progress: LogProgressCallback | None = None, max_bytes: int = MAX_CURVE_BYTES
) -> EmbeddedCurves:
    """The curves of as many runs as fit. A log that cannot be read costs only the curves of its run."""
    paths = run_paths_by_seed_order(groups)
    readable, left_out = select_logs_by_size(paths, MAX_TOTAL_LOG_BYTES)
    curves: dict[Path, str] = {}
    room, thinned = max_bytes, 0
    for number, path in enumerate(readable):
        if on_progress:
            on_progress(number, len(readable))
        if room <= 0:
            left_out[path] = CURVE_BUDGET_EXCEEDED
            continue
        try:
            values = load_round_curves(path)
        except (RequestError, OSError) as error:
            left_out[path] = str(error)
            continue
        text, is_thinned = curves_to_json(values)
        room -= len(text)
        if room < 0:
            left_out[path] = CURVE_BUDGET_EXCEEDED
        else:
            curves[path] = text
            thinned += is_thinned
    if on_progress:
        on_progress(len(readable), len(readable))
    return EmbeddedCurves(curves, left_out, thinned)


def run_paths_by_seed_order(groups: Iterable[ComparisonGroup]) -> list[Path]:
    """The runs of all methods: those of the first seed of each, then those of the second, and so on."""
    ranked = [
        (rank, path)
        for setting in groups
        for runs in setting.runs_by_method.values()
        for rank, path in enumerate(runs.sort_values("seed").path)
    ]
    return [path for _, path in sorted(ranked, key=lambda entry: entry[0])]


def select_logs_by_size(paths: Sequence[Path], max_bytes: int) -> tuple[list[Path], dict[Path, str]]:
    """The logs that are worth opening, by their sizes, and why others are not."""
    readable, left_out = [], {}
    for path in paths:
        try:
            max_bytes -= (path / ROUNDS_FILE).stat().st_size
        except OSError as error:
            left_out[path] = f"the log cannot be read, {error.strerror} ({path / ROUNDS_FILE})"
            continue
        if max_bytes >= 0:
            readable.append(path)
        else:
            left_out[path] = CURVE_BUDGET_EXCEEDED
    return readable, left_out


def curves_to_json(curves: dict[str, Matrix]) -> tuple[str, bool]:
    """The values that can be shown as JSON, a list a client; one list for all where all clients have the same. And
    whether rounds were left out."""
    rounds, clients = next(iter(curves.values())).shape
    kept = subsampled_rounds(rounds, clients)
    parts = []
    for name in METRIC_TITLES:
        matrix = curves.get(name)
        if matrix is None or not np.isfinite(matrix).any():
            continue
        if np.array_equal(matrix, matrix[:, :1].repeat(clients, axis=1), equal_nan=True):
            matrix = matrix[:, :1]
        parts.append(f'"{name}":[{",".join(map(floats_to_json, matrix[kept].T))}]')
    shown = ",".join(map(str, kept + 1))
    return f'{{"rounds":[{shown}],"clients":{clients},"values":{{{",".join(parts)}}}}}', len(kept) < rounds


def subsampled_rounds(num_rounds: int, num_clients: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The first, the last, and evenly many between them."""
    points = min(MAX_KEPT_ROUNDS, max(MIN_KEPT_ROUNDS, MAX_POINTS_PER_METRIC // num_clients))
    if num_rounds <= points:
        return np.arange(num_rounds)
    return np.unique(np.linspace(0, num_rounds - 1, points).round().astype(np.int64))


def floats_to_json(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    """A JSON list of four significant digits each; what is no number is null. One format for all: this is where the
    time goes."""
    text = ",".join(["%.4g"] * len(values)) % tuple(values.tolist())
    if not np.isfinite(values).all():
        text = ",".join(part if part[-1].isdigit() else "null" for part in text.split(","))
    return f"[{text}]"
