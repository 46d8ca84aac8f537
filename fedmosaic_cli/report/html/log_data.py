"""What of the logs goes into the page: as many runs as there is room for, first seeds first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.round_logs import curves_of
from fedmosaic_cli.storage.runs import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.round_logs import Matrix

    Tell = Callable[[int, int], None]

VALUES = {
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
MOST_BYTES = 20_000_000
"""Of JSON, for the curves of all runs."""
MOST_LOG_BYTES = 300_000_000
"""So much of logs is read: some ten seconds."""
MOST_POINTS, FEWEST_POINTS, POINTS_OF_ALL = 100, 20, 60_000
"""Rounds kept of a run, and points kept of all its clients for one value, where there are very many clients."""
NO_ROOM = "there was no room for its curves"


@dataclass(frozen=True)
class Embedded:
    """The curves of runs as JSON, by path, and why others are left out."""

    curves: dict[Path, str]
    left_out: dict[Path, str]
    thinned: int
    """How many runs have more rounds than are kept."""


def embed(settings: Sequence[Setting], tell: Tell | None = None, most_bytes: int = MOST_BYTES) -> Embedded:
    """The curves of as many runs as fit. A log that cannot be read costs only the curves of its run."""
    paths = in_order(settings)
    readable, left_out = within(paths, MOST_LOG_BYTES)
    curves: dict[Path, str] = {}
    room, thinned = most_bytes, 0
    for number, path in enumerate(readable):
        if tell:
            tell(number, len(readable))
        if room <= 0:
            left_out[path] = NO_ROOM
            continue
        try:
            values = curves_of(path)
        except (RequestError, OSError) as error:
            left_out[path] = str(error)
            continue
        text, is_thinned = to_text(values)
        room -= len(text)
        if room < 0:
            left_out[path] = NO_ROOM
        else:
            curves[path] = text
            thinned += is_thinned
    if tell:
        tell(len(readable), len(readable))
    return Embedded(curves, left_out, thinned)


def in_order(settings: Iterable[Setting]) -> list[Path]:
    """The runs of all methods: those of the first seed of each, then those of the second, and so on."""
    ranked = [
        (rank, path)
        for setting in settings
        for runs in setting.methods.values()
        for rank, path in enumerate(runs.sort_values("seed").path)
    ]
    return [path for _, path in sorted(ranked, key=lambda entry: entry[0])]


def within(paths: Sequence[Path], most: int) -> tuple[list[Path], dict[Path, str]]:
    """The logs that are worth opening, by their sizes, and why others are not."""
    readable, left_out = [], {}
    for path in paths:
        try:
            most -= (path / ROUNDS).stat().st_size
        except OSError as error:
            left_out[path] = f"the log cannot be read, {error.strerror} ({path / ROUNDS})"
            continue
        if most >= 0:
            readable.append(path)
        else:
            left_out[path] = NO_ROOM
    return readable, left_out


def to_text(values: dict[str, Matrix]) -> tuple[str, bool]:
    """The values that can be shown as JSON, a list a client; one list for all where all clients have the same. And
    whether rounds were left out."""
    rounds, clients = next(iter(values.values())).shape
    kept = kept_rounds(rounds, clients)
    parts = []
    for name in VALUES:
        matrix = values.get(name)
        if matrix is None or not np.isfinite(matrix).any():
            continue
        if np.array_equal(matrix, matrix[:, :1].repeat(clients, axis=1), equal_nan=True):
            matrix = matrix[:, :1]
        parts.append(f'"{name}":[{",".join(map(numbers, matrix[kept].T))}]')
    shown = ",".join(map(str, kept + 1))
    return f'{{"rounds":[{shown}],"clients":{clients},"values":{{{",".join(parts)}}}}}', len(kept) < rounds


def kept_rounds(rounds: int, clients: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The first, the last, and evenly many between them."""
    points = min(MOST_POINTS, max(FEWEST_POINTS, POINTS_OF_ALL // clients))
    if rounds <= points:
        return np.arange(rounds)
    return np.unique(np.linspace(0, rounds - 1, points).round().astype(np.int64))


def numbers(line: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    """A JSON list of four significant digits each; what is no number is null. One format for all: this is where the
    time goes."""
    text = ",".join(["%.4g"] * len(line)) % tuple(line.tolist())
    if not np.isfinite(line).all():
        text = ",".join(part if part[-1].isdigit() else "null" for part in text.split(","))
    return f"[{text}]"
