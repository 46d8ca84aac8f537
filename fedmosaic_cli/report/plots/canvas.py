"""Create figures, add titles and notes, and render them as PNG, PDF or SVG."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import contextmanager
from functools import cache
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Fonts of common systems that cover most of the characters missing from the default font.
FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Hiragino Sans GB",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "SimHei",
    "Malgun Gothic",
)
# No dates and versions: the same figure gives the same bytes.
DETERMINISTIC_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None},
}


def new_figure_with_axes(width_inches: float, height_inches: float) -> tuple[Figure, Axes]:
    """A new figure with one set of axes."""
    figure = new_figure(width_inches, height_inches)
    return figure, figure.add_subplot()


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """A figure without a display, with math parsing disabled and fallback fonts enabled."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["text.parse_math"] = False
    rcParams["font.family"] = available_fonts()
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


@cache
def available_fonts() -> list[str]:
    """The default font, followed by the installed fallback fonts."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ["sans-serif", *(name for name in FALLBACK_FONTS if name in installed)]


def add_title_and_note(figure: Figure, title: str, note: str = "") -> None:
    """Add a wrapped title above the figure and a wrapped note below it (above the legend, if there is one)."""
    above = figure.suptitle("", x=0.01, ha="left", fontweight="bold")
    above.set_text(fill(title, chars_per_line(figure, above, 0.66)))
    if note and figure.legends:
        # A note beside the legend would overlap it, so the note becomes the title of the legend.
        below = figure.legends[0].get_title()
        figure.legends[0].set_title(fill(note, chars_per_line(figure, below, 0.55)))
        below.set_color("0.25")
    elif note:
        below = figure.supxlabel("", x=0.01, ha="left", fontsize="medium", color="0.25")
        below.set_text(fill(note, chars_per_line(figure, below, 0.55)))


def chars_per_line(figure: Figure, text: Text, char_aspect: float) -> int:
    """Number of characters per line, if the width of a character is `char_aspect` times the font size."""
    return int(figure.get_figwidth() * 72 / (char_aspect * float(text.get_fontsize())))


@contextmanager
def suppress_matplotlib_warnings() -> Iterator[None]:
    """Hide warnings about missing glyphs, missing bold fonts and tight layouts."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing|constrained_layout not applied")
            yield
    finally:
        log.setLevel(level)


def render_png_and_pdf(figure: Figure, dpi: int = 130) -> dict[str, bytes]:
    """The figure as PNG and PDF, by file ending."""
    from matplotlib import rc_context

    files = {}
    for ending, metadata in DETERMINISTIC_METADATA.items():
        buffer = io.BytesIO()
        # Type 42 fonts keep text searchable; many publishers reject the default, Type 3.
        with suppress_matplotlib_warnings(), rc_context({"pdf.fonttype": 42}):
            figure.savefig(buffer, format=ending, dpi=dpi, metadata=metadata)
        figure.set_layout_engine("none")  # the layout is computed once; it takes half of the time
        files[ending] = buffer.getvalue()
    return files


def render_inline_svg(figure: Figure) -> str:
    """The figure as a deterministic SVG element that uses the text colour of the surrounding page."""
    from matplotlib import rc_context

    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # A fixed salt makes the element ids deterministic.
    rc_params: Any = {"svg.fonttype": "none", "svg.hashsalt": "fedmosaic"}
    with rc_context(rc_params), io.StringIO() as buffer, suppress_matplotlib_warnings():
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
        svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace("#000000", "currentColor")
    return svg.replace("<svg ", '<svg fill="currentColor" ', 1)
