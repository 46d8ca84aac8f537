"""What the size and the skew of the public set mean for accuracy."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.client_plots import first_valid_manifest
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError
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
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.plots.plot_style import LineStyle
    from fedmosaic_cli.report.plots.public_set_groups import PublicSetGroup

POINTS_NOTE = "Points: mean accuracy of the last round over seeds; bars: lowest to highest seed."
DIFFERENT_CLIENTS_NOTE = (
    "Clients give up what the public set takes, so their data differ from point to point: compare FedMosaic with local "
    "training at the same point."
)
SAME_CLIENTS_NOTE = (
    "The public set is drawn from examples that are set aside for it, so clients hold the same data at every point."
)
ZERO_TRUST_NOTE = "lambda is zero: this curve is Local training and shows nothing of U"
NEGLIGIBLE_TRUST = 1e-6
"""Below this, lambda is none."""
MAX_CLASS_TICKS = 24
MAX_ANNOTATED_CLASSES = 20
DODGE_FRACTION = 0.012
"""How far apart, as a part of the axis, the bars of two methods at the same point stand."""
TICK_CHAR_INCHES, TITLE_LINE_INCHES = 0.075, 0.16


def public_size_figure(public_set_groups: Sequence[PublicSetGroup]) -> Figure:
    """Accuracy against the size of the public set, a panel a family."""
    names = line_styles_by_title(method_keys(public_set_groups))
    across = 1 if len(public_set_groups) == 1 else 2
    below = across > 1 or has_long_name(names)
    down = -(-len(public_set_groups) // across)
    width = PAGE_WIDTH_INCHES if below else 0.75 * PAGE_WIDTH_INCHES
    letters = 40 if across > 1 else 64
    titles = [panel_title(family, letters) for family in public_set_groups]
    height = 1.0 + down * (2.3 + TITLE_LINE_INCHES * max(title.count("\n") for title in titles))
    figure = new_figure(width, height + below * legend_height_inches(names))
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    ends = {}
    for axes, family, title in zip(panels, public_set_groups, titles, strict=False):
        sizes = [float(size) for size in family.groups_by_value]
        if min(sizes) > 0 and max(sizes) > 10 * min(sizes):
            axes.set_xscale("log")
        ends[axes] = draw_accuracy_lines(axes, family, dict(zip(family.groups_by_value, sizes, strict=True)), names)
        scaled = np.log(sizes) if axes.get_xscale() == "log" else np.array(sizes)
        axes.set_xticks(
            sizes, drop_overlapping_ticks(scaled, [str(size) for size in family.groups_by_value], 0.6 * width / across)
        )
        axes.minorticks_off()
        axes.set_xlabel("examples in the public set" + (" (log scale)" if axes.get_xscale() == "log" else ""))
        axes.set_title(title, loc="left")
    for axes in panels[len(public_set_groups) :]:
        axes.remove()
    if below:
        add_legend_below(figure, names)
    add_title_and_note(figure, "Accuracy and the size of the public set", public_set_note(public_set_groups))
    draw_line_labels(ends, values_only=below)
    return figure


def public_skew_figure(public_set_groups: Sequence[PublicSetGroup]) -> Figure:
    """Accuracy against the skew of the public set's classes, and beside it these classes; a row a family."""
    names = line_styles_by_title(method_keys(public_set_groups))
    titles = [panel_title(family, 40) for family in public_set_groups]
    height = (
        1.0
        + sum(map(row_height_inches, public_set_groups))
        + TITLE_LINE_INCHES * sum(title.count("\n") for title in titles)
    )
    figure = new_figure(PAGE_WIDTH_INCHES, height + legend_height_inches(names))
    rows = figure.subplots(len(public_set_groups), 2, squeeze=False, width_ratios=(1, 1))
    ends = {}
    for (axes, classes), family, title in zip(rows, public_set_groups, titles, strict=True):
        positions = {alpha: float(number) for number, alpha in enumerate(family.groups_by_value)}
        ends[axes] = draw_accuracy_lines(axes, family, positions, names)
        slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(positions) > 4 else {}
        for panel in (axes, classes):
            panel.set_xticks(list(positions.values()), [format_alpha(alpha) for alpha in positions], **slant)
            panel.set_xlabel("Dirichlet alpha of the public set")
        axes.set_xlim(-0.3, len(positions) - 0.7)
        axes.set_title(title, loc="left")
        draw_public_class_counts(classes, family)
    add_legend_below(figure, names)
    add_title_and_note(figure, "Accuracy and the skew of the public set", public_set_note(public_set_groups))
    draw_line_labels(ends, values_only=True)
    return figure


