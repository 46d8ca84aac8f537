"""Figures as files: blank ones, their titles, and what becomes of them in print."""

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

# For letters that the usual font lacks: fonts of common systems that have most of them.
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
# Nothing that changes from one day to the next: the same partition is the same file.
DETERMINISTIC_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None},
}


def new_figure_with_axes(width_inches: float, height_inches: float) -> tuple[Figure, Axes]:
    """A blank figure with axes all over it."""
    figure = new_figure(width_inches, height_inches)
    return figure, figure.add_subplot()


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """A figure that needs no display, in which a dollar sign is a dollar sign, and letters are of any script that there
    is a font for."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["text.parse_math"] = False
    rcParams["font.family"] = available_fonts()
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


@cache
def available_fonts() -> list[str]:
    """The usual font, and those installed that may have letters it lacks."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ["sans-serif", *(name for name in FALLBACK_FONTS if name in installed)]


def add_title_and_note(figure: Figure, title: str, note: str = "") -> None:
    """A title above everything, and a remark below (above the key, where there is one): both wrapped."""
    above = figure.suptitle("", x=0.01, ha="left", fontweight="bold")
    above.set_text(fill(title, chars_per_line(figure, above, 0.66)))
    if note and figure.legends:
        # Two things below a figure would lie on each other.
        below = figure.legends[0].get_title()
        figure.legends[0].set_title(fill(note, chars_per_line(figure, below, 0.55)))
        below.set_color("0.25")
    elif note:
        below = figure.supxlabel("", x=0.01, ha="left", fontsize="medium", color="0.25")
        below.set_text(fill(note, chars_per_line(figure, below, 0.55)))


def chars_per_line(figure: Figure, text: Text, char_aspect: float) -> int:
    """How many letters of this size fit into a line, if they are so wide for their height."""
    return int(figure.get_figwidth() * 72 / (char_aspect * float(text.get_fontsize())))


@contextmanager
def suppress_matplotlib_warnings() -> Iterator[None]:
    """A box for a letter, a font that is never bold, names that leave little room: no reason to worry anybody."""
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
    """The figure as a PNG to look at and a PDF for a paper, by file ending."""
    from matplotlib import rc_context

    files = {}
    for ending, metadata in DETERMINISTIC_METADATA.items():
        buffer = io.BytesIO()
        # Letters stay letters in the PDF, to be found and copied; publishers refuse its default, Type 3 fonts.
        with suppress_matplotlib_warnings(), rc_context({"pdf.fonttype": 42}):
            figure.savefig(buffer, format=ending, dpi=dpi, metadata=metadata)
        figure.set_layout_engine("none")  # everything has found its place; finding it takes half of the time
        files[ending] = buffer.getvalue()
    return files
