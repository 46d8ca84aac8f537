"""Pictures of a partition: who holds how much of which class, and what the public set is made of.

Up to about twenty clients a bar each, stacked by class; above that a matrix of dots, and of very many a map in grey.
Bars are hatched and dots have a size, so that nothing depends on colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.plots.canvas import canvas, entitle, rendered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_BARS = 20
MOST_STACKED_CLASSES = 20
MOST_DOTS, MOST_DOTTED_CLASSES = 60, 30
WIDEST_INCHES, HIGHEST_INCHES = 24.0, 8.0
LONGEST_NAME = 20
LETTER_INCHES = 0.07, 0.14
"""Wide and high, of 8 points."""
HATCHES = ("", "///", "...", "\\\\\\", "xx", "---", "oo", "|||", "++", "**")
BLUE = "#1b6ca8"


def distribution_picture(
    counts: Sequence[Sequence[int]], class_names: Sequence[str], title: str, domains: Sequence[str | None] = ()
) -> dict[str, bytes]:
    """`counts` [clients, classes] as PNG and PDF. `domains` are the clients', where they have any."""
    return rendered(distribution_figure(counts, class_names, title, domains))


def public_picture(counts: Sequence[int], class_names: Sequence[str], title: str) -> dict[str, bytes]:
    """The public set's classes as PNG and PDF."""
    return rendered(public_figure(counts, class_names, title))


def distribution_figure(
    counts: Sequence[Sequence[int]],
    class_names: Sequence[str],
    title: str,
    domains: Sequence[str | None] = (),
    widest: float = WIDEST_INCHES,
) -> Figure:
    """`counts` [clients, classes], drawn on at most `widest` inches."""
    table = np.asarray(counts)
    clients, classes = table.shape
    if clients <= MOST_BARS and classes <= MOST_STACKED_CLASSES:
        figure = stacked_bars(table, class_names, title, widest)
    elif clients <= MOST_DOTS and classes <= MOST_DOTTED_CLASSES:
        figure = dot_matrix(table, class_names, title, widest)
    else:
        figure = grey_map(table, class_names, title, widest)
    mark_domains(figure.axes[0], [name or "" for name in domains])
    return figure


def public_figure(
    counts: Sequence[int], class_names: Sequence[str], title: str, widest: float = WIDEST_INCHES
) -> Figure:
    """The public set's classes, drawn on at most `widest` inches."""
    figure, axes = canvas(min(1.8 + 0.42 * max(len(counts), 8), widest), 3.2)
    positions = np.arange(len(counts))
    bars = axes.bar(positions, counts, color="0.85", edgecolor="black", linewidth=min(0.6, 24 / len(counts)))
    if len(counts) <= MOST_STACKED_CLASSES:
        axes.bar_label(bars, fontsize=8)
    axes.set(xlabel="class", ylabel="examples")
    axes.margins(y=0.12)
    axes.locator_params(axis="y", integer=True)
    name_ticks(axes, class_names)
    entitle(figure, title)
    return figure


def stacked_bars(
    table: NDArray[np.int64], class_names: Sequence[str], title: str, widest: float = WIDEST_INCHES
) -> Figure:
    """A bar a client, a layer a class."""
    from matplotlib.patches import Patch

    clients, classes = table.shape
    figure, axes = canvas(min(3.4 + 0.42 * max(clients, 10), widest), 1.2 + max(3.2, 0.27 * classes))
    below, key = np.zeros(clients, dtype=np.int64), []
    for number, (name, shade) in enumerate(zip(class_names, colours(classes), strict=True)):
        style: dict[str, Any] = {
            "hatch": HATCHES[number % len(HATCHES)],
            "facecolor": shade,
            "edgecolor": "black",
            "linewidth": 0.4,
        }
        held = np.flatnonzero(table[:, number])
        axes.bar(held, table[held, number], bottom=below[held], **style)
        below += table[:, number]
        # A name that begins with an underscore would be left out of the legend.
        key.append(Patch(label=f" {short(name)}" if name.startswith("_") else short(name), **style))
    axes.set(xlabel="client", ylabel="examples", xlim=(-0.7, clients - 0.3))
    axes.set_xticks(np.arange(clients))
    axes.margins(y=0.06)
    axes.locator_params(axis="y", integer=True)
    # The legend reads from top to bottom as the bars do.
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles=key[::-1], title="class", frameon=False, handleheight=1.3, **place)
    entitle(figure, title)
    return figure


