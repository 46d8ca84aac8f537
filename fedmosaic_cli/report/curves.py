"""What happened round by round, read from the logs of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.records.runs import ROUNDS, RunFiles

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]


def curves_of(path: Path) -> dict[str, Matrix]:
    """The values of a run's log, each as [rounds, clients]; NaN where a method has none.

    Keys are those of rounds.jsonl: lambda, loss_private, loss_public, accuracy, test_loss, bits_up, bits_down, and a
    method's own. Refused is a log that was changed since, or in which not every client has a line in every round.
    """
    files = RunFiles(path)
    files.check(ROUNDS)
    rows = files.rounds()
    try:
        rounds, clients = max(row["round"] for row in rows), 1 + max(row["client"] for row in rows)
        if len(rows) != rounds * clients:
            raise ValueError("lines are missing")
        names = sorted({name for row in rows for name in row} - {"round", "client"})
        values = {name: np.full((rounds, clients), np.nan) for name in names}
        for row in rows:
            for name, value in row.items():
                if name in values and value is not None:
                    values[name][row["round"] - 1, row["client"]] = value
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        raise RequestError(f"the log is damaged ({path / ROUNDS}): mend the run with --resume") from None
    return values
