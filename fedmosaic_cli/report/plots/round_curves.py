"""Curves over rounds, a line a method and a band over seeds: accuracy, and how good the consensus was."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import method_title, shares_labels
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, SeedBand, band_over_seeds, seed_band_note
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
ORACLE_NOTE = "oracle view: uses labels that nobody in the federation has"


def accuracy_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Mean accuracy of all clients over rounds, for each method: the whole course, and its end from near by."""
    bands = {key: band_over_seeds([run.accuracy for run in runs]) for key, runs in figure_data.curves_by_method.items()}
    if not bands:
        raise FigureUnavailableError("no run has a log that can be read")
    rounds = len(next(iter(bands.values())).mean)
    names = line_styles_by_title(bands)
    below = has_long_name(names)
    figure = new_figure(PAGE_WIDTH_INCHES, figure_height_inches(len(bands)) + below * legend_height_inches(names))
    near = rounds // 2 if rounds >= 6 else 0
    note = seed_band_note(figure_data.curves_by_method)
    if near:
        whole, end = figure.subplots(1, 2, width_ratios=(2, 3))
        draw_bands(whole, bands, bands)
        set_round_and_percent_axes(whole, rounds, "accuracy (%)")
        whole.set_title("all rounds", loc="left")
        shaded = keys_with_zoomed_bands(bands)
        draw_final_rounds(end, bands, shaded, near)
        if "bands" in note:
            bands_of = joined_titles(list(dict.fromkeys((method, "") for method, _ in shaded))) if shaded else ""
            note += f" On the right, bands of {bands_of} only." if shaded else " Bands on the left only."
        note += out_of_range_note(bands, *end.get_ylim())
    else:
        end = figure.subplots()
        draw_bands(end, bands, bands)
        set_round_and_percent_axes(end, rounds, "accuracy (%)")
    if below:
        add_legend_below(figure, names)
    add_title_and_note(figure, f"{group.label}: mean test accuracy of the clients", note)
    draw_line_labels({end: curve_labels(bands, *end.get_ylim())}, below)
    return figure


def consensus_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """How far clients agree with the consensus, and how often it is right, over rounds."""
    courses = {key: runs for key, runs in figure_data.curves_by_method.items() if shares_labels(key)}
    agreement = finite_bands({key: [run.agreement for run in runs] for key, runs in courses.items()})
    right = finite_bands({key: [run.pseudo_label_accuracy for run in runs] for key, runs in courses.items()})
    panels = [
        ("agreement of clients with the consensus", "agreement (%)", agreement),
        (fill(f"accuracy of pseudo-labels ({ORACLE_NOTE})", 48), "right pseudo-labels (%)", right),
    ]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        raise FigureUnavailableError("no run logged a consensus")
    every = [band.mean for _, _, bands in panels for band in bands.values()]
    first = min(int(np.isfinite(mean).argmax()) for mean in every) + 1
    names = line_styles_by_title(courses)
    figure = new_figure(
        PAGE_WIDTH_INCHES, figure_height_inches(len(names), min_inches=2.6) + legend_height_inches(names)
    )
    ends = {}
    for axes, (title, label, bands) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        draw_bands(axes, bands, bands, method_line_styles(list(courses)))
        set_round_and_percent_axes(axes, len(every[0]), label, first)
        axes.set_title(title, loc="left")
        ends[axes] = curve_labels(bands, *axes.get_ylim())
    add_legend_below(figure, names)
    silent = [key for key in courses if agreement and key not in agreement]
    note = seed_band_note(courses) + (f" {joined_titles(silent)} logged no agreement." if silent else "")
    add_title_and_note(figure, f"{group.label}: the consensus on the public set", note)
    draw_line_labels(ends, values_only=True)
    return figure


def finite_bands(curves_by_method: Mapping[MethodKey, Sequence[Vector]]) -> dict[MethodKey, SeedBand]:
    """The bands over seeds, of those with any value."""
    bands = {key: band_over_seeds(same) for key, same in curves_by_method.items()}
    return {key: band for key, band in bands.items() if np.isfinite(band.mean).any()}


def line_styles_by_title(keys: Iterable[MethodKey]) -> dict[str, LineStyle]:
    """Titles, and how their lines look."""
    return {method_title(key): look for key, look in method_line_styles(list(keys)).items()}


def joined_titles(keys: Sequence[MethodKey]) -> str:
    """Their titles, as a sentence has them."""
    *before, last = map(method_title, keys)
    return f"{', '.join(before)} and {last}" if before else last


def figure_height_inches(num_names: int, min_inches: float = 3.2) -> float:
    """Inches that leave room for so many names one above the other."""
    return max(min_inches, 1.3 + num_names * LINE_HEIGHT_POINTS / 72)


