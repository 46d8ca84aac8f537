"""Accuracy as a function of the size and the skew of the public set."""

from __future__ import annotations

from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.plots.canvas import add_caption, new_figure, note_height_inches
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, SeedBand, first_valid_manifest, seeds_note
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.plots.line_labels import (
    LineLabel,
    add_legend_below,
    draw_line_labels,
    legend_height_inches,
    needs_legend,
)
from fedmosaic_cli.report.plots.partition_plots import COLOR_MAP, tick_step, truncate_name
from fedmosaic_cli.report.plots.plot_style import (
    BAND_OPACITY,
    MAX_BANDS,
    add_grid_lines,
    method_line_styles,
    set_percent_axis,
)
from fedmosaic_cli.report.plots.round_curves import band_edges, padded_limits
from fedmosaic_cli.report.round_logs import load_round_curves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.plots.plot_style import LineStyle
    from fedmosaic_cli.report.plots.public_set_groups import PublicSetGroup
    from fedmosaic_cli.storage.shard_manifest import ShardManifest

DIFFERENT_CLIENTS_NOTE = (
    "The public set is taken from the data of the clients, so their data differs from point to point: compare "
    "FedMosaic with local training at the same point."
)
SAME_CLIENTS_NOTE = (
    "The public set is drawn from a separate pool of examples, so the clients have the same data at every point."
)
ZERO_TRUST_NOTE = "lambda is zero, so this curve is local training and independent of the public set"
NEGLIGIBLE_TRUST = 1e-6
"""Smaller values of lambda count as zero."""
MAX_CLASS_TICKS = 24
MAX_ANNOTATED_CLASSES = 20


