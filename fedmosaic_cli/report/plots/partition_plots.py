"""Plots of a partition: training examples per client and class, and the classes of the public set.

Few clients are stacked bars, more are a dot matrix, and very many are a heatmap. Hatches and dot sizes make the plots
readable without colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure_with_axes, render_png_and_pdf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MAX_BAR_CLIENTS = 20
MAX_STACKED_CLASSES = 20
MAX_DOT_CLIENTS, MAX_DOT_CLASSES = 60, 30
MAX_WIDTH_INCHES, MAX_HEIGHT_INCHES = 24.0, 8.0
MAX_CLASS_NAME_CHARS = 20
CHAR_SIZE_INCHES = 0.07, 0.14
"""Width and height of a character of 8 points."""
HATCHES = ("", "///", "...", "\\\\\\", "xx", "---", "oo", "|||", "++", "**")
DOT_COLOR = "#1b6ca8"


def render_class_counts(
    counts: Sequence[Sequence[int]], class_names: Sequence[str], title: str, domains: Sequence[str | None] = ()
) -> dict[str, bytes]:
    """PNG and PDF of `counts` [clients, classes]; `domains` are the domains of the clients, if any."""
    return render_png_and_pdf(class_counts_figure(counts, class_names, title, domains))


def render_public_class_counts(counts: Sequence[int], class_names: Sequence[str], title: str) -> dict[str, bytes]:
    """PNG and PDF of the class counts of the public set."""
    return render_png_and_pdf(public_class_counts_figure(counts, class_names, title))


def class_counts_figure(
    counts: Sequence[Sequence[int]],
    class_names: Sequence[str],
    title: str,
    domains: Sequence[str | None] = (),
    max_width_inches: float = MAX_WIDTH_INCHES,
) -> Figure:
    """Stacked bars, a dot matrix or a heatmap of `counts` [clients, classes]."""
    table = np.asarray(counts)
    clients, classes = table.shape
    if clients <= MAX_BAR_CLIENTS and classes <= MAX_STACKED_CLASSES:
        figure = stacked_bars(table, class_names, title, max_width_inches)
    elif clients <= MAX_DOT_CLIENTS and classes <= MAX_DOT_CLASSES:
        figure = dot_matrix(table, class_names, title, max_width_inches)
    else:
        figure = heatmap(table, class_names, title, max_width_inches)
    draw_domain_labels(figure.axes[0], [name or "" for name in domains])
    return figure


def public_class_counts_figure(
    counts: Sequence[int], class_names: Sequence[str], title: str, max_width_inches: float = MAX_WIDTH_INCHES
) -> Figure:
    """Bars of the class counts of the public set."""
    figure, axes = new_figure_with_axes(min(1.8 + 0.42 * max(len(counts), 8), max_width_inches), 3.2)
    positions = np.arange(len(counts))
    bars = axes.bar(positions, counts, color="0.85", edgecolor="black", linewidth=min(0.6, 24 / len(counts)))
    if len(counts) <= MAX_STACKED_CLASSES:
        axes.bar_label(bars, fontsize=8)
    axes.set(xlabel="class", ylabel="examples")
    axes.margins(y=0.12)
    axes.locator_params(axis="y", integer=True)
    set_class_ticks(axes, class_names)
    add_title_and_note(figure, title)
    return figure


def stacked_bars(
    counts: NDArray[np.int64], class_names: Sequence[str], title: str, max_width_inches: float = MAX_WIDTH_INCHES
) -> Figure:
    """One bar per client, one layer per class."""
    from matplotlib.patches import Patch

    clients, classes = counts.shape
    figure, axes = new_figure_with_axes(
        min(3.4 + 0.42 * max(clients, 10), max_width_inches), 1.2 + max(3.2, 0.27 * classes)
    )
    below, handles = np.zeros(clients, dtype=np.int64), []
    for number, (name, color) in enumerate(zip(class_names, class_colors(classes), strict=True)):
        style: dict[str, Any] = {
            "hatch": HATCHES[number % len(HATCHES)],
            "facecolor": color,
            "edgecolor": "black",
            "linewidth": 0.4,
        }
        clients_with_class = np.flatnonzero(counts[:, number])
        heights = counts[clients_with_class, number]
        axes.bar(clients_with_class, heights, bottom=below[clients_with_class], **style)
        below += counts[:, number]
        # Legends omit labels that start with an underscore.
        label = truncate_name(name)
        handles.append(Patch(label=f" {label}" if label.startswith("_") else label, **style))
    axes.set(xlabel="client", ylabel="examples", xlim=(-0.7, clients - 0.3))
    axes.set_xticks(np.arange(clients))
    axes.margins(y=0.06)
    axes.locator_params(axis="y", integer=True)
    # Legend entries are in the order of the layers, from top to bottom.
    position: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles=handles[::-1], title="class", frameon=False, handleheight=1.3, **position)
    add_title_and_note(figure, title)
    return figure


def dot_matrix(
    counts: NDArray[np.int64], class_names: Sequence[str], title: str, max_width_inches: float = MAX_WIDTH_INCHES
) -> Figure:
    """One dot per client and class, with an area proportional to the count."""
    clients, classes = counts.shape
    width, height = 2.2 + 0.3 * max(clients, 12), 1.5 + 0.34 * max(classes, 6)
    figure, axes = new_figure_with_axes(min(width, max_width_inches), min(height, MAX_HEIGHT_INCHES))
    area = 200 * min(1.0, max_width_inches / width, MAX_HEIGHT_INCHES / height) ** 2
    column, row = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    largest = max(int(counts.max(initial=0)), 1)
    style: dict[str, Any] = {"color": DOT_COLOR, "edgecolor": "black", "linewidth": 0.4}
    axes.scatter(column, row, s=area * counts / largest, **style)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    axes.set_xticks(np.arange(0, clients, tick_step(clients, 20)))
    axes.set_yticks(range(classes), [truncate_name(name) for name in class_names])
    axes.set_axisbelow(True)
    axes.grid(color="0.9")
    # The legend shows two dots with their counts.
    for value in dict.fromkeys((largest, max(largest // 4, 1))):
        axes.scatter([], [], s=area * value / largest, label=str(value), **style)
    axes.legend(title="examples", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    add_title_and_note(figure, title)
    return figure


def heatmap(
    counts: NDArray[np.int64], class_names: Sequence[str], title: str, max_width_inches: float = MAX_WIDTH_INCHES
) -> Figure:
    """One cell per client and class; darker cells have more examples. Only some of many class names are shown."""
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    height = min(1.6 + 0.16 * max(classes, 12), MAX_HEIGHT_INCHES)
    figure, axes = new_figure_with_axes(min(2.6 + 0.12 * max(clients, 30), max_width_inches), height)
    image = axes.imshow(counts.T, cmap="Greys", vmin=0, vmax=max(int(counts.max(initial=0)), 1), aspect="auto")
    axes.invert_yaxis()
    axes.set(xlabel="client", ylabel="class")
    axes.set_xticks(np.arange(0, clients, tick_step(clients, 12)))
    step = tick_step(classes, int((height - 1.2) / 0.16))
    axes.set_yticks(np.arange(0, classes, step), [truncate_name(name) for name in class_names[::step]])
    figure.colorbar(image, label="examples", shrink=0.6, ticks=MaxNLocator(5, integer=True))
    add_title_and_note(figure, title)
    return figure


def tick_step(num_names: int, max_ticks: int) -> int:
    """The smallest step of the form 1, 2 or 5 times a power of ten that gives at most `max_ticks` ticks."""
    steps = (int(base * 10.0**power) for power in range(9) for base in (1, 2, 5))
    return next(step for step in steps if num_names <= step * max_ticks)


def draw_domain_labels(axes: Axes, domains: list[str]) -> None:
    """Write each domain above its clients, with separators between domains.

    Names are vertical if they do not fit horizontally, and omitted if they do not fit vertically.
    """
    starts = [client for client, name in enumerate(domains) if name and (client == 0 or domains[client - 1] != name)]
    if not starts:
        return
    spans = list(zip(starts, [*starts[1:], len(domains)], strict=True))
    inches = 0.9 * axes_width_inches(axes) / len(domains)  # the legend takes the rest
    if min(end - start for start, end in spans) * inches < CHAR_SIZE_INCHES[1]:
        return
    is_vertical = any(len(domains[start]) * CHAR_SIZE_INCHES[0] > (end - start) * inches for start, end in spans)
    for start, end in spans:
        style: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 8}
        name = truncate_name(domains[start]) if is_vertical else domains[start]
        axes.text((start + end - 1) / 2, 1.01, name, rotation=90 * is_vertical, va="bottom", **style)
        if start:
            axes.axvline(start - 0.5, color="0.4", linewidth=0.8, linestyle=":")


def axes_width_inches(axes: Axes) -> float:
    """Estimated width of axes that fill a figure; labels take the rest."""
    return float(0.8 * axes.figure.bbox.width / axes.figure.dpi)


def class_colors(num_classes: int) -> list[Any]:
    """Colours light enough for hatches and distinct in greyscale."""
    from matplotlib import colormaps

    colors = colormaps["viridis"](np.linspace(0.15, 0.98, num_classes))
    colors[:, :3] = 0.35 + 0.65 * colors[:, :3]
    return list(colors)


def set_class_ticks(axes: Axes, class_names: Sequence[str]) -> None:
    """Write class names below the x axis: rotated if they are long, and only some if they are many."""
    max_chars = max(map(len, class_names), default=0)
    is_long = max_chars > 4
    inches = 0.22 if is_long else CHAR_SIZE_INCHES[0] * (max_chars + 2)
    step = tick_step(len(class_names), int(axes_width_inches(axes) / inches))
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