def keys_with_zoomed_bands(bands: Mapping[MethodKey, SeedBand]) -> list[MethodKey]:
    """Those whose bands can be seen from near by: FedMosaic's, if they are few."""
    strong = [key for key in bands if is_highlighted_method(key)]
    return strong if len(strong) <= MAX_HIGHLIGHTED else []


def draw_bands(
    axes: Axes,
    bands: Mapping[MethodKey, SeedBand],
    shaded: Collection[MethodKey],
    styles: Mapping[MethodKey, LineStyle] | None = None,
) -> None:
    """A line for each mean, and around those that are to be `shaded` a band; FedMosaic's can be seen best."""
    styles = styles or method_line_styles(list(bands))
    for key, band in bands.items():
        rounds = np.arange(1, len(band.mean) + 1)
        axes.plot(rounds, band.mean, **styles[key].plot_kwargs(len(rounds)))
        if key in shaded:
            shade = 0.22 if is_highlighted_method(key) else 0.09
            axes.fill_between(rounds, band.low, band.high, color=styles[key].color, alpha=shade, linewidth=0)


def set_round_and_percent_axes(axes: Axes, num_rounds: int, y_label: str, first_round: int = 1) -> None:
    """Axes around all that is drawn."""
    set_round_axis(axes, num_rounds, first_round)
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly), y_label)
    add_grid_lines(axes)


def padded_limits(low: float, high: float) -> tuple[float, float]:
    """Limits around these, which do not make a mountain out of half a percent."""
    margin = max(0.05 * (high - low), (MIN_Y_SPAN - (high - low)) / 2)
    return low - margin, high + margin


def draw_final_rounds(
    axes: Axes, bands: Mapping[MethodKey, SeedBand], shaded: Collection[MethodKey], num_skipped_rounds: int
) -> None:
    """The rounds after `near`, in which most methods differ by little."""
    draw_bands(axes, bands, shaded)
    set_round_axis(axes, len(next(iter(bands.values())).mean), num_skipped_rounds + 1)
    set_percent_axis(axes, *padded_limits(*final_rounds_limits(bands, shaded, num_skipped_rounds)), "")
    axes.set_title(f"from round {num_skipped_rounds + 1} on", loc="left")
    add_grid_lines(axes)


def final_rounds_limits(
    bands: Mapping[MethodKey, SeedBand], shaded: Collection[MethodKey], num_skipped_rounds: int
) -> tuple[float, float]:
    """From the lowest to the highest mean, and edge of a `shaded` band, after `near` rounds, without methods far off.

    Far off is what ends further from the narrowest range in which more than two thirds of all methods end than this
    range (or `LEAST_SPAN`) is wide: a few methods would else squeeze all others into one line.
    """
    ends = np.sort([band.mean[-1] for band in bands.values()])
    most = 2 * len(ends) // 3 + 1
    widths = ends[most - 1 :] - ends[: len(ends) - most + 1]
    start = int(widths.argmin())
    reach = max(widths[start], MIN_Y_SPAN)
    low, high = ends[start] - reach, ends[start + most - 1] + reach
    means = [band.mean for band in bands.values() if low <= band.mean[-1] <= high]
    edges = [edge for key in shaded for edge in (bands[key].low, bands[key].high)]
    values = np.stack([*means, *edges])[:, num_skipped_rounds:]
    return float(values.min()), float(values.max())


def out_of_range_note(bands: Mapping[MethodKey, SeedBand], low: float, high: float) -> str:
    """For the note: who ends outside of these limits, "" if nobody."""
    below = [key for key, band in bands.items() if band.mean[-1] < low]
    above = [key for key, band in bands.items() if band.mean[-1] > high]
    return "".join(
        f" {joined_titles(keys)} {'lie' if len(keys) > 1 else 'lies'} {where} the right panel."
        for keys, where in ((below, "below"), (above, "above"))
        if keys
    )


def curve_labels(bands: Mapping[MethodKey, SeedBand], low: float, high: float) -> list[LineLabel]:
    """The names of all lines and the last of their values in percent; at the edge, with an arrow, where it is beyond
    the limits."""
    looks, ends = method_line_styles(list(bands)), []
    for key, band in bands.items():
        last = int(np.flatnonzero(np.isfinite(band.mean))[-1])
        level = float(band.mean[last])
        value = f"{100 * level:.1f}" + (" ↓" if level < low else " ↑" if level > high else "")
        place = last + 1, min(max(level, low), high)
        ends.append(
            LineLabel(*place, f"{value}  {method_title(key)}", looks[key].color, is_highlighted_method(key), value)
        )
    return sorted(ends, key=lambda end: float(end.value.split()[0]))  # those at the edge in their order