def public_size_figure(public_set_groups: Sequence[PublicSetGroup], options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Accuracy against the size of the public set, one panel per public set group."""
    styles = method_line_styles(method_keys(public_set_groups))
    names = {method_title(key): style for key, style in styles.items()}
    columns = 1 if len(public_set_groups) == 1 or options.is_narrow else 2
    rows = -(-len(public_set_groups) // columns)
    has_legend = len(public_set_groups) > 1 or needs_legend(names, options) or not all_end_together(public_set_groups)
    note = public_set_note(public_set_groups, styles)
    height = rows * (2.0 if options.is_narrow else 2.4) + has_legend * legend_height_inches(names, options)
    figure = new_figure(options.width_inches, height + note_height_inches(options, note))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    labels = {}
    for axes, group in zip(panels, public_set_groups, strict=False):
        positions = {size: float(size) for size in group.groups_by_value}
        sizes = list(positions.values())
        is_log = min(sizes) > 0 and max(sizes) > 10 * min(sizes)
        if is_log:
            axes.set_xscale("log")
        labels[axes] = draw_accuracy_lines(axes, group, positions, styles)
        scaled = np.log(sizes) if is_log else np.array(sizes)
        width_inches = 0.6 * options.width_inches / columns
        tick_labels = drop_overlapping_ticks(scaled, list(map(str, positions)), width_inches, options.char_inches)
        axes.set_xticks(sizes, tick_labels)
        axes.minorticks_off()
        axes.set_xlabel("examples in the public set" + (" (log scale)" if is_log else ""))
        if len(public_set_groups) > 1:
            axes.set_title(fill(group.label, int(options.width_inches / columns / options.char_inches)), loc="left")
    for axes in panels[len(public_set_groups) :]:
        axes.remove()
    if has_legend:
        add_legend_below(figure, names, options)
    place = public_set_groups[0].label if len(public_set_groups) == 1 else ""
    add_caption(figure, options, "accuracy and the size of the public set", place, note)
    if not has_legend:
        draw_line_labels(labels, options)
    return figure


def all_end_together(public_set_groups: Sequence[PublicSetGroup]) -> bool:
    """Whether all methods have runs at the last point, so that names beside the lines are next to their ends."""
    return all(
        list(group.groups_by_value)[-1] in runs_by_value
        for group in public_set_groups
        for runs_by_value in group.runs_by_method.values()
    )


def public_skew_figure(public_set_groups: Sequence[PublicSetGroup], options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Accuracy against the class skew of the public set, and its class counts; one pair of panels per group."""
    styles = method_line_styles(method_keys(public_set_groups))
    names = {method_title(key): style for key, style in styles.items()}
    counted = [class_counts_by_value(group) for group in public_set_groups]
    seeds = sorted({str(manifest.seed) for group in public_set_groups for manifest in manifests_of(group).values()})
    note = public_set_note(public_set_groups, styles)
    note += f" Cells: examples of the public set per class, shards of seed {', '.join(seeds)}." if seeds else ""
    heights = [class_panel_inches(table, options) for table, _ in counted]
    is_stacked = options.is_narrow
    height = sum(inches + 1.9 if is_stacked else max(inches, 2.4) for inches in heights)
    figure = new_figure(
        options.width_inches, height + legend_height_inches(names, options) + note_height_inches(options, note)
    )
    num_groups = len(public_set_groups)
    shape = (2 * num_groups, 1) if is_stacked else (num_groups, 2)
    ratios: dict[str, Any] = (
        {"height_ratios": [part for inches in heights for part in (1.9, inches)]}
        if is_stacked
        else {"width_ratios": (1.15, 1), "height_ratios": [max(inches, 2.4) for inches in heights]}
    )
    panels = figure.subplots(*shape, squeeze=False, **ratios).reshape(num_groups, 2)
    for (axes, classes), group, (table, class_names) in zip(panels, public_set_groups, counted, strict=True):
        positions = {alpha: float(number) for number, alpha in enumerate(group.groups_by_value)}
        draw_accuracy_lines(axes, group, positions, styles)
        tick_labels = ["balanced" if alpha is None else f"{alpha:g}" for alpha in positions]
        inches = 0.75 * options.width_inches / (shape[1] * len(positions))
        is_slanted = any(
            options.char_inches * ((len(one) + len(other)) / 2 + 1) > inches for one, other in pairwise(tick_labels)
        )
        slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
        for panel in (axes, classes):
            panel.set_xticks(list(positions.values()), tick_labels, **slant)
            panel.set_xlabel("Dirichlet alpha of the public set")
        axes.set_xlim(-0.3, len(positions) - 0.7)
        if num_groups > 1:
            axes.set_title(fill(group.label, 40), loc="left")
        draw_class_counts(classes, table, class_names)
    add_legend_below(figure, names, options)
    place = public_set_groups[0].label if num_groups == 1 else ""
    add_caption(figure, options, "accuracy and the skew of the public set", place, note)
    return figure


def public_set_note(public_set_groups: Sequence[PublicSetGroup], styles: Mapping[MethodKey, LineStyle]) -> str:
    """The note on means and bands, on the data of the clients, and on curves without trust."""
    frames = [
        runs
        for group in public_set_groups
        for runs_by_value in group.runs_by_method.values()
        for runs in runs_by_value.values()
    ]
    bands = [SeedBand(np.array([runs.accuracy.mean()]), np.array([runs.accuracy.std()])) for runs in frames]
    sentences = [seeds_note(bands, [len(runs) for runs in frames], len(styles) <= MAX_BANDS)]
    same_clients = [group.label for group in public_set_groups if group.has_same_clients]
    if not same_clients:
        sentences.append(DIFFERENT_CLIENTS_NOTE)
    elif len(same_clients) == len(public_set_groups):
        sentences.append(SAME_CLIENTS_NOTE)
    else:
        labels = "; ".join(same_clients)
        sentences.append(f"For {labels}: {SAME_CLIENTS_NOTE} For the others: {DIFFERENT_CLIENTS_NOTE}")
    return " ".join([*sentences, *zero_trust_sentences(public_set_groups)])


def zero_trust_sentences(public_set_groups: Sequence[PublicSetGroup]) -> list[str]:
    """A sentence per curve that does not depend on the public set."""
    return [
        f"{f'{group.label}, ' if len(public_set_groups) > 1 else ''}{method_title(key)}: {ZERO_TRUST_NOTE}."
        for group in public_set_groups
        for key, runs_by_value in group.runs_by_method.items()
        if all(map(is_trust_negligible, runs_by_value.values()))
    ]


def is_trust_negligible(runs: pd.DataFrame) -> bool:
    """Whether lambda is negligible in the last round for more than half of the clients that have one."""
    last = []
    for path in runs.path:
        try:
            trust = load_round_curves(path).get("lambda")
        except (RequestError, OSError):
            continue
        last += [] if trust is None or not len(trust) else list(trust[-1][~np.isnan(trust[-1])])
    return bool(last) and float(np.mean(np.array(last) < NEGLIGIBLE_TRUST)) > 0.5


def method_keys(public_set_groups: Sequence[PublicSetGroup]) -> list[MethodKey]:
    return list(dict.fromkeys(key for group in public_set_groups for key in group.runs_by_method))


def drop_overlapping_ticks(
    positions: NDArray[np.float64], texts: Sequence[str], width_inches: float, char_inches: float = 0.075
) -> list[str]:
    """The tick labels of an axis of this width; empty where a label would overlap the next one."""
    span = max(float(np.ptp(positions)), 1e-9)
    kept: list[str] = []
    left_edge = np.inf
    for position, text in zip((width_inches * positions / span)[::-1], texts[::-1], strict=True):
        half_width = char_inches * (len(text) + 1) / 2
        fits = position + half_width <= left_edge
        kept.append(text if fits else "")
        left_edge = position - half_width if fits else left_edge
    return kept[::-1]


def draw_accuracy_lines(
    axes: Axes, public_set_group: PublicSetGroup, positions: dict[Any, float], styles: Mapping[MethodKey, LineStyle]
) -> list[LineLabel]:
    """Draw a line for each method, with a band if there are few, and return the labels of the lines."""
    labels = []
    for key, runs_by_value in public_set_group.runs_by_method.items():
        style = styles[key]
        points = {x: runs_by_value[value].accuracy for value, x in positions.items() if value in runs_by_value}
        x_values = list(points)
        mean = np.array([accuracy.mean() for accuracy in points.values()])
        std = np.array([accuracy.std() for accuracy in points.values()])
        axes.plot(x_values, mean, **{**style.plot_kwargs(), "marker": style.marker or "o", "markevery": None})
        if edges := band_edges(SeedBand(mean, std), len(styles) <= MAX_BANDS):
            low, high = edges
            axes.fill_between(x_values, low, high, color=style.color, alpha=BAND_OPACITY, linewidth=0)
        text = f"{100 * mean[-1]:.1f}  {method_title(key)}"
        labels.append(LineLabel(x_values[-1], float(mean[-1]), text, style))
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly))
    add_grid_lines(axes)
    return labels


