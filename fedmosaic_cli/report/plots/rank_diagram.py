"""The critical-difference diagram (Demsar, JMLR 2006): average ranks, and groups without a significant difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.plots.canvas import add_caption, new_figure, new_figure_with_axes, note_height_inches
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.statistics import MethodRanking

ROW_HEIGHT_INCHES = 0.17
MAX_METHOD_NAME_CHARS = 40
CLIQUE_WIDTH = 3
"""Width of the bars that join methods, in points."""


def critical_difference_figure(ranking: MethodRanking, options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Average ranks with rank 1 on the right; bars join methods within one critical difference."""
    settings = len(ranking.settings)
    note = (
        f"Average ranks over {settings} setting{'s' * (settings != 1)}, 1 is best. "
        "A bar joins methods whose ranks differ by at most the critical difference (CD)."
    )
    draw = list_of_ranks if options.is_narrow else branching_diagram
    figure = draw(ranking, options, note_height_inches(options, note))
    add_caption(figure, options, "average ranks and critical difference", note=note)
    return figure


def list_of_ranks(ranking: MethodRanking, options: FigureOptions, extra_height: float) -> Figure:
    """One line per method with a dot at its rank, and the bars beside the lines, for narrow figures."""
    names = sorted(ranking.ranks, key=lambda name: (ranking.ranks[name], name))
    ranks = [ranking.ranks[name] for name in names]
    bars = cliques(ranks, ranking.critical_difference)
    height = 0.6 + 1.1 * options.line_height_inches * len(names) + extra_height
    figure, axes = new_figure_with_axes(options.width_inches, height)
    axes.plot(ranks, range(len(names)), color="black", marker="o", markersize=3.5, linestyle="none")
    axes.set_yticks(range(len(names)), [shorten(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    highest = max(len(names), *ranks)
    axes.set_xlim(0.8, highest + 0.5 + 0.4 * len(bars))
    axes.set_xticks(range(1, int(highest) + 1, 1 if highest < 12 else 2))
    for number, (low, high) in enumerate(bars):
        rows = [row for row, rank in enumerate(ranks) if low <= rank <= high]
        x = highest + 0.5 + 0.4 * number
        ends = [rows[0] - 0.25, rows[-1] + 0.25]
        axes.plot([x, x], ends, color="black", linewidth=CLIQUE_WIDTH, solid_capstyle="butt")
    axes.set_xlabel(f"average rank (CD = {ranking.critical_difference:.2f})")
    return figure


def branching_diagram(ranking: MethodRanking, options: FigureOptions, extra_height: float) -> Figure:
    """The diagram of Demsar, with names on both sides."""
    ranks, critical_difference = ranking.ranks, ranking.critical_difference
    names = sorted(ranks, key=lambda name: (ranks[name], name))
    bars = cliques([ranks[name] for name in names], critical_difference)
    rows = (len(names) + 1) // 2
    top, first_label = 3.0, 4.2 + 0.55 * len(bars)
    height = first_label + 1.1 * rows + 0.5
    figure = new_figure(options.width_inches, height * ROW_HEIGHT_INCHES + 0.1 + extra_height)
    axes = figure.add_subplot()
    axes.axis("off")
    margin = margin_fraction(names, options)
    highest = max(len(names), *ranks.values())
    axes.set_xlim(highest + margin * (highest - 1), 1 - margin * (highest - 1))
    axes.set_ylim(height, 0)
    draw_rank_axis(axes, top, highest, critical_difference)
    for number, (low, high) in enumerate(bars):
        level = top + 0.7 + 0.55 * number
        overhang = 0.006 * (highest - 1)
        axes.plot(
            [low - overhang, high + overhang],
            [level, level],
            color="black",
            linewidth=CLIQUE_WIDTH,
            solid_capstyle="butt",
        )
    half = len(names) // 2
    for side, group in ((-1, names[: len(names) - half]), (1, names[::-1][:half])):
        edge = 1 if side < 0 else highest
        for row, name in enumerate(group):
            # Half a row lower on one side, so that two lines of equal rank remain distinct.
            level = first_label + 1.1 * row + 0.55 * (side > 0)
            draw_rank_line(axes, name, ranks[name], (edge, top, level), side, margin * (highest - 1))
    return figure


def margin_fraction(names: Sequence[str], options: FigureOptions) -> float:
    """Width of the longest name on either side, as a fraction of the rank axis."""
    inches = (max(len(shorten(name)) for name in names) + 6) * 1.04 * options.char_inches
    return inches / max(options.width_inches - 0.3 - 2 * inches, 0.2 * options.width_inches)


def shorten(name: str) -> str:
    return name if len(name) <= MAX_METHOD_NAME_CHARS else name[: MAX_METHOD_NAME_CHARS - 1] + "…"


def draw_rank_axis(axes: Axes, top: float, max_rank: float, critical_difference: float) -> None:
    """Draw the rank axis and, above it, the critical difference as a scale bar."""
    axes.plot([1, max_rank], [top, top], color="black", linewidth=0.8)
    for rank in range(1, int(max_rank) + 1):
        axes.plot([rank, rank], [top - 0.35, top], color="black", linewidth=0.8)
        axes.text(rank, top - 0.5, str(rank), ha="center", va="bottom")
    ends = [max_rank, max_rank - critical_difference]
    axes.plot(ends, [0.9, 0.9], color="black", linewidth=1.2, marker="|", markersize=6)
    axes.text(max_rank - critical_difference / 2, 0.6, f"CD = {critical_difference:.2f}", ha="center", va="bottom")


def draw_rank_line(
    axes: Axes, name: str, rank: float, edge_top_level: tuple[float, float, float], side: int, margin: float
) -> None:
    """Draw a line from the rank to the name of a method, with the rank beside the name."""
    edge, top, level = edge_top_level
    outside = edge + side * 0.04 * margin
    axes.plot([rank, rank, outside], [top, level, level], color="black", linewidth=0.7, solid_joinstyle="miter")
    label = f"{rank:.2f}  {shorten(name)}" if side < 0 else f"{shorten(name)}  {rank:.2f}"
    axes.text(edge + side * 0.08 * margin, level, label, ha="left" if side < 0 else "right", va="center")


def cliques(ranks: Sequence[float], critical_difference: float) -> list[tuple[float, float]]:
    """The maximal groups of sorted ranks that span at most the critical difference, as (lowest, highest)."""
    groups: list[tuple[float, float]] = []
    last_end = 0
    for start, low in enumerate(ranks):
        end = max(position for position, rank in enumerate(ranks) if rank - low <= critical_difference)
        if end > start and end > last_end:
            groups.append((low, ranks[end]))
            last_end = end
    return groups
