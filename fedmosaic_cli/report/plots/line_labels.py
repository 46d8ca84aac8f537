"""Labels at the ends of lines, and legends below figures where the names are too long for labels."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.plots.plot_style import FONT_SIZE_POINTS, PAGE_WIDTH_INCHES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from numpy.typing import NDArray

    from fedmosaic_cli.report.plots.plot_style import LineStyle

LINE_HEIGHT_POINTS = 1.25 * FONT_SIZE_POINTS
LEGEND_CHAR_INCHES, LEGEND_HANDLE_INCHES = 0.063, 0.75
OUTER_LABEL_X = 1.025
"""Left edge of the labels beside the axes, as a fraction of the width of the axes."""
MAX_INNER_END_X = 0.55
"""Lines that end left of this fraction of the axes have their label inside the axes."""
LABEL_OFFSET = 0.025
"""Distance between the end of a line and a label inside the axes."""
MAX_INLINE_NAME_CHARS = 26
"""Longer names leave too little space for the lines beside them."""
LEGEND_WIDTH_CHARS = 90
"""Maximum line length of a name in the legend."""


@dataclass(frozen=True)
class LineLabel:
    """The end of a line in data coordinates, the label text, and the shorter text for figures with a legend."""

    x: float
    y: float
    text: str
    color: str
    is_highlighted: bool = False
    value: str = ""


def draw_line_labels(labels_by_axes: Mapping[Axes, Sequence[LineLabel]], values_only: bool = False) -> None:
    """Write a label for each line, without overlaps.

    Labels are beside the axes, or beside the end of the line if the line ends far from the right edge. A thin line
    connects each end with its label. Call this after axis limits, titles and legends are set.

    Args:
        labels_by_axes: The labels of each set of axes.
        values_only: Write the values instead of the texts.
    """
    groups: list[tuple[Axes, list[tuple[Annotation, float]]]] = []
    for axes, labels in labels_by_axes.items():
        inner: list[tuple[Annotation, float]] = []
        outer: list[tuple[Annotation, float]] = []
        for label in labels:
            x, y = (axes.transScale + axes.transLimits).transform((label.x, label.y))
            is_inner = x < MAX_INNER_END_X
            annotation = annotate_line_end(
                axes, label, x + LABEL_OFFSET if is_inner else OUTER_LABEL_X, label.value if values_only else label.text
            )
            (inner if is_inner else outer).append((annotation, y))
        groups += [(axes, group) for group in (inner, outer) if group]
    for figure in {axes.get_figure(root=True) for axes, _ in groups}:
        if figure is not None:
            figure.draw_without_rendering()  # the height of the axes is known only after the layout
    for axes, group in groups:
        gap = LINE_HEIGHT_POINTS * axes.figure.dpi / 72 / axes.get_window_extent().height
        for (annotation, _), level in zip(group, spread_levels([y for _, y in group], gap), strict=True):
            annotation.set_position((annotation.get_position()[0], level))


def annotate_line_end(axes: Axes, label: LineLabel, text_x: float, text: str) -> Annotation:
    """A label that starts at `text_x`, as a fraction of the axes, with a line to the end that it names."""
    leader = {"arrowstyle": "-", "color": label.color, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 2}
    return axes.annotate(
        text,
        xy=(label.x, label.y),
        xytext=(text_x, 0.5),
        textcoords="axes fraction",
        ha="left",
        va="center",
        color=label.color,
        fontsize=FONT_SIZE_POINTS,
        fontweight="bold" if label.is_highlighted else "normal",
        annotation_clip=False,
        arrowprops={**leader, "relpos": (0, 0.5)},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5},
        zorder=11,  # above all lines
    )


def spread_levels(targets: Sequence[float] | NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Levels in [0, 1] at least `gap` apart, in the order of `targets` and close to them.

    The result is the mean of two solutions: one moves labels only up, the other only down. If the labels do not fit,
    they extend beyond both ends equally.
    """
    values = np.asarray(targets, dtype=float)
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    shifted = values[order] - steps
    starts = (np.maximum.accumulate(shifted) + np.minimum.accumulate(shifted[::-1])[::-1]) / 2
    free = 1 - gap * (len(values) - 1)
    levels = np.empty(len(values))
    levels[order] = np.clip(starts, min(0.0, free / 2), max(free, free / 2)) + steps
    return levels


def has_long_name(names: Iterable[str]) -> bool:
    """Whether a name is too long for a label, so that the figure needs a legend."""
    return any(len(name) > MAX_INLINE_NAME_CHARS for name in names)


def add_legend_below(figure: Figure, styles_by_name: Mapping[str, LineStyle]) -> None:
    """Add a legend of all lines below the figure."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **style.plot_kwargs(), label=fill(name, LEGEND_WIDTH_CHARS))
        for name, style in styles_by_name.items()
    ]
    layout: dict[str, Any] = {"loc": "outside lower left", "alignment": "left"}
    figure.legend(handles=handles, ncols=num_legend_columns(styles_by_name), frameon=False, handlelength=4, **layout)


def num_legend_columns(names: Collection[str]) -> int:
    """The largest number of legend columns that fit on a page."""
    lengths = [min(len(name), LEGEND_WIDTH_CHARS) for name in names]
    for count in (4, 3, 2):
        widest = [max(column, default=0) for column in np.array_split(lengths, count)]
        if count * LEGEND_HANDLE_INCHES + LEGEND_CHAR_INCHES * sum(widest) <= PAGE_WIDTH_INCHES:
            return count
    return 1


def legend_height_inches(names: Collection[str]) -> float:
    lines = sum(-(-len(name) // LEGEND_WIDTH_CHARS) for name in names)
    return 0.1 + -(-lines // num_legend_columns(names)) * 1.2 * LINE_HEIGHT_POINTS / 72