def dot_matrix(
    table: NDArray[np.int64], class_names: Sequence[str], title: str, widest: float = WIDEST_INCHES
) -> Figure:
    """A dot for every client and class, its area proportional to the count."""
    clients, classes = table.shape
    width, height = 2.2 + 0.3 * max(clients, 12), 1.5 + 0.34 * max(classes, 6)
    figure, axes = canvas(min(width, widest), min(height, HIGHEST_INCHES))
    area = 200 * min(1.0, widest / width, HIGHEST_INCHES / height) ** 2
    column, row = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    largest = max(int(table.max(initial=0)), 1)
    style: dict[str, Any] = {"color": BLUE, "edgecolor": "black", "linewidth": 0.4}
    axes.scatter(column, row, s=area * table / largest, **style)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    axes.set_xticks(np.arange(0, clients, thinning(clients, 20)))
    axes.set_yticks(range(classes), [short(name) for name in class_names])
    axes.set_axisbelow(True)
    axes.grid(color="0.9")
    # The scale stands in the margin: two dots and what they stand for.
    for value in dict.fromkeys((largest, max(largest // 4, 1))):
        axes.scatter([], [], s=area * value / largest, label=str(value), **style)
    axes.legend(title="examples", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    entitle(figure, title)
    return figure


def grey_map(table: NDArray[np.int64], class_names: Sequence[str], title: str, widest: float = WIDEST_INCHES) -> Figure:
    """A cell for every client and class: the darker, the more. Of many names, some are written."""
    from matplotlib.ticker import MaxNLocator

    clients, classes = table.shape
    height = min(1.6 + 0.16 * max(classes, 12), HIGHEST_INCHES)
    figure, axes = canvas(min(2.6 + 0.12 * max(clients, 30), widest), height)
    image = axes.imshow(table.T, cmap="Greys", vmin=0, vmax=max(int(table.max(initial=0)), 1), aspect="auto")
    axes.invert_yaxis()
    axes.set(xlabel="client", ylabel="class")
    axes.set_xticks(np.arange(0, clients, thinning(clients, 12)))
    step = thinning(classes, int((height - 1.2) / 0.16))
    axes.set_yticks(np.arange(0, classes, step), [short(name) for name in class_names[::step]])
    figure.colorbar(image, label="examples", shrink=0.6, ticks=MaxNLocator(5, integer=True))
    entitle(figure, title)
    return figure


def thinning(count: int, most: int) -> int:
    """The round step at which so many names are written as fit."""
    steps = (int(base * 10.0**power) for power in range(9) for base in (1, 2, 5))
    return next(step for step in steps if count <= step * most)


def mark_domains(axes: Axes, domains: list[str]) -> None:
    """The name of each domain above its clients, on end where there is no room, and a line between one and the next.

    Where there is no room for names on end either, there is nothing to be seen.
    """
    starts = [at for at, name in enumerate(domains) if name and (at == 0 or domains[at - 1] != name)]
    if not starts:
        return
    spans = list(zip(starts, [*starts[1:], len(domains)], strict=True))
    inches = 0.9 * inches_across(axes) / len(domains)  # there is a legend beside them
    if min(end - start for start, end in spans) * inches < LETTER_INCHES[1]:
        return
    upright = any(len(domains[start]) * LETTER_INCHES[0] > (end - start) * inches for start, end in spans)
    for start, end in spans:
        place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 8}
        name = short(domains[start]) if upright else domains[start]
        axes.text((start + end - 1) / 2, 1.01, name, rotation=90 * upright, va="bottom", **place)
        if start:
            axes.axvline(start - 0.5, color="0.4", linewidth=0.8, linestyle=":")


def inches_across(axes: Axes) -> float:
    """How wide axes that fill a figure will about be; the rest is for what is written beside them."""
    return float(0.8 * axes.figure.bbox.width / axes.figure.dpi)


def colours(count: int) -> list[Any]:
    """Light enough for hatching, and different in grey as well."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.15, 0.98, count))
    shades[:, :3] = 0.35 + 0.65 * shades[:, :3]
    return list(shades)


def name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Class names below an axis, slanted where they are long; of very many, some."""
    letters = max(map(len, names), default=0)
    long = letters > 4
    inches = 0.22 if long else LETTER_INCHES[0] * (letters + 2)
    step = thinning(len(names), int(inches_across(axes) / inches))
    ticks = np.arange(0, len(names), step)
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_xticks(
        ticks, [short(name) for name in names[::step]], rotation=40 if long else 0, ha="right" if long else "center"
    )


def short(name: str) -> str:
    """A name that leaves room for the picture."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
