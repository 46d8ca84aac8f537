"""Accuracy as a function of communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, method_title
from fedmosaic_cli.report.plots.canvas import add_caption, new_figure_with_axes, note_height_inches
from fedmosaic_cli.report.plots.figure_data import (
    FigureUnavailableError,
    SeedBand,
    band_over_seeds,
    equal_titles,
    group_equal_bands,
    in_rounds_of_all,
    nan_mean,
)
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.plots.line_labels import add_legend_below, legend_height_inches
from fedmosaic_cli.report.plots.plot_style import add_grid_lines, is_federated, method_line_styles, set_percent_axis
from fedmosaic_cli.report.plots.round_curves import accuracy_limits, cut_axis_note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import FigureData, RunCurves
    from fedmosaic_cli.report.plots.figure_options import FigureOptions

    Vector = NDArray[np.float64]

REFERENCE_NOTES = {CENTRALIZED_KEY: "moves raw data", LOCAL_KEY: "sends nothing"}
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
NOTE = "Traffic: bytes sent and received. Markers: last round."


def communication_figure(
    group: ComparisonGroup, figure_data: FigureData, options: FigureOptions = DEFAULT_OPTIONS
) -> Figure:
    """Accuracy against the bytes exchanged so far, one line per method that communicates."""
    curves = figure_data.curves_by_method
    paths = {key: path for key, runs in curves.items() if (path := bytes_and_accuracy(runs)) is not None}
    if not paths:
        if any(map(is_federated, curves)):
            raise FigureUnavailableError("nothing was sent in any round")
        raise FigureUnavailableError("no run of a method that communicates has a readable log")
    references = [key for key in curves if key in REFERENCE_NOTES]
    levels = {key: band_over_seeds([run.accuracy for run in curves[key]]).mean[-1:] for key in references}
    styles = method_line_styles([key for key in curves if key in levels or key in paths])
    lines = group_equal_bands({key: SeedBand(accuracy, num_bytes) for key, (num_bytes, accuracy) in paths.items()})
    names = {key: method_title(key) for key in references}
    names |= {key: equal_titles(keys) for key, keys in lines.items()}
    rounds = max(len(accuracy) for _, accuracy in paths.values())
    drawn = {key: right_aligned(values, rounds) for key, values in levels.items()}
    drawn |= {key: right_aligned(paths[key][1], rounds) for key in lines}
    low, high = accuracy_limits(drawn, has_bands=False)
    seeds = seeds_sentence(map(len, curves.values()))
    note = " ".join(filter(None, (seeds, NOTE, references_note(references), cut_axis_note(drawn, low, high))))
    height = (2.0 if options.is_narrow else 2.8) + legend_height_inches(names.values(), options)
    figure, axes = new_figure_with_axes(options.width_inches, height + note_height_inches(options, note))
    for key in lines:
        num_bytes, accuracy = paths[key]
        style = styles[key].plot_kwargs()
        axes.plot(num_bytes, accuracy, **{**style, "marker": None})
        end = {**style, "marker": styles[key].marker or "o", "markersize": 5, "zorder": 6}
        axes.plot(num_bytes[-1:], accuracy[-1:], **end)
    set_bytes_axis(axes)
    for key, level in levels.items():
        axes.axhline(level[0], **{**styles[key].plot_kwargs(), "marker": None})
    set_percent_axis(axes, low, high)
    add_legend_below(figure, {names[key]: style for key, style in styles.items() if key in names}, options)
    add_caption(figure, options, "accuracy and communication", group.label, note)
    return figure


def seeds_sentence(num_seeds: Iterable[int]) -> str:
    """The sentence on means over seeds."""
    return "One seed." if max(num_seeds) == 1 else "Means over seeds per round."


def references_note(references: Sequence[MethodKey]) -> str:
    """The sentence on the horizontal lines; empty without any."""
    if not references:
        return ""
    reasons = " and ".join(f"{method_title(key)} ({REFERENCE_NOTES[key]})" for key in references)
    return f"Horizontal lines: accuracy of {reasons} in the last round."


def right_aligned(accuracy: Vector, num_rounds: int) -> SeedBand:
    """The accuracy as a band without deviation that ends in the last of `num_rounds` rounds."""
    mean = np.concatenate([np.full(num_rounds - len(accuracy), np.nan), accuracy])
    return SeedBand(mean, np.full_like(mean, np.nan))


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
    axes.set_xlabel("cumulative traffic of all clients (log scale)")
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
