"""Accuracy against what was sent for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, method_title
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure_with_axes
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, band_over_seeds, nan_mean
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

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import FigureData, RunCurves

    Vector = NDArray[np.float64]

NO_COMMUNICATION_NOTES = {LOCAL_KEY: "sends nothing", CENTRALIZED_KEY: "moves raw data"}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def communication_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """A curve for each method that sends anything: bytes so far, and the accuracy they have led to."""
    paths = {
        key: path
        for key, runs in figure_data.curves_by_method.items()
        if (path := bytes_and_accuracy(runs)) is not None
    }
    if not paths:
        read = any(map(is_federated, figure_data.curves_by_method))
        raise FigureUnavailableError(
            "nothing was sent in any round" if read else "no run that sends has a log that can be read"
        )
    levels = {
        key: figure_data.curves_by_method[key]
        for key in (CENTRALIZED_KEY, LOCAL_KEY)
        if key in figure_data.curves_by_method
    }
    looks = method_line_styles([*levels, *paths])
    names = {
        key: f"{method_title(key)} ({NO_COMMUNICATION_NOTES[key]})" if key in levels else method_title(key)
        for key in looks
    }
    below = has_long_name(map(method_title, looks))
    figure, axes = new_figure_with_axes(
        PAGE_WIDTH_INCHES,
        figure_height_inches(len(names), min_inches=3.6) + below * legend_height_inches(names.values()),
    )
    ends = []
    for key, (sent, accuracy) in paths.items():
        axes.plot(sent, accuracy, **{**looks[key].plot_kwargs(), "marker": None})
        axes.plot(sent[-1:], accuracy[-1:], **{**looks[key].plot_kwargs(), "markersize": 4 + looks[key].width})
        ends.append(accuracy_label(key, float(sent[-1]), float(accuracy[-1]), names[key], looks[key].color))
    set_bytes_axis(axes)
    for key, runs in levels.items():
        level = float(band_over_seeds([run.accuracy for run in runs]).mean[-1])
        axes.axhline(level, **{**looks[key].plot_kwargs(), "marker": None})
        ends.append(accuracy_label(key, axes.get_xlim()[1], level, names[key], looks[key].color))
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.07 * (high - low))  # room for a name above the highest
    if below:
        add_legend_below(figure, {names[key]: look for key, look in looks.items()})
    note = "Means over seeds, round by round; a marker is the last round. Horizontal lines: accuracy in the last round."
    add_title_and_note(figure, f"{group.label}: accuracy and communication", note)
    draw_line_labels({axes: ends}, below)
    return figure


def accuracy_label(key: MethodKey, sent_bytes: float, accuracy: float, name: str, color: str) -> LineLabel:
    return LineLabel(sent_bytes, accuracy, name, color, is_highlighted_method(key), f"{100 * accuracy:.1f}")


def bytes_and_accuracy(run_curves: list[RunCurves]) -> tuple[Vector, Vector] | None:
    """Bytes that all clients together have sent and received after each round, and their accuracy, as means over
    seeds, from the first round in which anything was sent; None where nothing ever is."""
    counted = [run.cumulative_bits for run in run_curves if run.cumulative_bits is not None]
    if not counted:
        return None
    sent = nan_mean(np.stack(counted), axis=0) / 8
    accuracy = band_over_seeds([run.accuracy for run in run_curves]).mean
    return (sent[sent > 0], accuracy[sent > 0]) if sent[-1] > 0 else None


def set_bytes_axis(axes: Axes) -> None:
    """Bytes by powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.set_xlabel("sent and received by all clients so far (log scale)")
    low, high = axes.get_xlim()
    if np.floor(np.log10(high)) <= np.ceil(np.log10(low)):  # so that two powers of ten are in sight
        axes.set_xlim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    add_grid_lines(axes)


def format_bytes(num_bytes: float) -> str:
    """A number of bytes in the unit that leaves few digits."""
    unit = 0
    while num_bytes >= 999.5 and unit < len(BYTE_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    return f"{num_bytes:.3g} {BYTE_UNITS[unit]}"