def public_set_note(public_set_groups: Sequence[PublicSetGroup]) -> str:
    """What points and bars are, and whether clients hold the same at all of them."""
    alike = {family.has_same_clients for family in public_set_groups}
    words = [text for same, text in ((True, SAME_CLIENTS_NOTE), (False, DIFFERENT_CLIENTS_NOTE)) if same in alike]
    if len(words) > 1:
        labels = [family.label for family in public_set_groups if family.has_same_clients]
        words = [
            f"{SAME_CLIENTS_NOTE.removesuffix('.')} of {'; '.join(labels)}.",
            f"Elsewhere: {DIFFERENT_CLIENTS_NOTE}",
        ]
    return " ".join([POINTS_NOTE, *words])


def panel_title(public_set_group: PublicSetGroup, width_chars: int) -> str:
    """The family, and which of its curves say nothing of the public set."""
    silent = [
        f"{method_title(key)}: {ZERO_TRUST_NOTE}"
        for key in public_set_group.runs_by_method
        if is_trust_negligible(public_set_group.runs_by_method[key].values())
    ]
    return "\n".join(fill(text, width_chars) for text in (public_set_group.label, *silent))


def is_trust_negligible(runs_per_value: Iterable[pd.DataFrame]) -> bool:
    """Whether at every point more than half of all clients ended with next to no lambda."""
    return all(share is not None and share > 0.5 for share in map(negligible_trust_fraction, runs_per_value))


def negligible_trust_fraction(runs: pd.DataFrame) -> float | None:
    """Of the clients of these runs that have a lambda in the last round, the part in which it is none."""
    last = []
    for path in runs.path:
        try:
            trust = load_round_curves(path).get("lambda")
        except (RequestError, OSError):
            continue
        last += [] if trust is None or not len(trust) else list(trust[-1][~np.isnan(trust[-1])])
    return float(np.mean(np.array(last) < NEGLIGIBLE_TRUST)) if last else None


def method_keys(public_set_groups: Sequence[PublicSetGroup]) -> list[MethodKey]:
    """All methods of these families."""
    return list(dict.fromkeys(key for family in public_set_groups for key in family.runs_by_method))


def drop_overlapping_ticks(positions: NDArray[np.float64], texts: Sequence[str], width_inches: float) -> list[str]:
    """The texts below an axis of so many inches; "" where the next one to be written leaves no room."""
    span = max(float(np.ptp(positions)), 1e-9)
    written: list[str] = []
    edge = np.inf
    for place, text in zip((width_inches * positions / span)[::-1], texts[::-1], strict=True):
        reach = TICK_CHAR_INCHES * (len(text) + 1) / 2
        written.append(text if place + reach <= edge else "")
        edge = place - reach if written[-1] else edge
    return written[::-1]


def row_height_inches(public_set_group: PublicSetGroup) -> float:
    """Inches for the classes one above the other."""
    classes = max(
        (len(manifest["class_names"]) for manifest in public_set_manifests(public_set_group).values()), default=0
    )
    return max(2.5, 0.8 + 0.17 * min(classes, MAX_CLASS_TICKS))


def format_alpha(alpha: float | None) -> str:
    return "balanced" if alpha is None else f"{alpha:g}"


