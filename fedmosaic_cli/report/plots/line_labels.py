"""Names of lines: beside their ends, or in a legend below the figure."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from numpy.typing import NDArray

    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.plots.plot_style import LineStyle

LEGEND_HANDLE_EMS, LEGEND_CHAR_SHARE = 5.7, 0.93
"""Space of a line with its margins in font sizes, and width of an average character relative to a wide one."""
HANDLE_LENGTH_EMS = 4.0
"""Long enough for two repetitions of most dash patterns."""
MAX_EQUAL_NAMES_CHARS = 24
"""Maximum line length in the legend of a name that several methods share."""
OUTER_LABEL_X = 1.05
"""Left edge of the labels beside the axes, as a fraction of the width of the axes."""
MAX_INLINE_NAME_SHARE = 0.36
"""Names that need a larger part of the width leave too little space for the lines beside them."""


@dataclass(frozen=True)
class LineLabel:
    """The end of a line in data coordinates, and the text beside it."""

    x: float
    y: float
    text: str
    style: LineStyle


def draw_line_labels(labels_by_axes: Mapping[Axes, Sequence[LineLabel]], options: FigureOptions) -> None:
    """Write a label beside the axes for each line, in the order of the ends of the lines and without overlaps.

    A thin line connects each end with its label. These lines do not cross, because all lines of the axes end at the
    same x. Call this after axis limits, titles and legends are set.
    """
    groups: list[tuple[Axes, list[tuple[Annotation, float]]]] = []
    for axes, labels in labels_by_axes.items():
        heights = [float((axes.transScale + axes.transLimits).transform((label.x, label.y))[1]) for label in labels]
        groups.append((axes, [(annotate_line_end(axes, label), y) for label, y in zip(labels, heights, strict=True)]))
    for figure in {axes.get_figure(root=True) for axes, _ in groups}:
        if figure is not None:
            figure.draw_without_rendering()  # the height of the axes is known only after the layout
    for axes, group in groups:
        height_inches = axes.get_window_extent().height / axes.figure.dpi
        gap = options.line_height_inches / height_inches
        for (annotation, _), level in zip(group, spread_levels([y for _, y in group], gap), strict=True):
            annotation.set_position((annotation.get_position()[0], level))


def annotate_line_end(axes: Axes, label: LineLabel) -> Annotation:
    """A label beside the axes, with a line to the end that it names."""
    leader = {"arrowstyle": "-", "color": label.style.color, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 2}
    return axes.annotate(
        label.text,
        xy=(label.x, label.y),
        xytext=(OUTER_LABEL_X, 0.5),
        textcoords="axes fraction",
        ha="left",
        va="center",
        color=label.style.text_color,
        annotation_clip=False,
        arrowprops={**leader, "relpos": (0, 0.5)},
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


def needs_legend(names: Iterable[str], options: FigureOptions) -> bool:
    """Whether a name does not fit beside its line, so that the figure needs a legend."""
    longest = max(map(len, names), default=0)
    return options.is_narrow or longest * options.char_inches > MAX_INLINE_NAME_SHARE * options.width_inches


def add_legend_below(
    figure: Figure, styles_by_name: Mapping[str, LineStyle], options: FigureOptions, extra_handles: Sequence[Any] = ()
) -> None:
    """Add a legend of all lines below the figure, and of other handles with labels."""
    from matplotlib.lines import Line2D

    names = [*styles_by_name, *(str(handle.get_label()) for handle in extra_handles)]
    handles = [
        Line2D([], [], **{**style.plot_kwargs(), "markevery": None}, label=legend_label(name, options))
        for name, style in styles_by_name.items()
    ]
    layout: dict[str, Any] = {"loc": "outside lower left", "alignment": "left", "borderaxespad": 0.1}
    spacing: dict[str, Any] = {"columnspacing": 1.2, "handletextpad": 0.5, "labelspacing": 0.25, "borderpad": 0.1}
    figure.legend(
        handles=[*handles, *extra_handles],
        ncols=num_legend_columns(names, options),
        frameon=False,
        handlelength=HANDLE_LENGTH_EMS,
        numpoints=1,
        **layout,
        **spacing,
    )


def legend_label(name: str, options: FigureOptions) -> str:
    """The name with line breaks for the legend; shared names such as `A = B` are broken before an equals sign."""
    first, *others = name.split(" = ")
    lines = [first]
    for other in others:
        if len(lines[-1]) + len(f" = {other}") <= MAX_EQUAL_NAMES_CHARS:
            lines[-1] += f" = {other}"
        else:
            lines.append(f"= {other}")
    return "\n".join(fill(line, legend_width_chars(options)) for line in lines)


def legend_width_chars(options: FigureOptions) -> int:
    """Maximum line length of a name in the legend."""
    return int((options.width_inches - 1.5 * legend_handle_inches(options)) / options.char_inches)


def legend_handle_inches(options: FigureOptions) -> float:
    return LEGEND_HANDLE_EMS * options.font_size / 72


def num_legend_columns(names: Collection[str], options: FigureOptions) -> int:
    """The largest number of legend columns that fit into the figure."""
    lengths = [max(map(len, legend_label(name, options).split("\n"))) for name in names]
    for count in (5, 4, 3, 2):
        widest = [max(column, default=0) for column in np.array_split(lengths, count)]
        text_inches = LEGEND_CHAR_SHARE * options.char_inches * sum(widest)
        if count * legend_handle_inches(options) + text_inches <= options.width_inches:
            return count
    return 1


def legend_height_inches(names: Collection[str], options: FigureOptions) -> float:
    """Height of the legend of these names."""
    counts = [legend_label(name, options).count("\n") + 1 for name in names]
    lines = max(int(sum(column)) for column in np.array_split(counts, num_legend_columns(names, options)))
    return 0.1 + lines * 1.1 * options.line_height_inches
