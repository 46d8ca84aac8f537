"""`fedmosaic forecast`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption
from fedmosaic_cli.cli.console import print_json
from fedmosaic_cli.cli.views.forecast_view import show_forecast, show_forecast_quality
from fedmosaic_cli.runner.forecast import forecast_run


def forecast(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of finished runs of student.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the gains over the Local run next to each run.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast what collaboration brings to each client, from the exchange of labels of a run.

    Explains which clients gain and why; the gate of the run has already decided. The expected gain follows from the
    votes on the public set, the class counts of each client, and the accuracy of its model on held-out training
    examples; a failed test of the votes sets it to 0. The forecast is for the method student with its default gate,
    safe. docs/trust.md describes the model, and how well it predicts.

    \b
    [bold]Examples[/bold]
    fedmosaic forecast runs/quickstart/student/seed-0
    fedmosaic forecast runs/quickstart/student/seed-0 --check
    fedmosaic forecast runs/*/student/seed-0 --json
    """
    forecasts = [forecast_run(run, check) for run in runs]
    if as_json:
        print_json([each.to_dict() for each in forecasts])
        return
    for each in forecasts:
        show_forecast(each, has_title=len(forecasts) > 1)
    show_forecast_quality()
