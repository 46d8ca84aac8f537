"""Accuracy as a function of communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, method_title
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure_with_axes
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, band_over_seeds, in_rounds_of_all, nan_mean
from fedmosaic_cli.report.plots.line_labels import (
    LineLabel,
    add_legend_below,
    draw_line_labels,
    has_long_name,
    legend_height_inches,
)
from fedmosaic_cli.report.plots.plot_style import (
    PAGE_WIDTH_INCHES,
    add_grid_lines,
    is_federated,
    is_highlighted_method,
    method_line_styles,
    set_percent_axis,
)
from fedmosaic_cli.report.plots.round_curves import figure_height_inches, padded_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.plots.figure_data import FigureData, RunCurves

    Vector = NDArray[np.float64]

NO_COMMUNICATION_NOTES = {CENTRALIZED_KEY: "moves raw data", LOCAL_KEY: "sends nothing"}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def communication_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Accuracy against the bytes exchanged so far, one line per method that communicates."""
    curves = figure_data.curves_by_method
    paths = {key: path for key, runs in curves.items() if (path := bytes_and_accuracy(runs)) is not None}
    if not paths:
        if any(map(is_federated, curves)):
            raise FigureUnavailableError("nothing was sent in any round")
        raise FigureUnavailableError("no run of a method that communicates has a readable log")
    references = [key for key in NO_COMMUNICATION_NOTES if key in curves]
    styles = method_line_styles([*references, *paths])
    names = {
        key: f"{method_title(key)} ({NO_COMMUNICATION_NOTES[key]})" if key in references else method_title(key)
        for key in styles
    }
    has_legend = has_long_name(map(method_title, styles))
    height = figure_height_inches(len(names), min_inches=3.6) + has_legend * legend_height_inches(names.values())
    figure, axes = new_figure_with_axes(PAGE_WIDTH_INCHES, height)
    ends = {}
    for key, (num_bytes, accuracy) in paths.items():
        style = styles[key].plot_kwargs()
        axes.plot(num_bytes, accuracy, **{**style, "marker": None})
        axes.plot(num_bytes[-1:], accuracy[-1:], **{**style, "markersize": 4 + styles[key].width})
        ends[key] = float(num_bytes[-1]), float(accuracy[-1])
    set_bytes_axis(axes)
    for key in references:
        level = float(band_over_seeds([run.accuracy for run in curves[key]]).mean[-1])
        axes.axhline(level, **{**styles[key].plot_kwargs(), "marker": None})
        ends[key] = axes.get_xlim()[1], level
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.07 * (high - low))  # space for a label above the highest line
    if has_legend:
        add_legend_below(figure, {names[key]: style for key, style in styles.items()})
    note = "Means over seeds per round; markers: last round. Horizontal lines: accuracy in the last round."
    add_title_and_note(figure, f"{group.label}: accuracy and communication", note)
    labels = [
        LineLabel(x, y, names[key], styles[key].color, is_highlighted_method(key), f"{100 * y:.1f}")
        for key, (x, y) in ends.items()
    ]
    draw_line_labels({axes: labels}, has_legend)
    return figure


def bytes_and_accuracy(run_curves: list[RunCurves]) -> tuple[Vector, Vector] | None:
    """Bytes exchanged by all clients so far and their accuracy, as means over seeds.

    Rounds before the first message are left out. None if nothing is ever sent.
    """
    counted = [run.cumulative_bits for run in run_curves if run.cumulative_bits is not None]
    if not counted:
        return None
    num_bytes = nan_mean(np.stack(counted), axis=0) / 8
    accuracy = band_over_seeds(in_rounds_of_all([run.accuracy for run in run_curves])).mean
    shown = (num_bytes > 0) & np.isfinite(accuracy)
    return (num_bytes[shown], accuracy[shown]) if num_bytes[-1] > 0 else None


def set_bytes_axis(axes: Axes) -> None:
    """Show bytes on a log scale that contains at least two powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.set_xlabel("sent and received by all clients so far (log scale)")
    low, high = axes.get_xlim()
    if np.floor(np.log10(high)) <= np.ceil(np.log10(low)):
        axes.set_xlim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    add_grid_lines(axes)


def format_bytes(num_bytes: float) -> str:
    """A number of bytes with three digits and a unit."""
    unit = 0
    while num_bytes >= 999.5 and unit < len(BYTE_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    return f"{num_bytes:.3g} {BYTE_UNITS[unit]}"
