"""What happened round by round, read from the logs of runs."""

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
"""What a log tells that is no number: what became of messages."""


def load_round_curves(path: Path) -> dict[str, Matrix]:
    """The values of a run's log, each as [rounds, clients]; NaN where a method has none.

    Keys are those of rounds.jsonl: lambda, loss_private, loss_public, accuracy, test_loss, bits_up, bits_down, and a
    method's own that are numbers. Refused is a log that was changed since, or in which not every client has a line in
    every round.
    """
    files = RunDirectory(path)
    files.verify_files(ROUNDS_FILE)
    rows = files.read_rounds()
    try:
        numbers = np.array([row["round"] for row in rows]) - 1
        clients = np.array([row["client"] for row in rows])
        shape = int(numbers.max()) + 1, int(clients.max()) + 1
        places = np.ravel_multi_index((numbers, clients), shape)
        if len(rows) != prod(shape) or len(np.unique(places)) < len(places):
            raise ValueError("lines are missing, or there twice")
        names = sorted(set().union(*rows) - {"round", "client"} - TEXT_KEYS)
        values = {}
        for name in names:
            values[name] = np.empty(shape)
            # As numbers, None is NaN.
            values[name].flat[places] = np.array([row.get(name) for row in rows], dtype=np.float64)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        raise RequestError(f"the log is damaged ({path / ROUNDS_FILE}): mend the run with --resume") from None
    return values