def class_counts_by_value(public_set_group: PublicSetGroup) -> tuple[NDArray[np.float64], list[str]]:
    """Class counts [classes, values] of the public sets, NaN where they are unknown, and the names of the classes."""
    manifests = manifests_of(public_set_group)
    names = next(iter(manifests.values())).class_names if manifests else []
    counts = np.full((len(names), len(public_set_group.groups_by_value)), np.nan)
    for column, manifest in manifests.items():
        counts[:, column] = manifest.public.class_counts
    return counts, names


def class_panel_inches(counts: NDArray[np.float64], options: FigureOptions) -> float:
    """A height that fits the class names of the public set."""
    return max(1.2, 0.6 + 1.15 * options.line_height_inches * min(len(counts), MAX_CLASS_TICKS))


def draw_class_counts(axes: Axes, counts: NDArray[np.float64], class_names: Sequence[str]) -> None:
    """Draw class counts as a heat map with one column per public set, with numbers in the cells or a colour bar."""
    from matplotlib.ticker import MaxNLocator

    if not len(counts):
        axes.text(0.5, 0.5, "no run contains\na shard manifest", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    largest = max(np.nanmax(counts), 1)
    edges = [np.arange(size + 1) - 0.5 for size in counts.shape[::-1]]
    style: dict[str, Any] = {"cmap": COLOR_MAP, "vmin": 0, "vmax": 1.15 * largest, "edgecolor": "white"}
    cells = axes.pcolormesh(*edges, np.ma.masked_invalid(counts), **style)
    step = tick_step(len(class_names), MAX_CLASS_TICKS)
    names = [truncate_name(name) for name in class_names[::step]]
    axes.set_yticks(np.arange(0, len(class_names), step), names)
    axes.set_ylabel("class")
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if counts.shape[0] > MAX_ANNOTATED_CLASSES or counts.shape[1] > MAX_ANNOTATED_CLASSES // 2:
        axes.figure.colorbar(cells, ax=axes, ticks=MaxNLocator(5, integer=True))
        return
    for (row, column), count in np.ndenumerate(counts):
        if np.isfinite(count):
            color = "white" if count > 0.6 * largest else "black"
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", color=color)


def manifests_of(public_set_group: PublicSetGroup) -> dict[int, ShardManifest]:
    """Manifests of the first seed of each member, by position; members with other or unknown classes are left out."""
    manifests: dict[int, ShardManifest] = {}
    for number, group in enumerate(public_set_group.groups_by_value.values()):
        try:
            manifest = first_valid_manifest(group)
        except FigureUnavailableError:
            continue
        if manifest.public.class_counts is None:
            continue
        if not manifests or len(manifest.class_names) == len(next(iter(manifests.values())).class_names):
            manifests[number] = manifest
    return manifests
