"""The table of a forecast on the terminal."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.console import print_text, stdout_console
from fedmosaic_cli.cli.views.evaluation_view import MISSING_CELL, numeric_table
from fedmosaic_cli.runner.forecast import FORECAST_GATE, load_forecast_model

if TYPE_CHECKING:
    from fedmosaic_cli.runner.forecast import ClientForecast, RunForecast

NUM_NAMED_CLASSES = 3


def show_forecast(forecast: RunForecast, has_title: bool) -> None:
    """Print one line per client and a summary of the run."""
    if has_title:
        print_text(f"\n{forecast.path}")
    interval = f"{100 * load_forecast_model().interval:.0f} % interval"
    headings = ["examples", "coverage %", "agreement", "reliability %", "own model %", "expected gain", interval]
    table = numeric_table("client", *headings, *(["test gain"] if forecast.is_checked else []))
    table.add_column("weakest class")
    table.add_column("advice")
    for client in forecast.clients:
        table.add_row(*client_cells(client, forecast.is_checked))
    stdout_console().print(table)
    for line in summary_lines(forecast):
        print_text(line)


def client_cells(client: ClientForecast, is_checked: bool) -> list[str]:
    return [
        str(client.client),
        str(client.examples),
        f"{100 * client.coverage:.0f}",
        f"{client.agreement:.2f}",
        f"{100 * client.reliability:.0f}",
        MISSING_CELL if client.own_accuracy is None else f"{100 * client.own_accuracy:.0f}",
        points(client.expected_gain),
        f"{points(client.low)} to {points(client.high)}",
        *([points(client.gain or 0.0)] if is_checked else []),
        client.weakest_class,
        f"{client.advice}: {client.reason}" if client.reason else client.advice,
    ]


def summary_lines(forecast: RunForecast) -> list[str]:
    """Return the summary of a forecast in sentences."""
    clients, mean = forecast.clients, forecast.mean
    advised = sum(client.advice == "collaborate" for client in clients)
    lines = [
        f"expected mean gain {points(mean.mean)} points ({points(mean.low)} to {points(mean.high)}); "
        f"{advised} of {len(clients)} clients should collaborate"
    ]
    ranked = sorted((value, name) for name, value in forecast.class_reliability.items() if value is not None)
    if ranked:
        weakest = ", ".join(f"{name} {100 * value:.0f} %" for value, name in ranked[:NUM_NAMED_CLASSES])
        lines.append(
            f"votes are least reliable for {weakest}; most for {ranked[-1][1]} {100 * ranked[-1][0]:.0f} % "
            f"({forecast.public_size} public examples)"
        )
    if forecast.is_checked:
        gains = [client.gain or 0.0 for client in clients]
        error = fmean(abs(gain - client.expected_gain) for gain, client in zip(gains, clients, strict=True))
        inside = sum(client.low <= gain <= client.high for gain, client in zip(gains, clients, strict=True))
        lines.append(
            f"on test data: mean gain {points(fmean(gains))} points; mean error of the forecasts {100 * error:.1f} "
            f"points; {inside} of {len(clients)} gains in their interval"
        )
    if forecast.gate != FORECAST_GATE:
        lines.append(f"note: the run uses the gate '{forecast.gate}', the forecast is for '{FORECAST_GATE}'")
    if forecast.disabled_guards:
        guards = " and ".join(f"{name}=false" for name in forecast.disabled_guards)
        lines.append(f"note: the run has {guards}, the forecast is for the default guards")
    if forecast.without_votes:
        lines.append(f"note: no forecast for {len(forecast.without_votes)} clients that have not voted")
    return lines


def show_forecast_quality() -> None:
    """Print how well the model predicts held-out settings."""
    content = load_forecast_model()
    quality = content.quality["setting"]
    errors = f"{100 * quality.mean_error:.1f} points per client and {100 * quality.mean_mean_error:.1f} per run"
    print_text(
        f"gains are points of accuracy over Local; on {quality.settings} held-out settings of {content.study}, the "
        f"mean error is {errors}, the rank correlation {quality.rank_correlation:.2f} and "
        f"{quality.mean_rank_correlation:.2f}"
    )


def points(fraction: float) -> str:
    """Return a gain in percentage points, without a minus sign for 0."""
    return f"{100 * fraction + 0.0:+.1f}".replace("-0.0", "+0.0")
