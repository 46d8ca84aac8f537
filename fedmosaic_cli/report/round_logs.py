"""Read the round logs of runs as matrices."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.runs import ROUNDS_FILE, RunDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

TEXT_KEYS = {"message", "rejected"}
"""Log keys whose values are not numbers."""


def load_round_curves(path: Path) -> dict[str, Matrix]:
    """Read the numbers of a run's log as matrices of shape [rounds, clients], NaN for missing values.

    Raises:
        RequestError: The log was changed, or does not contain each client exactly once per round.
    """
    files = RunDirectory(path)
    files.verify_files(ROUNDS_FILE)
    rows = files.read_rounds()
    try:
        rounds = np.array([row["round"] for row in rows]) - 1
        clients = np.array([row["client"] for row in rows])
        shape = int(rounds.max()) + 1, int(clients.max()) + 1
        positions = np.ravel_multi_index((rounds, clients), shape)
        if len(rows) != prod(shape) or len(np.unique(positions)) < len(positions):
            raise ValueError("missing or duplicate lines")
        curves = {}
        for name in sorted(set().union(*rows) - {"round", "client"} - TEXT_KEYS):
            curves[name] = np.empty(shape)
            # numpy converts None to NaN.
            curves[name].flat[positions] = np.array([row.get(name) for row in rows], dtype=np.float64)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        raise RequestError(f"the log is damaged ({path / ROUNDS_FILE}): repeat its command to repair the run") from None
    return curves
