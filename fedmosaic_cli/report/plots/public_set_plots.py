"""Accuracy as a function of the size and the skew of the public set."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, first_valid_manifest
from fedmosaic_cli.report.plots.line_labels import (
    LineLabel,
    add_legend_below,
    draw_line_labels,
    has_long_name,
    legend_height_inches,
)
from fedmosaic_cli.report.plots.partition_plots import tick_step, truncate_name
from fedmosaic_cli.report.plots.plot_style import (
    PAGE_WIDTH_INCHES,
    add_grid_lines,
    is_highlighted_method,
    set_percent_axis,
)
from fedmosaic_cli.report.plots.round_curves import line_styles_by_title, padded_limits
from fedmosaic_cli.report.round_logs import load_round_curves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.plots.plot_style import LineStyle
    from fedmosaic_cli.report.plots.public_set_groups import PublicSetGroup
    from fedmosaic_cli.storage.shard_manifest import ShardManifest

POINTS_NOTE = "Points: mean accuracy of the last round over seeds; bars: lowest to highest seed."
DIFFERENT_CLIENTS_NOTE = (
    "The public set is taken from the data of the clients, so their data differs from point to point: compare "
    "FedMosaic with local training at the same point."
)
SAME_CLIENTS_NOTE = (
    "The public set is drawn from a separate pool of examples, so the clients have the same data at every point."
)
ZERO_TRUST_NOTE = "lambda is zero: this curve is local training and independent of U"
NEGLIGIBLE_TRUST = 1e-6
"""Smaller values of lambda count as zero."""
MAX_CLASS_TICKS = 24
MAX_ANNOTATED_CLASSES = 20
DODGE_FRACTION = 0.012
"""Distance between the error bars of two methods at the same point, as a fraction of the axis."""
TICK_CHAR_INCHES, TITLE_LINE_INCHES = 0.075, 0.16


def public_size_figure(public_set_groups: Sequence[PublicSetGroup]) -> Figure:
    """Accuracy against the size of the public set, one panel per public set group."""
    styles = line_styles_by_title(method_keys(public_set_groups))
    columns = 1 if len(public_set_groups) == 1 else 2
    rows = -(-len(public_set_groups) // columns)
    has_legend = columns > 1 or has_long_name(styles)
    width = PAGE_WIDTH_INCHES if has_legend else 0.75 * PAGE_WIDTH_INCHES
    titles = [panel_title(group, 40 if columns > 1 else 64) for group in public_set_groups]
    height = 1.0 + rows * (2.3 + TITLE_LINE_INCHES * max(title.count("\n") for title in titles))
    figure = new_figure(width, height + has_legend * legend_height_inches(styles))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    labels = {}
    for axes, group, title in zip(panels, public_set_groups, titles, strict=False):
        positions = {size: float(size) for size in group.groups_by_value}
        sizes = list(positions.values())
        is_log = min(sizes) > 0 and max(sizes) > 10 * min(sizes)
        if is_log:
            axes.set_xscale("log")
        labels[axes] = draw_accuracy_lines(axes, group, positions, styles)
        scaled = np.log(sizes) if is_log else np.array(sizes)
        axes.set_xticks(sizes, drop_overlapping_ticks(scaled, list(map(str, positions)), 0.6 * width / columns))
        axes.minorticks_off()
        axes.set_xlabel("examples in the public set" + (" (log scale)" if is_log else ""))
        axes.set_title(title, loc="left")
    for axes in panels[len(public_set_groups) :]:
        axes.remove()
    if has_legend:
        add_legend_below(figure, styles)
    add_title_and_note(figure, "Accuracy and the size of the public set", public_set_note(public_set_groups))
    draw_line_labels(labels, values_only=has_legend)
    return figure


def public_skew_figure(public_set_groups: Sequence[PublicSetGroup]) -> Figure:
    """Accuracy against the class skew of the public set, beside its class counts; one row per public set group."""
    styles = line_styles_by_title(method_keys(public_set_groups))
    titles = [panel_title(group, 40) for group in public_set_groups]
    num_extra_lines = sum(title.count("\n") for title in titles)
    height = 1.0 + sum(map(row_height_inches, public_set_groups)) + TITLE_LINE_INCHES * num_extra_lines
    figure = new_figure(PAGE_WIDTH_INCHES, height + legend_height_inches(styles))
    rows = figure.subplots(len(public_set_groups), 2, squeeze=False, width_ratios=(1, 1))
    labels = {}
    for (axes, classes), group, title in zip(rows, public_set_groups, titles, strict=True):
        positions = {alpha: float(number) for number, alpha in enumerate(group.groups_by_value)}
        labels[axes] = draw_accuracy_lines(axes, group, positions, styles)
        slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(positions) > 4 else {}
        tick_labels = ["balanced" if alpha is None else f"{alpha:g}" for alpha in positions]
        for panel in (axes, classes):
            panel.set_xticks(list(positions.values()), tick_labels, **slant)
            panel.set_xlabel("Dirichlet alpha of the public set")
        axes.set_xlim(-0.3, len(positions) - 0.7)
        axes.set_title(title, loc="left")
        draw_public_class_counts(classes, group)
    add_legend_below(figure, styles)
    add_title_and_note(figure, "Accuracy and the skew of the public set", public_set_note(public_set_groups))
    draw_line_labels(labels, values_only=True)
    return figure


def public_set_note(public_set_groups: Sequence[PublicSetGroup]) -> str:
    """The note on points, error bars, and whether the data of the clients differs between points."""
    same_clients = [group.label for group in public_set_groups if group.has_same_clients]
    if not same_clients:
        return f"{POINTS_NOTE} {DIFFERENT_CLIENTS_NOTE}"
    if len(same_clients) == len(public_set_groups):
        return f"{POINTS_NOTE} {SAME_CLIENTS_NOTE}"
    labels = "; ".join(same_clients)
    return f"{POINTS_NOTE} For {labels}: {SAME_CLIENTS_NOTE} For the others: {DIFFERENT_CLIENTS_NOTE}"


def panel_title(public_set_group: PublicSetGroup, width_chars: int) -> str:
    """The label of the group, and the curves that do not depend on the public set."""
    independent = [
        f"{method_title(key)}: {ZERO_TRUST_NOTE}"
        for key, runs_by_value in public_set_group.runs_by_method.items()
        if all(map(is_trust_negligible, runs_by_value.values()))
    ]
    return "\n".join(fill(text, width_chars) for text in (public_set_group.label, *independent))


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


def drop_overlapping_ticks(positions: NDArray[np.float64], texts: Sequence[str], width_inches: float) -> list[str]:
    """The tick labels of an axis of this width; empty where a label would overlap the next one."""
    span = max(float(np.ptp(positions)), 1e-9)
    kept: list[str] = []
    left_edge = np.inf
    for position, text in zip((width_inches * positions / span)[::-1], texts[::-1], strict=True):
        half_width = TICK_CHAR_INCHES * (len(text) + 1) / 2
        fits = position + half_width <= left_edge
        kept.append(text if fits else "")
        left_edge = position - half_width if fits else left_edge
    return kept[::-1]


def row_height_inches(public_set_group: PublicSetGroup) -> float:
    """A height that fits the class names of the public set."""
    manifests = public_set_manifests(public_set_group).values()
    num_classes = max((len(manifest.class_names) for manifest in manifests), default=0)
    return max(2.5, 0.8 + 0.17 * min(num_classes, MAX_CLASS_TICKS))


def draw_accuracy_lines(
    axes: Axes, public_set_group: PublicSetGroup, positions: dict[Any, float], styles_by_title: Mapping[str, LineStyle]
) -> list[LineLabel]:
    """Draw a line with error bars for each method and return the labels of the lines."""
    labels = []
    runs_by_method = public_set_group.runs_by_method
    for number, (key, runs_by_value) in enumerate(runs_by_method.items()):
        title = method_title(key)
        style = styles_by_title[title]
        dodged = dodged_positions(axes, list(positions.values()), number - (len(runs_by_method) - 1) / 2)
        points = [(x, runs_by_value[v].accuracy) for v, x in zip(positions, dodged, strict=True) if v in runs_by_value]
        x_values = [x for x, _ in points]
        mean, low, high = (np.array([getattr(acc, name)() for _, acc in points]) for name in ("mean", "min", "max"))
        error_bars = np.clip([mean - low, high - mean], 0, None)
        kwargs = {**style.plot_kwargs(), "marker": style.marker or "o", "clip_on": False}
        axes.errorbar(x_values, mean, yerr=error_bars, **kwargs, capsize=2, elinewidth=0.8)
        end = x_values[-1], float(mean[-1])
        labels.append(LineLabel(*end, title, style.color, is_highlighted_method(key), f"{100 * end[1]:.1f}"))
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly))
    add_grid_lines(axes)
    return labels


def dodged_positions(axes: Axes, positions: Sequence[float], num_steps: float) -> list[float]:
    """Positions moved sideways, so that the error bars of methods at the same point do not overlap."""
    if axes.get_xscale() == "log":
        factor = (max(positions) / min(positions)) ** (DODGE_FRACTION * num_steps)
        return [position * factor for position in positions]
    offset = DODGE_FRACTION * num_steps * (max(positions) - min(positions))
    return [position + offset for position in positions]


def draw_public_class_counts(axes: Axes, public_set_group: PublicSetGroup) -> None:
    """Draw class counts as a heatmap with one column per public set, with numbers in the cells or a colour bar."""
    from matplotlib.ticker import MaxNLocator

    manifests = public_set_manifests(public_set_group)
    if not manifests:
        axes.text(0.5, 0.5, "no run contains\na shard manifest", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    names = next(iter(manifests.values())).class_names
    counts = np.full((len(names), len(public_set_group.groups_by_value)), np.nan)
    for column, manifest in manifests.items():
        counts[:, column] = manifest.public.class_counts
    largest = max(np.nanmax(counts), 1)
    edges = [np.arange(size + 1) - 0.5 for size in counts.shape[::-1]]
    style: dict[str, Any] = {"cmap": "Greys", "vmin": 0, "vmax": 1.15 * largest, "edgecolor": "white"}
    cells = axes.pcolormesh(*edges, np.ma.masked_invalid(counts), **style)
    step = tick_step(len(names), MAX_CLASS_TICKS)
    axes.set_yticks(np.arange(0, len(names), step), [truncate_name(name) for name in names[::step]])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    seeds = ", ".join(sorted({str(manifest.seed) for manifest in manifests.values()}))
    axes.set_title(fill(f"examples per class, shards of seed {seeds}", 40), loc="left")
    if counts.shape[0] > MAX_ANNOTATED_CLASSES or counts.shape[1] > MAX_ANNOTATED_CLASSES // 2:
        axes.figure.colorbar(cells, ax=axes, ticks=MaxNLocator(5, integer=True))
        return
    for (row, column), count in np.ndenumerate(counts):
        if np.isfinite(count):
            color = "white" if count > 0.6 * largest else "black"
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", color=color)


def public_set_manifests(public_set_group: PublicSetGroup) -> dict[int, ShardManifest]:
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
