"""A figure inside a page: text stays text, and black is whatever colour the page writes in."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from fedmosaic_cli.report.plots.canvas import suppress_matplotlib_warnings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def inline_svg(figure: Figure) -> str:
    """The figure as an SVG element, the same for the same figure."""
    from matplotlib import rc_context

    # Without a salt of our own, names inside the picture would be drawn by lot.
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedmosaic"}),
        io.StringIO() as text,
        suppress_matplotlib_warnings(),
    ):
        figure.savefig(text, format="svg", transparent=True, metadata=NO_METADATA)
        picture = text.getvalue()
    picture = picture[picture.index("<svg") :].replace("#000000", "currentColor")
    return picture.replace("<svg ", '<svg fill="currentColor" ', 1)
