"""Forecast what collaboration brings to each client of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.api.results import Result, existing_directory
from fedmosaic_cli.runner.forecast import forecast_run

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.runner.forecast import RunForecast


def forecast(run: Result | str | Path, check: bool = False) -> RunForecast:
    """Forecast what the method `student` brings to each client, from the exchange of labels of a run.

    The forecast follows from the votes, the class counts of the clients and the accuracy of each client's own model on
    held-out training examples; a failed hold-out test of the votes sets it to 0.

    Args:
        run: A finished run of `student`, or its directory.
        check: Also read the gains over the Local run next to it.

    Returns:
        The forecast. `mean` is the expected mean gain with an interval, `clients` has one entry per client,
        `to_frame()` returns them as a DataFrame. Gains are fractions.

    Raises:
        FedMosaicError: The run is not finished, has no votes, or there is no Local run to check with.

    Example:
        >>> forecast = fedmosaic.forecast("runs/quickstart/student/seed-0")
        >>> forecast.to_frame()[["client", "expected_gain", "low", "high", "advice"]]
    """
    return forecast_run(run.path if isinstance(run, Result) else existing_directory(run), check)