def draw_accuracy_lines(
    axes: Axes, public_set_group: PublicSetGroup, positions: dict[Any, float], styles_by_title: Mapping[str, LineStyle]
) -> list[LineLabel]:
    """A line for each method with a bar at each point, and where the lines end."""
    ends = []
    for number, (key, by_value) in enumerate(public_set_group.runs_by_method.items()):
        look = styles_by_title[method_title(key)]
        moved = dodged_positions(
            axes, list(positions.values()), number - (len(public_set_group.runs_by_method) - 1) / 2
        )
        values = [value for value in positions if value in by_value]
        places = [place for value, place in zip(positions, moved, strict=True) if value in by_value]
        mean, bars = mean_and_error_bars([by_value[value] for value in values])
        style = {**look.plot_kwargs(), "marker": look.marker or "o", "clip_on": False}
        axes.errorbar(places, mean, yerr=bars, **style, capsize=2, elinewidth=0.8)
        name, last = method_title(key), float(mean[-1])
        ends.append(LineLabel(places[-1], last, name, look.color, is_highlighted_method(key), f"{100 * last:.1f}"))
    set_percent_axis(axes, *padded_limits(*axes.dataLim.intervaly))
    add_grid_lines(axes)
    return ends


def dodged_positions(axes: Axes, positions: Sequence[float], num_steps: float) -> list[float]:
    """These places, a little to the side: so many steps of what separates two methods' bars at the same point."""
    if axes.get_xscale() == "log":
        factor = (max(positions) / min(positions)) ** (DODGE_FRACTION * num_steps)
        return [place * factor for place in positions]
    return [place + DODGE_FRACTION * num_steps * (max(positions) - min(positions)) for place in positions]


def mean_and_error_bars(run_frames: Sequence[pd.DataFrame]) -> tuple[Any, Any]:
    """The mean over seeds of each group, and how far the lowest and the highest lie away."""
    mean = np.array([group.accuracy.mean() for group in run_frames])
    low, high = (np.array([pick(group.accuracy) for group in run_frames]) for pick in (min, max))
    return mean, np.clip([mean - low, high - mean], 0, None)


def draw_public_class_counts(axes: Axes, public_set_group: PublicSetGroup) -> None:
    """A column for each public set, a cell for each class: the darker, the more; with numbers where they fit, else with
    a scale."""
    from matplotlib.ticker import MaxNLocator

    manifests = public_set_manifests(public_set_group)
    if not manifests:
        axes.text(0.5, 0.5, "no run kept\nthe manifest of its shards", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    names = next(iter(manifests.values()))["class_names"]
    table = np.full((len(names), len(public_set_group.groups_by_value)), np.nan)
    for column, manifest in manifests.items():
        table[:, column] = manifest["public"]["class_counts"]
    most = max(np.nanmax(table), 1)
    edges = [np.arange(count + 1) - 0.5 for count in table.shape[::-1]]
    cells = axes.pcolormesh(
        *edges, np.ma.masked_invalid(table), cmap="Greys", vmin=0, vmax=1.15 * most, edgecolor="white"
    )
    step = tick_step(len(names), MAX_CLASS_TICKS)
    axes.set_yticks(np.arange(0, len(names), step), [truncate_name(name) for name in names[::step]])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    seeds = ", ".join(sorted({str(manifest["seed"]) for manifest in manifests.values()}))
    axes.set_title(fill(f"examples by class, shards of seed {seeds}", 40), loc="left")
    if len(names) <= MAX_ANNOTATED_CLASSES and len(public_set_group.groups_by_value) <= MAX_ANNOTATED_CLASSES // 2:
        annotate_counts(axes, table, dark_threshold=0.6 * most)
    else:
        axes.figure.colorbar(cells, ax=axes, ticks=MaxNLocator(5, integer=True))


def annotate_counts(axes: Axes, counts: Any, dark_threshold: float) -> None:
    """The number of examples in each cell."""
    for (row, column), count in np.ndenumerate(counts):
        if np.isfinite(count):
            axes.text(
                column,
                row,
                f"{count:.0f}",
                ha="center",
                va="center",
                color="white" if count > dark_threshold else "black",
            )


def public_set_manifests(public_set_group: PublicSetGroup) -> dict[int, dict[str, Any]]:
    """The manifest of each member's first seed, by the member's place, as far as one counts these classes."""
    found: dict[int, dict[str, Any]] = {}
    for number, setting in enumerate(public_set_group.groups_by_value.values()):
        try:
            manifest = first_valid_manifest(setting)
        except FigureUnavailableError:
            continue
        if manifest["public"]["class_counts"] is None:
            continue
        if not found or len(manifest["class_names"]) == len(next(iter(found.values()))["class_names"]):
            found[number] = manifest
    return found
