"""The critical-difference diagram (Demsar, JMLR 2006): average ranks, and groups without a significant difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.plot_style import HIGHLIGHTED_TITLES, PAGE_WIDTH_INCHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedmosaic_cli.report.statistics import MethodRanking

ROW_HEIGHT_INCHES = 0.17
RANK_CHAR_INCHES = 0.066
MAX_METHOD_NAME_CHARS = 40


def critical_difference_figure(ranking: MethodRanking, title: str = "Average ranks and critical difference") -> Figure:
    """Average ranks with rank 1 on the right; bars join methods within one critical difference."""
    ranks, critical_difference, settings = ranking.ranks, ranking.critical_difference, len(ranking.settings)
    names = sorted(ranks, key=lambda name: (ranks[name], name))
    bars = cliques([ranks[name] for name in names], critical_difference)
    rows = (len(names) + 1) // 2
    top, first_label = 3.0, 4.2 + 0.55 * len(bars)
    height = first_label + 1.1 * rows + 0.5
    figure = new_figure(PAGE_WIDTH_INCHES, height * ROW_HEIGHT_INCHES + 0.6)
    axes = figure.add_subplot()
    axes.axis("off")
    margin = margin_fraction(names)
    highest = max(len(names), *ranks.values())
    axes.set_xlim(highest + margin * (highest - 1), 1 - margin * (highest - 1))
    axes.set_ylim(height, 0)
    draw_rank_axis(axes, top, highest, critical_difference)
    for number, (low, high) in enumerate(bars):
        level = top + 0.7 + 0.55 * number
        overhang = 0.006 * (highest - 1)
        axes.plot([low - overhang, high + overhang], [level, level], color="black", linewidth=3, solid_capstyle="butt")
    half = len(names) // 2
    for side, group in ((-1, names[: len(names) - half]), (1, names[::-1][:half])):
        edge = 1 if side < 0 else highest
        for row, name in enumerate(group):
            # Half a row lower on one side, so that two lines of equal rank remain distinct.
            level = first_label + 1.1 * row + 0.55 * (side > 0)
            draw_rank_line(axes, name, ranks[name], (edge, top, level), side, margin * (highest - 1))
    note = (
        f"Average ranks over {settings} setting{'s' * (settings != 1)}, 1 is best. "
        "A bar joins methods whose ranks differ by at most the critical difference (CD)."
    )
    add_title_and_note(figure, title, note)
    return figure


def margin_fraction(names: Sequence[str]) -> float:
    """Width of the longest name on either side, as a fraction of the rank axis."""
    inches = (min(max(map(len, names)), MAX_METHOD_NAME_CHARS) + 6) * RANK_CHAR_INCHES
    return inches / (PAGE_WIDTH_INCHES - 0.3 - 2 * inches)


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
    is_highlighted = name.startswith(HIGHLIGHTED_TITLES)
    outside = edge + side * 0.04 * margin
    width = 1.4 if is_highlighted else 0.7
    axes.plot([rank, rank, outside], [top, level, level], color="black", linewidth=width, solid_joinstyle="miter")
    text = name if len(name) <= MAX_METHOD_NAME_CHARS else name[: MAX_METHOD_NAME_CHARS - 1] + "…"
    label = f"{rank:.2f}  {text}" if side < 0 else f"{text}  {rank:.2f}"
    weight = "bold" if is_highlighted else "normal"
    align = "left" if side < 0 else "right"
    axes.text(edge + side * 0.08 * margin, level, label, ha=align, va="center", fontweight=weight)


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
