"""What the size and the skew of the public set mean for accuracy."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.picture import blank, short
from fedmosaic_cli.report.figures.clients import first_manifest
from fedmosaic_cli.report.figures.evidence import NoFigureError
from fedmosaic_cli.report.figures.labels import End, any_long, label_ends
from fedmosaic_cli.report.figures.style import PAGE_INCHES, entitle, grid_lines, is_strong, looks_of, percent_axis
from fedmosaic_cli.report.settings import title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedmosaic_cli.report.figures.families import Family

NOTE = "Points: mean accuracy of the last round over seeds; bars: lowest to highest seed."
MOST_CLASSES = 40
MOST_NUMBERS = 20


def size_figure(families: Sequence[Family]) -> Figure:
    """Accuracy against the size of the public set, a panel a family."""
    names = [title_of(key) for family in families for key in family.methods]
    across = 1 if len(families) == 1 or any_long(names) else 2
    down = -(-len(families) // across)
    figure = blank(PAGE_INCHES if across > 1 or any_long(names) else 0.75 * PAGE_INCHES, 0.8 + 2.3 * down)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    ends = {}
    for axes, family in zip(panels, families, strict=False):
        sizes = [float(size) for size in family.members]
        if min(sizes) > 0 and max(sizes) > 10 * min(sizes):
            axes.set_xscale("log")
        ends[axes] = draw_methods(axes, family, dict(zip(family.members, sizes, strict=True)))
        axes.set_xticks(sizes, [str(size) for size in family.members])
        axes.minorticks_off()
        axes.set_xlabel("examples in the public set" + (" (log scale)" if axes.get_xscale() == "log" else ""))
        axes.set_title(fill(family.label, 40 if across > 1 else 64), loc="left")
    for axes in panels[len(families) :]:
        axes.remove()
    label_ends(ends)
    entitle(figure, "Accuracy and the size of the public set", NOTE)
    return figure


def skew_figure(families: Sequence[Family]) -> Figure:
    """Accuracy against the skew of the public set's classes, and beside it these classes; a row a family."""
    figure = blank(PAGE_INCHES, 0.8 + sum(row_height(family) for family in families))
    rows = figure.subplots(len(families), 2, squeeze=False, width_ratios=(1, 1))
    ends = {}
    for (axes, classes), family in zip(rows, families, strict=True):
        positions = {alpha: float(number) for number, alpha in enumerate(family.members)}
        ends[axes] = draw_methods(axes, family, positions)
        for panel in (axes, classes):
            panel.set_xticks(list(positions.values()), [alpha_text(alpha) for alpha in positions])
            panel.set_xlabel("skew of the public set: Dirichlet alpha")
        axes.set_xlim(-0.3, len(positions) - 0.7)
        axes.set_title(fill(family.label, 44), loc="left")
        draw_classes(classes, family)
    label_ends(ends)
    entitle(figure, "Accuracy and the skew of the public set", NOTE)
    return figure


def row_height(family: Family) -> float:
    """Inches for the classes one above the other."""
    classes = max((len(manifest["class_names"]) for manifest in manifests_of(family).values()), default=0)
    return max(2.5, 0.8 + 0.17 * min(classes, MOST_CLASSES))


def alpha_text(alpha: float | None) -> str:
    return "balanced" if alpha is None else f"{alpha:g}"


def draw_methods(axes: Axes, family: Family, positions: dict[Any, float]) -> list[End]:
    """A line for each method with a bar at each point, and where the lines end."""
    looks, ends = looks_of(list(family.methods)), []
    for key, by_value in family.methods.items():
        values = [value for value in positions if value in by_value]
        places = [positions[value] for value in values]
        mean, bars = mean_and_bars([by_value[value] for value in values])
        style = {**looks[key].line(), "marker": looks[key].marker or "o"}
        axes.errorbar(places, mean, yerr=bars, **style, capsize=2.5, elinewidth=0.8)
        ends.append(End(places[-1], float(mean[-1]), title_of(key), looks[key].colour, is_strong(key)))
    percent_axis(axes)
    grid_lines(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))
    return ends


def mean_and_bars(groups: Sequence[pd.DataFrame]) -> tuple[Any, Any]:
    """The mean over seeds of each group, and how far the lowest and the highest lie away."""
    mean = np.array([group.accuracy.mean() for group in groups])
    low, high = (np.array([pick(group.accuracy) for group in groups]) for pick in (min, max))
    return mean, np.clip([mean - low, high - mean], 0, None)


def draw_classes(axes: Axes, family: Family) -> None:
    """A column for each public set, a cell for each class: the darker, the more; with numbers where they fit."""
    manifests = manifests_of(family)
    if not manifests:
        axes.text(0.5, 0.5, "no run kept\nthe manifest of its shards", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    names = next(iter(manifests.values()))["class_names"]
    table = np.full((len(names), len(family.members)), np.nan)
    for column, manifest in manifests.items():
        table[:, column] = manifest["public"]["class_counts"]
    most = max(np.nanmax(table), 1)
    edges = [np.arange(count + 1) - 0.5 for count in table.shape[::-1]]
    axes.pcolormesh(*edges, np.ma.masked_invalid(table), cmap="Greys", vmin=0, vmax=1.15 * most, edgecolor="white")
    step = -(-len(names) // MOST_CLASSES)
    axes.set_yticks(np.arange(0, len(names), step), [short(name) for name in names[::step]])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    seeds = ", ".join(sorted({str(manifest["seed"]) for manifest in manifests.values()}))
    axes.set_title(f"examples by class, shards of seed {seeds}", loc="left")
    if len(names) <= MOST_NUMBERS and len(family.members) <= MOST_NUMBERS // 2:
        write_numbers(axes, table, dark=0.6 * most)


def write_numbers(axes: Axes, table: Any, dark: float) -> None:
    """The number of examples in each cell."""
    for (row, column), count in np.ndenumerate(table):
        if np.isfinite(count):
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", color="white" if count > dark else "black")


def manifests_of(family: Family) -> dict[int, dict[str, Any]]:
    """The manifest of each member's first seed, by the member's place, as far as there is one with these classes."""
    found: dict[int, dict[str, Any]] = {}
    for number, setting in enumerate(family.members.values()):
        try:
            manifest = first_manifest(setting)
        except NoFigureError:
            continue
        if not found or len(manifest["class_names"]) == len(next(iter(found.values()))["class_names"]):
            found[number] = manifest
    return found
