"""Pictures of a partition: who holds how much of which class, and what the public set is made of.

Up to about twenty clients a bar each, stacked by class; above that a matrix of dots. Bars are hatched and dots have a
size, so that nothing depends on colour.
"""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_BARS = 20
MOST_STACKED_CLASSES = 20
MOST_DOTS = 60
WIDEST_INCHES = 24.0
LONGEST_NAME = 20
HATCHES = ("", "///", "...", "\\\\\\", "xx", "---", "oo", "|||", "++", "**")
BLUE = "#1b6ca8"
# Nothing that changes from one day to the next: the same partition is the same file.
UNDATED: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}


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
    else:
        figure = dot_matrix(table, class_names, title, widest)
    if clients <= MOST_DOTS:
        mark_domains(figure.axes[0], [name or "" for name in domains])
    return figure


def public_figure(
    counts: Sequence[int], class_names: Sequence[str], title: str, widest: float = WIDEST_INCHES
) -> Figure:
    """The public set's classes, drawn on at most `widest` inches."""
    figure, axes = canvas(min(1.8 + 0.42 * max(len(counts), 8), widest), 3.2)
    positions = np.arange(len(counts))
    bars = axes.bar(positions, counts, color="0.85", edgecolor="black", linewidth=0.6)
    if len(counts) <= MOST_STACKED_CLASSES:
        axes.bar_label(bars, fontsize=8)
    axes.set(xlabel="class", ylabel="examples", title=title)
    axes.margins(y=0.12)
    name_ticks(axes, class_names)
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
    axes.set(xlabel="client", ylabel="examples", title=title, xlim=(-0.7, clients - 0.3))
    axes.set_xticks(np.arange(clients))
    axes.margins(y=0.06)
    # The legend reads from top to bottom as the bars do.
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles=key[::-1], title="class", frameon=False, handleheight=1.3, **place)
    return figure


def dot_matrix(
    table: NDArray[np.int64], class_names: Sequence[str], title: str, widest: float = WIDEST_INCHES
) -> Figure:
    """A dot for every client and class, its area proportional to the count. Of very many clients, some are shown."""
    shown, kinds = evenly_chosen(len(table)), evenly_chosen(table.shape[1])
    if len(shown) < len(table):
        title += f" ({len(shown)} of them shown)"
    if len(kinds) < table.shape[1]:
        title += f", {len(kinds)} of {table.shape[1]} classes"
    class_names = [short(class_names[kind]) for kind in kinds]
    table = table[shown][:, kinds]
    clients, classes = table.shape
    width = 2.2 + 0.3 * max(clients, 12)
    figure, axes = canvas(min(width, widest), 1.5 + 0.34 * max(classes, 6))
    area = 200 * min(1.0, widest / width) ** 2
    column, row = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    largest = max(int(table.max(initial=0)), 1)
    style: dict[str, Any] = {"color": BLUE, "edgecolor": "black", "linewidth": 0.4}
    axes.scatter(column, row, s=area * table / largest, **style)
    axes.set(xlabel="client", ylabel="class", title=title, xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    ticks = np.arange(0, clients, -(-clients // 30))
    axes.set_xticks(ticks, [str(shown[tick]) for tick in ticks], rotation=90 if len(shown) < 100 < shown[-1] else 0)
    axes.set_yticks(range(classes), class_names)
    axes.set_axisbelow(True)
    axes.grid(color="0.9")
    # The scale stands in the margin: two dots and what they stand for.
    for value in dict.fromkeys((largest, max(largest // 4, 1))):
        axes.scatter([], [], s=area * value / largest, label=str(value), **style)
    axes.legend(title="examples", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def evenly_chosen(count: int) -> list[int]:
    """All of them, or as many as fit into a picture."""
    chosen: list[int] = np.unique(np.linspace(0, count - 1, min(count, MOST_DOTS)).round().astype(int)).tolist()
    return chosen


def mark_domains(axes: Axes, domains: list[str]) -> None:
    """The name of each domain above its clients, and a line between one and the next."""
    starts = [at for at, name in enumerate(domains) if name and (at == 0 or domains[at - 1] != name)]
    if not starts:
        return
    for start, end in zip(starts, [*starts[1:], len(domains)], strict=True):
        middle = (start + end - 1) / 2
        axes.text(middle, 1.01, domains[start], transform=axes.get_xaxis_transform(), ha="center", fontsize=8)
        if start:
            axes.axvline(start - 0.5, color="0.4", linewidth=0.8, linestyle=":")
    axes.set_title(axes.get_title(), pad=18)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A blank figure with axes all over it."""
    figure = blank(width, height)
    return figure, figure.add_subplot()


def blank(width: float, height: float) -> Figure:
    """A figure that needs no display, in which a dollar sign is a dollar sign."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["text.parse_math"] = False
    return Figure(figsize=(width, height), layout="constrained")


def colours(count: int) -> list[Any]:
    """Light enough for hatching, and different in grey as well."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.15, 0.98, count))
    shades[:, :3] = 0.35 + 0.65 * shades[:, :3]
    return list(shades)


def name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Class names below an axis, slanted where they are long; of very many, some."""
    step = -(-len(names) // 40)
    ticks = np.arange(0, len(names), step)
    long = max(map(len, names), default=0) > 4
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_xticks(
        ticks, [short(name) for name in names[::step]], rotation=40 if long else 0, ha="right" if long else "center"
    )


def short(name: str) -> str:
    """A name that leaves room for the picture."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


@contextmanager
def unworried() -> Iterator[None]:
    """A box for a letter, or names that leave little room, are no reason to worry anybody."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing|constrained_layout not applied")
        yield


def rendered(figure: Figure, dpi: int = 130) -> dict[str, bytes]:
    """The figure as a PNG to look at and a PDF for a paper, by file ending."""
    from matplotlib import rc_context

    files = {}
    for ending, metadata in UNDATED.items():
        buffer = io.BytesIO()
        # Letters stay letters in the PDF, to be found and copied; publishers refuse its default, Type 3 fonts.
        with unworried(), rc_context({"pdf.fonttype": 42}):
            figure.savefig(buffer, format=ending, dpi=dpi, metadata=metadata)
        figure.set_layout_engine("none")  # everything has found its place; finding it takes half of the time
        files[ending] = buffer.getvalue()
    return files
