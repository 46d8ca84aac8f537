"""Curves over rounds, with bands over seeds: accuracy, and quality of the consensus."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import method_title, shares_labels
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.figure_data import (
    FigureUnavailableError,
    SeedBand,
    band_over_seeds,
    in_rounds_of_all,
    seed_band_note,
)
from fedmosaic_cli.report.plots.line_labels import (
    LINE_HEIGHT_POINTS,
    LineLabel,
    add_legend_below,
    draw_line_labels,
    has_long_name,
    legend_height_inches,
)
from fedmosaic_cli.report.plots.plot_style import (
    MAX_HIGHLIGHTED,
    PAGE_WIDTH_INCHES,
    add_grid_lines,
    is_highlighted_method,
    method_line_styles,
    set_percent_axis,
    set_round_axis,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import FigureData
    from fedmosaic_cli.report.plots.plot_style import LineStyle

    Vector = NDArray[np.float64]

MIN_Y_SPAN = 0.04
ORACLE_NOTE = "oracle: uses labels that are hidden from the federation"


def accuracy_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Mean accuracy of all clients over rounds per method; long runs have a second panel for the final rounds."""
    bands = {
        key: band_over_seeds(in_rounds_of_all([run.accuracy for run in runs]))
        for key, runs in figure_data.curves_by_method.items()
    }
    if not bands:
        raise FigureUnavailableError("no run has a readable log")
    num_rounds = len(next(iter(bands.values())).mean)
    names = line_styles_by_title(bands)
    has_legend = has_long_name(names)
    height = figure_height_inches(len(bands)) + has_legend * legend_height_inches(names)
    figure = new_figure(PAGE_WIDTH_INCHES, height)
    note = seed_band_note(figure_data.curves_by_method)
    if num_rounds >= 6:
        all_rounds, labelled = figure.subplots(1, 2, width_ratios=(2, 3))
        draw_bands(all_rounds, bands, bands)
        set_round_and_percent_axes(all_rounds, num_rounds, "accuracy (%)")
        all_rounds.set_title("all rounds", loc="left")
        highlighted = [key for key in bands if is_highlighted_method(key)]
        shaded = highlighted if len(highlighted) <= MAX_HIGHLIGHTED else []
        draw_final_rounds(labelled, bands, shaded, num_rounds // 2)
        if "bands" in note:
            methods = list(dict.fromkeys((method, "") for method, _ in shaded))
            note += (
                f" Right panel: bands of {joined_titles(methods)} only." if shaded else " Bands in the left panel only."
            )
        note += out_of_range_note(bands, *labelled.get_ylim())
    else:
        labelled = figure.subplots()
        draw_bands(labelled, bands, bands)
        set_round_and_percent_axes(labelled, num_rounds, "accuracy (%)")
    note += evaluated_rounds_note(bands)
    if has_legend:
        add_legend_below(figure, names)
    add_title_and_note(figure, f"{group.label}: mean test accuracy of the clients", note)
    draw_line_labels({labelled: curve_labels(bands, *labelled.get_ylim())}, has_legend)
    return figure


def evaluated_rounds_note(bands: Mapping[MethodKey, SeedBand]) -> str:
    """The part of the note about methods that were not evaluated in every round; empty without any."""
    fewer = [key for key, band in bands.items() if not np.isfinite(band.mean).all()]
    return f" {joined_titles(fewer)}: not evaluated in every round." if fewer else ""


def consensus_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Agreement of the clients with the consensus, and accuracy of the pseudo-labels, over rounds."""
    curves = {key: runs for key, runs in figure_data.curves_by_method.items() if shares_labels(key)}
    agreement = finite_bands({key: [run.agreement for run in runs] for key, runs in curves.items()})
    correct = finite_bands({key: [run.pseudo_label_accuracy for run in runs] for key, runs in curves.items()})
    panels = [
        ("agreement of clients with the consensus", "agreement (%)", agreement),
        (fill(f"accuracy of pseudo-labels ({ORACLE_NOTE})", 48), "correct pseudo-labels (%)", correct),
    ]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        raise FigureUnavailableError("no run logged a consensus")
    means = [band.mean for _, _, bands in panels for band in bands.values()]
    first_round = min(int(np.isfinite(mean).argmax()) for mean in means) + 1
    names = line_styles_by_title(curves)
    height = figure_height_inches(len(names), min_inches=2.6) + legend_height_inches(names)
    figure = new_figure(PAGE_WIDTH_INCHES, height)
    labels = {}
    for axes, (title, label, bands) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        draw_bands(axes, bands, bands, method_line_styles(list(curves)))
        set_round_and_percent_axes(axes, len(means[0]), label, first_round)
        axes.set_title(title, loc="left")
        labels[axes] = curve_labels(bands, *axes.get_ylim())
    add_legend_below(figure, names)
    without = [key for key in curves if agreement and key not in agreement]
    note = seed_band_note(curves) + (f" {joined_titles(without)} logged no agreement." if without else "")
    add_title_and_note(figure, f"{group.label}: consensus on the public set", note)
    draw_line_labels(labels, values_only=True)
    return figure


def finite_bands(curves_by_method: Mapping[MethodKey, Sequence[Vector]]) -> dict[MethodKey, SeedBand]:
    """The bands over seeds of the methods that have any value."""
    bands = {key: band_over_seeds(curves) for key, curves in curves_by_method.items()}
    return {key: band for key, band in bands.items() if np.isfinite(band.mean).any()}


def line_styles_by_title(keys: Iterable[MethodKey]) -> dict[str, LineStyle]:
    return {method_title(key): style for key, style in method_line_styles(list(keys)).items()}


def joined_titles(keys: Sequence[MethodKey]) -> str:
    """Titles as an enumeration: `A, B and C`."""
    *others, last = map(method_title, keys)
    return f"{', '.join(others)} and {last}" if others else last


def figure_height_inches(num_names: int, min_inches: float = 3.2) -> float:
    """A height that fits `num_names` labels above each other."""
    return max(min_inches, 1.3 + num_names * LINE_HEIGHT_POINTS / 72)


def draw_bands(
    axes: Axes,
    bands: Mapping[MethodKey, SeedBand],
    shaded: Collection[MethodKey],
    styles: Mapping[MethodKey, LineStyle] | None = None,
) -> None:
    """Draw a line for each mean, and a band for each method in `shaded`."""
    styles = styles or method_line_styles(list(bands))
    for key, band in bands.items():
        known = np.isfinite(band.mean)
        known[: known.argmax()] = True  # gaps are rounds that were not evaluated: the line connects the others
        rounds = np.arange(1, len(known) + 1)[known]
        axes.plot(rounds, band.mean[known], **styles[key].plot_kwargs(len(known)))
        if key in shaded:
            alpha = 0.22 if is_highlighted_method(key) else 0.09
            low, high = band.low[known], band.high[known]
            axes.fill_between(rounds, low, high, color=styles[key].color, alpha=alpha, linewidth=0)


def set_round_and_percent_axes(axes: Axes, num_rounds: int, y_label: str, first_round: int = 1) -> None:
    """Set axis limits that contain everything drawn so far."""
    set_round_axis(axes, num_rounds, first_round)
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly), y_label)
    add_grid_lines(axes)


def padded_limits(low: float, high: float) -> tuple[float, float]:
    """Limits with a margin, and a minimum span so that small differences look small."""
    margin = max(0.05 * (high - low), (MIN_Y_SPAN - (high - low)) / 2)
    return low - margin, high + margin


def draw_final_rounds(
    axes: Axes, bands: Mapping[MethodKey, SeedBand], shaded: Collection[MethodKey], num_skipped_rounds: int
) -> None:
    """Draw the rounds after the first `num_skipped_rounds`, in which most methods differ little."""
    draw_bands(axes, bands, shaded)
    set_round_axis(axes, len(next(iter(bands.values())).mean), num_skipped_rounds + 1)
    set_percent_axis(axes, *padded_limits(*final_rounds_limits(bands, shaded, num_skipped_rounds)), "")
    axes.set_title(f"from round {num_skipped_rounds + 1}", loc="left")
    add_grid_lines(axes)


def final_rounds_limits(
    bands: Mapping[MethodKey, SeedBand], shaded: Collection[MethodKey], num_skipped_rounds: int
) -> tuple[float, float]:
    """The lowest and highest value of the final rounds, without outlier methods.

    The core is the narrowest range in which more than two thirds of the methods end. A method is an outlier if its
    distance from the core is larger than the width of the core (or `MIN_Y_SPAN`).
    """
    ends = np.sort([band.mean[-1] for band in bands.values()])
    majority = 2 * len(ends) // 3 + 1
    widths = ends[majority - 1 :] - ends[: len(ends) - majority + 1]
    start = int(widths.argmin())
    tolerance = max(widths[start], MIN_Y_SPAN)
    low, high = ends[start] - tolerance, ends[start + majority - 1] + tolerance
    means = [band.mean for band in bands.values() if low <= band.mean[-1] <= high]
    edges = [edge for key in shaded for edge in (bands[key].low, bands[key].high)]
    values = np.stack([*means, *edges])[:, num_skipped_rounds:]
    return float(np.nanmin(values)), float(np.nanmax(values))


def out_of_range_note(bands: Mapping[MethodKey, SeedBand], low: float, high: float) -> str:
    """The part of the note that names methods outside the limits; empty if there are none."""
    below = [key for key, band in bands.items() if band.mean[-1] < low]
    above = [key for key, band in bands.items() if band.mean[-1] > high]
    return "".join(
        f" {joined_titles(keys)} {'are' if len(keys) > 1 else 'is'} {position} the right panel."
        for keys, position in ((below, "below"), (above, "above"))
        if keys
    )


def curve_labels(bands: Mapping[MethodKey, SeedBand], low: float, high: float) -> list[LineLabel]:
    """Labels with the last value of each line in percent, sorted by value.

    A line that ends outside the limits has its label at the edge, with an arrow.
    """
    styles, labels = method_line_styles(list(bands)), []
    for key, band in bands.items():
        last = int(np.flatnonzero(np.isfinite(band.mean))[-1])
        level = float(band.mean[last])
        value = f"{100 * level:.1f}" + (" ↓" if level < low else " ↑" if level > high else "")
        text, color = f"{value}  {method_title(key)}", styles[key].color
        y = min(max(level, low), high)
        labels.append(LineLabel(last + 1, y, text, color, is_highlighted_method(key), value))
    return sorted(labels, key=lambda label: float(label.value.split()[0]))
