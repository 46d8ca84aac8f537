"""Names at the ends of lines, moved apart where they would lie on each other; below the figure where they are long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.plots.plot_style import FONT_SIZE_POINTS, PAGE_WIDTH_INCHES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation
    from numpy.typing import NDArray

    from fedmosaic_cli.report.plots.plot_style import LineStyle

    Levels = NDArray[np.float64]
    Points = NDArray[np.float64]

LINE_HEIGHT_POINTS = 1.25 * FONT_SIZE_POINTS
LEGEND_CHAR_INCHES, LEGEND_HANDLE_INCHES = 0.063, 0.75
OUTER_LABEL_X = 1.025
"""Where names beside the axes begin, as a fraction of their width."""
LABEL_OFFSET = 0.02
"""How far a name stands from the end of its line, where it stands inside the axes."""


MAX_INLINE_NAME_CHARS = 26
"""Names with more letters leave no room for lines beside them."""
LEGEND_WIDTH_CHARS = 90
"""Of a name below the figure, in a line."""


@dataclass(frozen=True)
class LineLabel:
    """Where a line ends, in its data's terms, how it is called, and what is written where its name stands elsewhere."""

    x: float
    y: float
    text: str
    color: str
    is_highlighted: bool = False
    value: str = ""


def draw_line_labels(labels_by_axes: Mapping[Axes, Sequence[LineLabel]], values_only: bool = False) -> None:
    """Write all names, or their values alone: beside the axes, or near to ends that lie far left of the others.

    A thin line leads from each end to its name. The limits of the axes must stand by now, and titles and keys.
    """
    if values_only:
        labels_by_axes = {axes: [replace(end, text=end.value) for end in ends] for axes, ends in labels_by_axes.items()}
    tried = {
        axes: [annotate_line_end(axes, end, (OUTER_LABEL_X, 0.5)) for end in ends]
        for axes, ends in labels_by_axes.items()
        if ends
    }
    for figure in {axes.get_figure(root=True) for axes in tried}:
        if figure is not None:
            figure.draw_without_rendering()  # only now is it known how much room there is
    for axes, names in tried.items():
        place_labels(axes, labels_by_axes[axes], names)


def has_long_name(names: Iterable[str]) -> bool:
    """Whether names should rather stand below the figure."""
    return any(len(name) > MAX_INLINE_NAME_CHARS for name in names)


