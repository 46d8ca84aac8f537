"""The picture of a partition: a dot for every client and class, as large as its share of the data."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def distribution_picture(counts: Sequence[Sequence[int]], class_names: Sequence[str], title: str) -> bytes:
    """A PNG of `counts` [clients, classes]. A dot's area is proportional to its count."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = np.asarray(counts)
    clients, classes = table.shape
    figure = Figure(figsize=(2.2 + 0.34 * max(clients, 12), 1.5 + 0.34 * max(classes, 6)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    column, row = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    largest = max(int(table.max(initial=0)), 1)
    axes.scatter(column, row, s=220 * table / largest, color="#1b6ca8", edgecolor="black", linewidth=0.4)
    axes.set(xlabel="client", ylabel="class", title=title, xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    axes.set_xticks(np.arange(0, clients, -(-clients // 30)))
    axes.set_yticks(range(classes), class_names)
    axes.set_axisbelow(True)
    axes.grid(color="0.9")
    # The scale stands in the margin: two dots and what they stand for.
    for value in dict.fromkeys((largest, max(largest // 4, 1))):
        axes.scatter(
            [], [], s=220 * value / largest, color="#1b6ca8", edgecolor="black", linewidth=0.4, label=str(value)
        )
    axes.legend(title="examples", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
