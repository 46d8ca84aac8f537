"""The map of regimes: which method is best, by data per client, heterogeneity and size of the public set."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.plots.canvas import add_caption, new_figure
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.regimes import MIN_NAMED_GAIN, Regime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.regimes import RegimeCell, RegimeMap

COLUMN_WIDTH_INCHES = 3.4
"""Width of one column of a two-column page, for a map with one panel."""
MAX_COLUMNS_PER_COLUMN_WIDTH = 4
"""More cells side by side need the width of the page."""
MIN_ONE_LINE_LABEL_INCHES, WIDE_INCHES = 5.0, 7.0
CELL_HEIGHT_INCHES = 0.56
ROW_LABEL_INCHES = 0.75
NAME_SIZE_POINTS, MIN_NAME_SIZE_POINTS, DETAIL_SIZE_POINTS = 7.0, 4.5, 5.8
BOLD_CHAR_ASPECT = 0.64
"""Width of a bold character, as a fraction of the font size."""
# Blue and red are distinct for colour-blind readers. Without its darkest ends, black text is readable everywhere.
COLOR_MAP, DARKEST_FRACTION = "RdBu", 0.56
TEXT_COLOR = "#111111"
"""Not black, which becomes the text colour of the page: cells are light in its dark theme, too."""
MIN_COLOR_RANGE_POINTS = 1.0
HATCH_COLOR, HATCH_MARGINS = "0.55", ((0.015, 0.02), (0.07, 0.09))
NO_RUNS = "\u2013"
COLOR_LABEL = "gain over Local of the best method that shares labels only (points)"
TITLE = "Who should collaborate, and by what"
NOTE = (
    "In a cell: the best method, without Centralized and the oracle, and its gain over Local in percentage points; "
    "below it the gains of the student and of the oracle, which has the true labels of U. Hatched: nothing to gain, "
    f"neither from votes nor from true labels of U, which gain less than {100 * MIN_NAMED_GAIN:g} points. "
    f"{NO_RUNS}: no runs."
)


def regime_map_figure(regime_map: RegimeMap, options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Draw one panel per size of the public set, with heterogeneity as rows and examples per client as columns."""
    sizes, num_columns = regime_map.public_sizes, len(regime_map.example_counts)
    is_narrow = num_columns <= MAX_COLUMNS_PER_COLUMN_WIDTH
    panels_per_line = min(len(sizes), 2 if is_narrow and not options.is_narrow else 1)
    num_lines = -(-len(sizes) // panels_per_line)
    is_single_column = is_narrow and len(sizes) == 1
    width = min(COLUMN_WIDTH_INCHES, options.width_inches) if is_single_column else options.width_inches
    panel_height = CELL_HEIGHT_INCHES * len(regime_map.heterogeneities) + 0.6
    figure = new_figure(width, num_lines * panel_height + 0.65 + caption_height_inches(width, options))
    panels = list(figure.subplots(num_lines, panels_per_line, squeeze=False, sharex=True, sharey=True).flat)
    colors = gain_colors(regime_map)
    cell_width_inches = (width - ROW_LABEL_INCHES) / (panels_per_line * num_columns)
    for number, (axes, public_size) in enumerate(zip(panels, sizes, strict=False)):
        draw_panel(axes, regime_map, public_size, colors, cell_width_inches)
        is_last_of_column = number + panels_per_line >= len(sizes)
        axes.tick_params(labelleft=number % panels_per_line == 0, labelbottom=is_last_of_column)
        axes.set_xlabel("training examples per client" if is_last_of_column else "")
    for axes in panels[len(sizes) :]:
        axes.remove()
    label = fill(COLOR_LABEL, 44) if width < MIN_ONE_LINE_LABEL_INCHES else COLOR_LABEL
    bar = figure.colorbar(colors, ax=panels[: len(sizes)], location="bottom", aspect=45, fraction=0.04, pad=0.03)
    bar.set_label(label)
    lowest, highest = shown_gain_range(regime_map)
    bar.ax.set_xlim(lowest, highest)
    bar.outline.set_visible(False)
    add_caption(figure, options, TITLE, regime_map.label, NOTE)
    return figure


def caption_height_inches(width_inches: float, options: FigureOptions) -> float:
    """Height of title and note."""
    if options.is_paper:
        return 0.0
    return 1.3 if width_inches <= COLUMN_WIDTH_INCHES else 0.75 * WIDE_INCHES / width_inches


def gain_colors(regime_map: RegimeMap) -> ScalarMappable:
    """Colours of gains in points, centred at 0."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    largest = max(map(abs, shown_gain_range(regime_map)))
    ends = 0.5 - DARKEST_FRACTION / 2, 0.5 + DARKEST_FRACTION / 2
    light = ListedColormap(colormaps[COLOR_MAP](np.linspace(*ends, 255)))
    return ScalarMappable(Normalize(-largest, largest), light)


def shown_gain_range(regime_map: RegimeMap) -> tuple[float, float]:
    """The lowest and highest gain in points that colours show; 0 is between them."""
    gains = [100 * gain for cell in regime_map.cells.values() if (gain := cell.label_sharing_gain) is not None]
    return min([0.0, *gains]), max([MIN_COLOR_RANGE_POINTS, *gains])


def draw_panel(
    axes: Axes, regime_map: RegimeMap, public_size: int, colors: ScalarMappable, cell_width_inches: float
) -> None:
    """Draw the cells of one size of the public set."""
    rows, columns = regime_map.heterogeneities, regime_map.example_counts
    for row, heterogeneity in enumerate(rows):
        for column, num_examples in enumerate(columns):
            cell = regime_map.cells.get(Regime(public_size, heterogeneity, num_examples))
            if cell is None:
                axes.text(column, row, NO_RUNS, ha="center", va="center")
            else:
                title = fill(regime_map.short_title(cell.best_key), 12, break_long_words=False)
                draw_cell(axes, cell, (column, row), title, colors, cell_width_inches)
    axes.set_xticks(range(len(columns)), [f"{count:,}" for count in columns])
    axes.set_yticks(range(len(rows)), [heterogeneity.label for heterogeneity in rows])
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"|U| = {public_size:,}", loc="left")


def draw_cell(
    axes: Axes,
    cell: RegimeCell,
    position: tuple[int, int],
    best_title: str,
    colors: ScalarMappable,
    cell_width_inches: float,
) -> None:
    """Draw the colour, the hatching and the texts of one cell."""
    from matplotlib.patches import Rectangle

    (column, row), gain, oracle_gain = position, cell.label_sharing_gain, cell.gain_of("oracle")
    color: Any = "white" if gain is None else colors.to_rgba(np.array(100 * gain))
    axes.add_patch(Rectangle(*inset_rectangle(position), facecolor=color, edgecolor="white", linewidth=1.2))
    if oracle_gain is not None and max(oracle_gain, gain or 0.0) < MIN_NAMED_GAIN:
        hatched, inner = (inset_rectangle(position, margin) for margin in HATCH_MARGINS)
        axes.add_patch(Rectangle(*hatched, fill=False, hatch="//////", edgecolor=HATCH_COLOR, linewidth=0))
        axes.add_patch(Rectangle(*inner, facecolor=color, edgecolor="none"))
    longest = max(map(len, best_title.split("\n")))
    fitting = 72 * 0.94 * cell_width_inches / (BOLD_CHAR_ASPECT * longest)
    lines = (
        (-0.31, best_title, max(MIN_NAME_SIZE_POINTS, min(NAME_SIZE_POINTS, fitting)), "bold"),
        (-0.09, format_points(cell.gains[cell.best_key].mean), NAME_SIZE_POINTS, "normal"),
        (0.13, f"student {format_points(cell.gain_of('student'))}", DETAIL_SIZE_POINTS, "normal"),
        (0.31, f"oracle {format_points(oracle_gain)}", DETAIL_SIZE_POINTS, "normal"),
    )
    for offset, text, size, weight in lines:
        style: dict[str, Any] = {"fontsize": size, "fontweight": weight, "color": TEXT_COLOR}
        axes.text(column, row + offset, text, ha="center", va="center", **style)


def inset_rectangle(
    position: tuple[int, int], margins: tuple[float, float] = (0, 0)
) -> tuple[tuple[float, float], float, float]:
    """Corner, width and height of a cell without margins on the left and right, and at the top and bottom."""
    (column, row), (x, y) = position, margins
    return (column - 0.5 + x, row - 0.5 + y), 1 - 2 * x, 1 - 2 * y


def format_points(gain: float | None) -> str:
    """A gain in percentage points with a typographic sign; a dash without a run."""
    if gain is None:
        return NO_RUNS
    text = f"{100 * gain:+.1f}".replace("-", "\u2212")
    return text[1:] if text[1:] == "0.0" else text