def add_legend_below(figure: Figure, styles_by_name: Mapping[str, LineStyle]) -> None:
    """What the lines of all panels are called, below them."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **look.plot_kwargs(), label=fill(name, LEGEND_WIDTH_CHARS))
        for name, look in styles_by_name.items()
    ]
    place: dict[str, Any] = {
        "loc": "outside lower left",
        "ncols": num_legend_columns(styles_by_name),
        "alignment": "left",
    }
    figure.legend(handles=handles, frameon=False, handlelength=4, **place)


def num_legend_columns(names: Collection[str]) -> int:
    """In how many columns, filled one after the other, these names fit on a page."""
    letters = [min(len(name), LEGEND_WIDTH_CHARS) for name in names]
    for count in (4, 3, 2):
        columns = np.array_split(letters, count)
        if (
            sum(LEGEND_HANDLE_INCHES + LEGEND_CHAR_INCHES * max(column, default=0) for column in columns)
            <= PAGE_WIDTH_INCHES
        ):
            return count
    return 1


def legend_height_inches(names: Collection[str]) -> float:
    """How high the key is."""
    lines = sum(-(-len(name) // LEGEND_WIDTH_CHARS) for name in names)
    return 0.1 + -(-lines // num_legend_columns(names)) * 1.2 * LINE_HEIGHT_POINTS / 72


def annotate_line_end(
    axes: Axes, label: LineLabel, position: tuple[float, float], align_right: bool = False
) -> Annotation:
    """The name at a position in fractions of the axes, which is its left end, or its right end with `on_the_left`."""
    line = {"arrowstyle": "-", "color": label.color, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 2}
    return axes.annotate(
        label.text,
        xy=(label.x, label.y),
        xytext=position,
        textcoords="axes fraction",
        ha="right" if align_right else "left",
        va="center",
        color=label.color,
        fontsize=FONT_SIZE_POINTS,
        fontweight="bold" if label.is_highlighted else "normal",
        annotation_clip=False,
        arrowprops={**line, "relpos": (1 if align_right else 0, 0.5)},
        zorder=10,
    )


def place_labels(axes: Axes, labels: Sequence[LineLabel], trial_annotations: Sequence[Annotation]) -> None:
    """Write the names anew where they do not lie on each other, group by group."""
    from matplotlib.text import Text

    box = axes.get_window_extent()
    gap = LINE_HEIGHT_POINTS * axes.figure.dpi / 72 / box.height
    # The text's own width: the line that leads to it counts as a part of an annotation.
    widths = np.array([Text.get_window_extent(name).width for name in trial_annotations]) / box.width
    for name in trial_annotations:
        name.remove()
    places = to_axes_fraction(axes, [(end.x, end.y) for end in labels])
    *inner, outer = horizontal_groups(places[:, 0], widths + 2 * LABEL_OFFSET)
    for number, level in zip(outer, spread_levels(places[outer, 1], gap), strict=True):
        annotate_line_end(axes, labels[number], (OUTER_LABEL_X, level))
    in_the_way = np.concatenate([points_along_line(axes, line) for line in axes.lines if inner] or [places])
    for number in sorted(chain.from_iterable(inner), key=lambda number: not labels[number].is_highlighted):
        size = float(widths[number]), gap
        corner, left = least_crowded_position(in_the_way, places[number], size)
        start = corner[0] + size[0] * left, corner[1]
        annotate_line_end(axes, labels[number], start, left)
        in_the_way = np.concatenate([in_the_way, points_in_box(corner, size), np.linspace(start, places[number], 40)])


def least_crowded_position(
    obstacles: Points, line_end: Points, size: tuple[float, float]
) -> tuple[tuple[float, float], bool]:
    """Where the left end of a name goes, and whether that is left of the line's end rather than right of it.

    It hides as little as possible of what lies in the way, itself or by the line that leads to it, and is not far.
    """
    best, cheapest = ((float(line_end[0]) + LABEL_OFFSET, float(line_end[1])), False), np.inf
    reach = np.array([size[0] + 2 * LABEL_OFFSET, 13 * size[1]])
    obstacles = obstacles[np.all(np.abs(obstacles - line_end) < reach, axis=1)]
    for left, start in ((False, line_end[0] + LABEL_OFFSET), (True, line_end[0] - size[0] - LABEL_OFFSET)):
        for step in range(-24, 25):
            corner = float(start), float(line_end[1] + step * size[1] / 2)
            inside = start > 0 and size[1] / 2 < corner[1] < 1
            lead = np.linspace(line_end, (corner[0] + size[0] * left, corner[1]), 40)[5:-5]
            crossed = sum(bool(np.any(np.hypot(*(obstacles - point).T) < 0.01)) for point in lead)
            cost = num_covered_points(obstacles, corner, size) + crossed + abs(step) + left if inside else np.inf
            if cost < cheapest:
                best, cheapest = (corner, left), cost
    return best


def num_covered_points(points: Points, corner: tuple[float, float], size: tuple[float, float]) -> int:
    """How many of these points lie below a name."""
    across = (points[:, 0] > corner[0]) & (points[:, 0] < corner[0] + size[0])
    return int(np.sum(across & (np.abs(points[:, 1] - corner[1]) < 0.6 * size[1])))


def points_in_box(corner: tuple[float, float], size: tuple[float, float]) -> Points:
    """Points all over a name, so that no other is written onto it."""
    across = np.linspace(corner[0], corner[0] + size[0], 50)
    return np.array([(x, corner[1] + shift * size[1]) for x in across for shift in (-0.45, 0, 0.45)])


def points_along_line(axes: Axes, line: Line2D) -> Points:
    """Points along a line as it is drawn, as fractions of the axes, so dense that no text fits between two of them."""
    corners: Points = axes.transAxes.inverted().transform(line.get_transform().transform(line.get_xydata()))
    corners = corners[np.isfinite(corners).all(axis=1)]
    lengths = np.hypot(*np.diff(corners, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    where = np.linspace(0, along[-1], 2 + int(200 * along[-1]))
    return np.stack([np.interp(where, along, corners[:, axis]) for axis in (0, 1)], axis=1)


def to_axes_fraction(axes: Axes, points: Sequence[tuple[float, float]]) -> Points:
    """Points of the data as fractions of the axes."""
    fractions: Points = axes.transAxes.inverted().transform(axes.transData.transform(points))
    return fractions


def horizontal_groups(positions: Levels, widths: Levels) -> list[list[int]]:
    """Groups from left to right, such that the names of each have room before the next one begins."""
    groups: list[list[int]] = []
    for position in map(int, np.argsort(positions, kind="stable")):
        before = groups[-1] if groups else []
        if not before or positions[position] - positions[before[-1]] >= widths[before].max():
            groups.append([])
        groups[-1].append(position)
    return groups


def spread_levels(targets: Sequence[float] | Levels, gap: float) -> Levels:
    """Levels in [0, 1] that lie at least `gap` apart, in the same order, as near to the wanted ones as can be.

    Least squares: neighbours that would lie on each other form a block around their mean. Where there is no room for
    all of them, they go beyond both ends alike.
    """
    values = np.asarray(targets, dtype=float)
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    blocks: list[tuple[float, int]] = []
    for value in values[order] - steps:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (mean * count + before * many) / (count + many), count + many
        blocks.append((mean, count))
    starts = np.repeat([mean for mean, _ in blocks], [count for _, count in blocks])
    room = 1 - gap * (len(values) - 1)
    starts = np.clip(starts, min(0.0, room / 2), max(room, room / 2))
    levels = np.empty(len(values))
    levels[order] = starts + steps
    return levels
