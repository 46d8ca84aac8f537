"""The critical-difference diagram (Demsar, JMLR 2006): average ranks on a line, and who cannot be told apart."""

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
    """The diagram. The best rank, 1, is at the right; a bar joins methods that differ by less than matters."""
    ranks, width, settings = ranking.ranks, ranking.critical_difference, len(ranking.settings)
    names = sorted(ranks, key=lambda name: (ranks[name], name))
    bars = cliques([ranks[name] for name in names], width)
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
    draw_rank_axis(axes, top, highest, width)
    for number, (low, high) in enumerate(bars):
        level = top + 0.7 + 0.55 * number
        reach = 0.006 * (highest - 1)
        axes.plot([low - reach, high + reach], [level, level], color="black", linewidth=3, solid_capstyle="butt")
    half = len(names) // 2
    for side, group in ((-1, names[: len(names) - half]), (1, names[::-1][:half])):
        edge = 1 if side < 0 else highest
        for row, name in enumerate(group):
            # Half a row lower on one side: else two lines of one rank would look like one line.
            level = first_label + 1.1 * row + 0.55 * (side > 0)
            draw_rank_line(axes, name, ranks[name], (edge, top, level), side, margin * (highest - 1))
    note = (
        f"Average ranks over {settings} setting{'s' * (settings != 1)}, 1 is best. "
        "Methods joined by a bar lie within one critical difference (CD) of each other."
    )
    add_title_and_note(figure, title, note)
    return figure


def margin_fraction(names: Sequence[str]) -> float:
    """Room for the longest name on either side, in lengths of the scale."""
    letters = min(max(map(len, names)), MAX_METHOD_NAME_CHARS) + 6
    inches = letters * RANK_CHAR_INCHES
    return inches / (PAGE_WIDTH_INCHES - 0.3 - 2 * inches)


def draw_rank_axis(axes: Axes, top: float, max_rank: float, critical_difference: float) -> None:
    """The line of ranks with its numbers, and above it the length of the critical difference."""
    axes.plot([1, max_rank], [top, top], color="black", linewidth=0.8)
    for rank in range(1, int(max_rank) + 1):
        axes.plot([rank, rank], [top - 0.35, top], color="black", linewidth=0.8)
        axes.text(rank, top - 0.5, str(rank), ha="center", va="bottom")
    start = max_rank
    axes.plot([start, start - critical_difference], [0.9, 0.9], color="black", linewidth=1.2, marker="|", markersize=6)
    axes.text(start - critical_difference / 2, 0.6, f"CD = {critical_difference:.2f}", ha="center", va="bottom")


def draw_rank_line(
    axes: Axes, name: str, rank: float, edge_top_level: tuple[float, float, float], side: int, margin: float
) -> None:
    """A line from the rank down and out to the name, with the rank beside it."""
    edge, top, level = edge_top_level
    strong = name.startswith(HIGHLIGHTED_TITLES)
    outside = edge + side * 0.04 * margin
    width = 1.4 if strong else 0.7
    axes.plot([rank, rank, outside], [top, level, level], color="black", linewidth=width, solid_joinstyle="miter")
    text = name if len(name) <= MAX_METHOD_NAME_CHARS else name[: MAX_METHOD_NAME_CHARS - 1] + "…"
    words = f"{rank:.2f}  {text}" if side < 0 else f"{text}  {rank:.2f}"
    weight = "bold" if strong else "normal"
    axes.text(
        edge + side * 0.08 * margin, level, words, ha="left" if side < 0 else "right", va="center", fontweight=weight
    )


def cliques(ranks: Sequence[float], critical_difference: float) -> list[tuple[float, float]]:
    """The longest runs of sorted ranks of which no two are more than `width` apart, none inside another."""
    found: list[tuple[float, float]] = []
    reached = 0
    for start, low in enumerate(ranks):
        end = max(position for position, rank in enumerate(ranks) if rank - low <= critical_difference)
        if end > start and end > reached:
            found.append((low, ranks[end]))
            reached = end
    return found
