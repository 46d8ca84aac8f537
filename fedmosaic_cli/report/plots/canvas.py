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
FALLBACKS = (
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
UNDATED: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A blank figure with axes all over it."""
    figure = blank(width, height)
    return figure, figure.add_subplot()


def blank(width: float, height: float) -> Figure:
    """A figure that needs no display, in which a dollar sign is a dollar sign, and letters are of any script that there
    is a font for."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["text.parse_math"] = False
    rcParams["font.family"] = fonts()
    return Figure(figsize=(width, height), layout="constrained")


@cache
def fonts() -> list[str]:
    """The usual font, and those installed that may have letters it lacks."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ["sans-serif", *(name for name in FALLBACKS if name in installed)]


def entitle(figure: Figure, title: str, note: str = "") -> None:
    """A title above everything, and a remark below (above the key, where there is one): both wrapped."""
    above = figure.suptitle("", x=0.01, ha="left", fontweight="bold")
    above.set_text(fill(title, letters_across(figure, above, 0.66)))
    if note and figure.legends:
        # Two things below a figure would lie on each other.
        below = figure.legends[0].get_title()
        figure.legends[0].set_title(fill(note, letters_across(figure, below, 0.55)))
        below.set_color("0.25")
    elif note:
        below = figure.supxlabel("", x=0.01, ha="left", fontsize="medium", color="0.25")
        below.set_text(fill(note, letters_across(figure, below, 0.55)))


def letters_across(figure: Figure, text: Text, width: float) -> int:
    """How many letters of this size fit into a line, if they are so wide for their height."""
    return int(figure.get_figwidth() * 72 / (width * float(text.get_fontsize())))


@contextmanager
def unworried() -> Iterator[None]:
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
