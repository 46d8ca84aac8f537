"""Curves over rounds, with bands over seeds: accuracy, and quality of the consensus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import method_title, shares_labels
from fedmosaic_cli.report.plots.canvas import add_caption, new_figure, new_figure_with_axes, note_height_inches
from fedmosaic_cli.report.plots.figure_data import (
    FigureUnavailableError,
    SeedBand,
    band_over_seeds,
    equal_titles,
    group_equal_bands,
    in_rounds_of_all,
    joined_titles,
    seeds_note,
)
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.plots.line_labels import (
    LineLabel,
    add_legend_below,
    draw_line_labels,
    legend_height_inches,
    needs_legend,
)
from fedmosaic_cli.report.plots.plot_style import (
    BAND_OPACITY,
    MAX_BANDS,
    add_grid_lines,
    method_line_styles,
    set_percent_axis,
    set_round_axis,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import FigureData
    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.plots.plot_style import LineStyle

    Vector = NDArray[np.float64]

MIN_Y_SPAN = 0.04
EARLY_ROUNDS_SHARE = 0.35
"""The part of the accuracy axis that is left for values below those of the final rounds."""
MIN_ROUNDS_OF_CUT_AXIS = 6
ORACLE_NOTE = "the labels are hidden from the federation"


def accuracy_figure(
    group: ComparisonGroup, figure_data: FigureData, options: FigureOptions = DEFAULT_OPTIONS
) -> Figure:
    """Mean accuracy of all clients over rounds per method.

    The axis shows the final rounds well: it may begin above the accuracy of early rounds and of outlier methods.
    """
    runs_by_method = figure_data.curves_by_method
    bands = {
        key: band_over_seeds(in_rounds_of_all([run.accuracy for run in runs])) for key, runs in runs_by_method.items()
    }
    if not bands:
        raise FigureUnavailableError("no run has a readable log")
    num_rounds = len(next(iter(bands.values())).mean)
    lines = group_equal_bands(bands)
    styles = method_line_styles(list(bands))
    names = {key: equal_titles(keys) for key, keys in lines.items()}
    drawn = {key: bands[key] for key in lines}
    has_bands = len(drawn) <= MAX_BANDS
    low, high = accuracy_limits(drawn, has_bands)
    note = " ".join(
        filter(
            None,
            (
                seeds_note(bands.values(), [len(runs) for runs in runs_by_method.values()], has_bands),
                cut_axis_note(drawn, low, high),
                evaluated_rounds_note(bands),
            ),
        )
    )
    has_legend = needs_legend(names.values(), options)
    height = max(2.0 if options.is_narrow else 2.7, 0.7 + (not has_legend) * len(names) * options.line_height_inches)
    height += has_legend * legend_height_inches(names.values(), options) + note_height_inches(options, note)
    figure, axes = new_figure_with_axes(options.width_inches, height)
    draw_bands(axes, drawn, styles, has_bands)
    set_round_axis(axes, num_rounds)
    set_percent_axis(axes, low, high)
    add_grid_lines(axes)
    if has_legend:
        add_legend_below(figure, {names[key]: styles[key] for key in lines}, options)
    add_caption(figure, options, "mean test accuracy of the clients", group.label, note)
    if not has_legend:
        draw_line_labels({axes: curve_labels(drawn, names, styles, *axes.get_ylim())}, options)
    return figure


def accuracy_limits(bands: Mapping[MethodKey, SeedBand], has_bands: bool) -> tuple[float, float]:
    """The limits of the accuracy axis: all values, or in long runs the final half of the rounds and some space."""
    edges = [edge for band in bands.values() for edge in band_edges(band, has_bands)]
    values = np.stack([*(band.mean for band in bands.values()), *edges])
    lowest, highest = padded_limits(float(np.nanmin(values)), float(np.nanmax(values)))
    if values.shape[1] < MIN_ROUNDS_OF_CUT_AXIS:
        return lowest, highest
    low, high = padded_limits(*final_rounds_limits(bands, has_bands, values.shape[1] // 2))
    return max(lowest, low - EARLY_ROUNDS_SHARE / (1 - EARLY_ROUNDS_SHARE) * (high - low)), min(highest, high)


def final_rounds_limits(
    bands: Mapping[MethodKey, SeedBand], has_bands: bool, num_skipped_rounds: int
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
    inner = [band for band in bands.values() if low <= band.mean[-1] <= high]
    curves = [curve for band in inner for curve in (band.mean, *band_edges(band, has_bands))]
    values = np.stack(curves)[:, num_skipped_rounds:]
    return float(np.nanmin(values)), float(np.nanmax(values))


def band_edges(band: SeedBand, has_bands: bool) -> list[Vector]:
    """The edges of a drawn band between 0 and 1; none without a deviation."""
    if not has_bands or not np.isfinite(band.std).any():
        return []
    return [np.clip(band.mean + sign * band.std, 0, 1) for sign in (-1, 1)]


def cut_axis_note(bands: Mapping[MethodKey, SeedBand], low: float, high: float) -> str:
    """The sentences on values outside the limits; empty if there are none."""
    lowest = min(float(np.nanmin(band.mean)) for band in bands.values())
    below = [key for key, band in bands.items() if band.mean[-1] < low]
    above = [key for key, band in bands.items() if band.mean[-1] > high]
    sentences = [
        f"{joined_titles(keys)} {'end' if len(keys) > 1 else 'ends'} {position} the axis."
        for keys, position in ((below, "below"), (above, "above"))
        if keys
    ]
    if lowest < low:
        sentences = [f"The axis begins above the lowest value, {100 * lowest:.1f} %.", *sentences]
    return " ".join(sentences)


def evaluated_rounds_note(bands: Mapping[MethodKey, SeedBand]) -> str:
    """The sentence on methods that were not evaluated in every round; empty without any."""
    fewer = [key for key, band in bands.items() if not np.isfinite(band.mean).all()]
    return f"{joined_titles(fewer)}: not evaluated in every round." if fewer else ""


def consensus_figure(
    group: ComparisonGroup, figure_data: FigureData, options: FigureOptions = DEFAULT_OPTIONS
) -> Figure:
    """Agreement of the clients with the consensus, and accuracy of the pseudo-labels, over rounds."""
    curves = {key: runs for key, runs in figure_data.curves_by_method.items() if shares_labels(key)}
    agreement = finite_bands({key: [run.agreement for run in runs] for key, runs in curves.items()})
    correct = finite_bands({key: [run.pseudo_label_accuracy for run in runs] for key, runs in curves.items()})
    panels = [("agreement (%)", agreement), ("correct pseudo-labels (%)", correct)]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        raise FigureUnavailableError("no run logged a consensus")
    all_bands = [band for _, bands in panels for band in bands.values()]
    first_round = min(int(np.isfinite(band.mean).argmax()) for band in all_bands) + 1
    styles = method_line_styles(list(curves))
    names = [method_title(key) for key in curves]
    has_bands = len(curves) <= MAX_BANDS
    without = [key for key in curves if agreement and key not in agreement]
    explanations = {
        "agreement (%)": "Agreement: examples of the public set on which a client's label is the consensus.",
        "correct pseudo-labels (%)": f"Correct pseudo-labels: consensus labels that are true; {ORACLE_NOTE}.",
    }
    note = " ".join(
        [
            *(explanations[label] for label, _ in panels),
            seeds_note(all_bands, [len(runs) for runs in curves.values()], has_bands),
            *([f"{joined_titles(without)} logged no agreement."] if without else []),
            *equal_lines_sentences(dict(panels)),
        ]
    )
    rows, columns = (len(panels), 1) if options.is_narrow else (1, len(panels))
    height = rows * (1.6 if options.is_narrow else 2.2) + legend_height_inches(names, options)
    figure = new_figure(options.width_inches, height + note_height_inches(options, note))
    all_axes = figure.subplots(rows, columns, squeeze=False, sharex=options.is_narrow).flat
    for axes, (label, bands) in zip(all_axes, panels, strict=True):
        drawn = {key: bands[key] for key in group_equal_bands(bands)}
        draw_bands(axes, drawn, styles, has_bands)
        set_round_axis(axes, len(all_bands[0].mean), first_round)
        set_percent_axis(axes, *padded_limits(*drawn_limits(drawn, has_bands)), label)
        add_grid_lines(axes)
        if options.is_narrow:
            axes.label_outer()
    add_legend_below(figure, {method_title(key): styles[key] for key in curves}, options)
    add_caption(figure, options, "consensus on the public set", group.label, note)
    return figure


def equal_lines_sentences(bands_by_panel: Mapping[str, Mapping[MethodKey, SeedBand]]) -> list[str]:
    """The sentences on methods whose lines are equal in all panels, or only in the named one."""
    equal = {
        label: [equal_titles(keys) for keys in group_equal_bands(bands).values() if len(keys) > 1]
        for label, bands in bands_by_panel.items()
    }
    everywhere = [name for name in next(iter(equal.values())) if all(name in names for names in equal.values())]
    sentences = [f"Equal lines are drawn once: {'; '.join(everywhere)}."] if everywhere else []
    for label, names in equal.items():
        if others := [name for name in names if name not in everywhere]:
            panel = label.removesuffix(" (%)")
            sentences.append(f'Equal lines of the panel "{panel}" are drawn once: {"; ".join(others)}.')
    return sentences


def finite_bands(curves_by_method: Mapping[MethodKey, Sequence[Vector]]) -> dict[MethodKey, SeedBand]:
    """The bands over seeds of the methods that have any value."""
    bands = {key: band_over_seeds(curves) for key, curves in curves_by_method.items()}
    return {key: band for key, band in bands.items() if np.isfinite(band.mean).any()}


def draw_bands(
    axes: Axes, bands: Mapping[MethodKey, SeedBand], styles: Mapping[MethodKey, LineStyle], has_bands: bool
) -> None:
    """Draw a line for each mean and, with `has_bands`, one standard deviation around it."""
    for key, band in bands.items():
        known = np.isfinite(band.mean)
        known[: known.argmax()] = True  # gaps are rounds that were not evaluated: the line connects the others
        rounds = np.arange(1, len(known) + 1)[known]
        axes.plot(rounds, band.mean[known], **styles[key].plot_kwargs(len(rounds)))
        if edges := band_edges(band, has_bands):
            low, high = (edge[known] for edge in edges)
            axes.fill_between(rounds, low, high, color=styles[key].color, alpha=BAND_OPACITY, linewidth=0)


def drawn_limits(bands: Mapping[MethodKey, SeedBand], has_bands: bool) -> tuple[float, float]:
    """The lowest and the highest value of lines and bands."""
    curves = [curve for band in bands.values() for curve in (band.mean, *band_edges(band, has_bands))]
    return float(np.nanmin(curves)), float(np.nanmax(curves))


def padded_limits(low: float, high: float) -> tuple[float, float]:
    """Limits with a margin, and a minimum span so that small differences look small."""
    margin = max(0.05 * (high - low), (MIN_Y_SPAN - (high - low)) / 2)
    return low - margin, high + margin


def curve_labels(
    bands: Mapping[MethodKey, SeedBand],
    names: Mapping[MethodKey, str],
    styles: Mapping[MethodKey, LineStyle],
    low: float,
    high: float,
) -> list[LineLabel]:
    """Labels with the last value of each line in percent, sorted by value.

    A line that ends outside the limits has its label at the edge, with an arrow.
    """
    labels = []
    for key, band in bands.items():
        last = int(np.flatnonzero(np.isfinite(band.mean))[-1])
        level = float(band.mean[last])
        arrow = " ↓" if level < low else " ↑" if level > high else ""
        text = f"{100 * level:.1f}{arrow}  {names[key]}"
        labels.append((level, LineLabel(last + 1, min(max(level, low), high), text, styles[key])))
    return [label for _, label in sorted(labels, key=lambda entry: entry[0])]
