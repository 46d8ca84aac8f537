"""Plots of a partition: examples per client and class, and the classes of the public set.

Dots with an area proportional to the count, if each dot has enough space; otherwise a heat map. `fedmosaic partition`
and `fedmosaic report` draw them with the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.plots.canvas import add_caption, new_figure_with_axes, note_height_inches, render_figure
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.plots.plot_style import use_plot_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.plots.canvas import Caption
    from fedmosaic_cli.report.plots.figure_options import FigureOptions

COUNTED_EXAMPLES_NOTE = "All examples of a client are counted: those for training, validation and testing."
MIN_DOT_CELL_INCHES = 0.115
MAX_CELL_INCHES = 0.3
MAX_DOT_CLASSES = 30
MAX_HEIGHT_INCHES, MAX_HEIGHT_PER_WIDTH = 8.0, 1.5
MAX_CLASS_NAME_CHARS = 20
MAX_LABELLED_BARS = 20
DOT_COLOR = "#2F6690"
COLOR_MAP = "Blues"
BAR_COLOR = "0.75"


def render_class_counts(
    counts: Sequence[Sequence[int]],
    class_names: Sequence[str],
    caption: Caption,
    domains: Sequence[str | None] = (),
    options: FigureOptions = DEFAULT_OPTIONS,
) -> dict[str, bytes]:
    """Files of the plot of `counts` [clients, classes]; `domains` are the domains of the clients, if any."""
    with use_plot_style(options):
        return render_figure(class_counts_figure(counts, class_names, caption, domains, options), options.formats)


def render_public_class_counts(
    counts: Sequence[int], class_names: Sequence[str], caption: Caption, options: FigureOptions = DEFAULT_OPTIONS
) -> dict[str, bytes]:
    """Files of the plot of the class counts of the public set."""
    with use_plot_style(options):
        return render_figure(public_class_counts_figure(counts, class_names, caption, options), options.formats)


def class_counts_figure(
    counts: Sequence[Sequence[int]],
    class_names: Sequence[str],
    caption: Caption,
    domains: Sequence[str | None] = (),
    options: FigureOptions = DEFAULT_OPTIONS,
) -> Figure:
    """Dots or a heat map of `counts` [clients, classes]."""
    table = np.asarray(counts)
    clients, classes = table.shape
    names = [truncate_name(name) for name in class_names]
    width = axes_width_inches(names, options)
    spans, is_vertical = domain_spans([name or "" for name in domains], width, options)
    longest = max((len(name) for _, _, name in spans), default=0)
    above = longest * options.char_inches if is_vertical else options.line_height_inches * bool(spans)
    cell = width / clients
    if cell >= MIN_DOT_CELL_INCHES and classes <= MAX_DOT_CLASSES:
        figure = dot_matrix(table, names, min(cell, MAX_CELL_INCHES), caption, options, above)
    else:
        figure = heatmap(table, names, caption, options, above)
    draw_domain_labels(figure.axes[0], spans, is_vertical)
    add_caption(figure, options, *caption)
    return figure


def axes_width_inches(class_names: Sequence[str], options: FigureOptions) -> float:
    """Width of the cells of all clients: what class names and legend leave of the figure."""
    longest = max(map(len, class_names), default=0)
    return options.width_inches - options.char_inches * (longest + 8) - 0.35


def public_class_counts_figure(
    counts: Sequence[int], class_names: Sequence[str], caption: Caption, options: FigureOptions = DEFAULT_OPTIONS
) -> Figure:
    """Bars of the class counts of the public set."""
    width = min(0.9 + 0.42 * max(len(counts), 8), options.width_inches)
    # A narrow figure would cut the title, so only the style of a paper has one.
    width = width if options.is_paper else options.width_inches
    height = (1.5 if options.is_narrow else 1.9) + note_height_inches(options, caption.note)
    figure, axes = new_figure_with_axes(width, height)
    positions = np.arange(len(counts))
    bars = axes.bar(positions, counts, color=BAR_COLOR, width=0.8)
    if len(counts) <= MAX_LABELLED_BARS:
        axes.bar_label(bars, padding=1)
    axes.set(xlabel="class", ylabel="examples")
    axes.margins(y=0.14)
    axes.locator_params(axis="y", integer=True, nbins=5)
    set_class_ticks(axes, class_names, 0.85 * width, options)
    add_caption(figure, options, *caption)
    return figure


def dot_matrix(
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    cell: float,
    caption: Caption,
    options: FigureOptions,
    inches_above: float = 0.0,
) -> Figure:
    """One dot per client and class, with an area proportional to the count; `cell` is the space of a dot in inches."""
    clients, classes = counts.shape
    row = min(max(cell, options.line_height_inches), max_height_inches(options) / classes)
    height = row * max(classes, 4) + 0.5 + inches_above + note_height_inches(options, caption.note)
    figure, axes = new_figure_with_axes(options.width_inches, height)
    largest_area = (72 * 0.9 * min(cell, row)) ** 2
    client, number = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    largest = max(int(counts.max(initial=0)), 1)
    style: dict[str, Any] = {"color": DOT_COLOR, "linewidth": 0}
    axes.scatter(client, number, s=largest_area * counts / largest, clip_on=False, zorder=3, **style)
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(-0.6, classes - 0.4))
    set_client_and_class_axes(axes, counts.shape, class_names, classes, options)
    axes.set_axisbelow(True)
    axes.grid(color="0.92", linewidth=0.5)
    axes.spines[:].set_visible(False)
    # The legend shows dots with their counts.
    for value in dict.fromkeys((largest, max(largest // 2, 1), max(largest // 8, 1))):
        axes.scatter([], [], s=largest_area * value / largest, label=str(value), **style)
    dot_ems = np.sqrt(largest_area) / options.font_size
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "borderaxespad": 0.2}
    spacing: dict[str, Any] = {"handlelength": dot_ems, "handletextpad": 0.5, "labelspacing": max(0.4, 0.7 * dot_ems)}
    axes.legend(title="examples", frameon=False, **beside, **spacing)
    return figure


def heatmap(
    counts: NDArray[np.int64],
    class_names: Sequence[str],
    caption: Caption,
    options: FigureOptions,
    inches_above: float = 0.0,
) -> Figure:
    """One cell per client and class; darker cells have more examples. Only some of many class names are shown."""
    from matplotlib.ticker import MaxNLocator

    classes = counts.shape[1]
    row = min(options.line_height_inches, max_height_inches(options) / classes)
    height = row * max(classes, 8) + 0.5
    figure, axes = new_figure_with_axes(
        options.width_inches, height + inches_above + note_height_inches(options, caption.note)
    )
    highest = max(int(counts.max(initial=0)), 1)
    image = axes.imshow(counts.T, cmap=COLOR_MAP, vmin=0, vmax=highest, aspect="auto", interpolation_stage="data")
    axes.invert_yaxis()
    set_client_and_class_axes(axes, counts.shape, class_names, int(height / options.line_height_inches) - 2, options)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, label="examples", aspect=max(15, 5 * height), ticks=MaxNLocator(4, integer=True))
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("0.7")
    return figure


def max_height_inches(options: FigureOptions) -> float:
    """The largest height of the cells of all classes."""
    return min(MAX_HEIGHT_INCHES, MAX_HEIGHT_PER_WIDTH * options.width_inches) - 0.5


def set_client_and_class_axes(
    axes: Axes, shape: tuple[int, int], class_names: Sequence[str], max_names: int, options: FigureOptions
) -> None:
    """Label clients below and classes on the left: all of them, or some if there are too many."""
    clients, classes = shape
    width = axes_width_inches(class_names, options)
    digits = len(str(clients))
    axes.set(xlabel="client", ylabel="class")
    axes.set_xticks(np.arange(0, clients, tick_step(clients, int(width / (options.char_inches * (digits + 1))))))
    step = tick_step(classes, max(max_names, 1))
    axes.set_yticks(np.arange(0, classes, step), list(class_names[::step]))
    axes.tick_params(length=0)


def tick_step(num_names: int, max_ticks: int) -> int:
    """The smallest step of the form 1, 2 or 5 times a power of ten that gives at most `max_ticks` ticks."""
    steps = (int(base * 10.0**power) for power in range(9) for base in (1, 2, 5))
    return next(step for step in steps if num_names <= step * max(max_ticks, 1))


def domain_spans(
    domains: Sequence[str], width_inches: float, options: FigureOptions
) -> tuple[list[tuple[int, int, str]], bool]:
    """First client, end and name of each domain, and whether the names do not fit horizontally.

    There are no spans if the names do not fit vertically either.
    """
    starts = [client for client, name in enumerate(domains) if name and (client == 0 or domains[client - 1] != name)]
    if not starts:
        return [], False
    ends = [*starts[1:], len(domains)]
    inches = 0.9 * width_inches / len(domains)
    if min(end - start for start, end in zip(starts, ends, strict=True)) * inches < options.line_height_inches:
        return [], False
    spans = [(start, end, truncate_name(domains[start])) for start, end in zip(starts, ends, strict=True)]
    return spans, any(len(name) * options.char_inches > (end - start) * inches for start, end, name in spans)


def draw_domain_labels(axes: Axes, spans: Sequence[tuple[int, int, str]], is_vertical: bool) -> None:
    """Write each domain above its clients, with separators between domains."""
    for start, end, name in spans:
        style: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center"}
        axes.text((start + end - 1) / 2, 1.02, name, rotation=90 * is_vertical, va="bottom", **style)
        if start:
            axes.axvline(start - 0.5, color="0.4", linewidth=0.8, linestyle=":")


def set_class_ticks(axes: Axes, class_names: Sequence[str], width_inches: float, options: FigureOptions) -> None:
    """Write class names below the x axis: rotated if they are long, and only some if they are many."""
    max_chars = max(map(len, class_names), default=0)
    is_long = options.char_inches * (max_chars + 1) > width_inches / len(class_names)
    inches = 1.5 * options.line_height_inches if is_long else options.char_inches * (max_chars + 1)
    step = tick_step(len(class_names), int(width_inches / inches))
    ticks = np.arange(0, len(class_names), step)
    axes.set_xlim(-0.7, len(class_names) - 0.3)
    axes.set_xticks(
        ticks,
        [truncate_name(name) for name in class_names[::step]],
        rotation=40 if is_long else 0,
        ha="right" if is_long else "center",
    )


def truncate_name(name: str) -> str:
    return name if len(name) <= MAX_CLASS_NAME_CHARS else name[: MAX_CLASS_NAME_CHARS - 1] + "…"
