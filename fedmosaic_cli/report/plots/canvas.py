"""Create figures, add titles and notes, and render them as PNG, PDF or SVG."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import contextmanager
from functools import cache
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from fedmosaic_cli.report.plots.figure_options import FigureOptions

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
SERIF_FONTS = ("STIXGeneral", "DejaVu Serif")
"""A font like Times, and one for characters that it lacks; both are parts of matplotlib."""
FIGURE_DPI = 200
# No dates and versions: the same figure gives the same bytes.
DETERMINISTIC_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None},
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
}
# Type 42 fonts keep text of PDF files searchable; many publishers reject the default, Type 3. SVG files contain text
# as text; the salt makes the ids of their elements deterministic.
SAVE_PARAMS: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedmosaic"}


def new_figure_with_axes(width_inches: float, height_inches: float) -> tuple[Figure, Axes]:
    """A new figure with one set of axes."""
    figure = new_figure(width_inches, height_inches)
    return figure, figure.add_subplot()


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """A figure without a display and without math parsing."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["text.parse_math"] = False
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


@cache
def available_fonts(is_serif: bool = False) -> list[str]:
    """The default font or the serif font, followed by the installed fallback fonts."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return [*(SERIF_FONTS if is_serif else ("sans-serif",)), *(name for name in FALLBACK_FONTS if name in installed)]


class Caption(NamedTuple):
    """What a figure shows, for which setting, and further sentences."""

    subject: str
    setting: str = ""
    note: str = ""


def add_caption(figure: Figure, options: FigureOptions, subject: str, setting: str = "", note: str = "") -> None:
    """Describe a figure, in the picture or only in its caption.

    The caption is kept as the label of the figure, see `caption_of`. In the explained style it is also drawn: as a
    title above the figure and a note below it.

    Args:
        figure: A figure with all its legends.
        options: The options of the figure.
        subject: What the figure shows.
        setting: The setting that it shows, if it is one.
        note: Further sentences.
    """
    place = f" ({setting})" if setting else ""
    figure.set_label(" ".join(filter(None, [f"{subject[:1].upper()}{subject[1:]}{place}.", note])))
    if not options.is_paper:
        draw_title(figure, f"{setting}: {subject}" if setting else f"{subject[:1].upper()}{subject[1:]}")
        draw_note(figure, note)


def caption_of(figure: Figure) -> str:
    """The caption of a figure."""
    return str(figure.get_label())


def draw_title(figure: Figure, title: str) -> None:
    """Write a wrapped title above the figure."""
    above = figure.suptitle("", x=0.01, ha="left", fontweight="bold")
    above.set_text(fill(title, chars_per_line(figure, above, 0.66)))


def draw_note(figure: Figure, note: str) -> None:
    """Write a wrapped note below the figure, or above the legend if there is one."""
    if not note:
        return
    if figure.legends:
        # A note beside the legend would overlap it, so the note becomes the title of the legend.
        below = figure.legends[0].get_title()
        figure.legends[0].set_title(fill(note, chars_per_line(figure, below, 0.58)))
        below.set_color("0.25")
        below.set_multialignment("left")
    else:
        below = figure.supxlabel("", x=0.01, ha="left", fontsize="medium", color="0.25")
        below.set_text(fill(note, chars_per_line(figure, below, 0.55)))


def note_height_inches(options: FigureOptions, text: str) -> float:
    """Height of a title and a note; 0 in the style of a paper."""
    if options.is_paper:
        return 0.0
    chars = options.width_inches * 72 / (0.58 * options.font_size)
    return (2.6 + len(text) // chars) * options.line_height_inches


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


def render_figure(figure: Figure, formats: Sequence[str] = DEFAULT_OPTIONS.formats) -> dict[str, bytes]:
    """The figure in several formats, by file ending."""
    from matplotlib import rc_context

    files = {}
    for ending in formats:
        buffer = io.BytesIO()
        with suppress_matplotlib_warnings(), rc_context(SAVE_PARAMS):
            figure.savefig(buffer, format=ending, dpi=FIGURE_DPI, metadata=DETERMINISTIC_METADATA[ending])
        figure.set_layout_engine("none")  # the layout is computed once; it takes half of the time
        files[ending] = buffer.getvalue()
    return files


def render_inline_svg(figure: Figure) -> str:
    """The figure as a deterministic SVG element that uses the text colour of the surrounding page."""
    from matplotlib import rc_context

    with rc_context(SAVE_PARAMS), io.StringIO() as buffer, suppress_matplotlib_warnings():
        figure.savefig(buffer, format="svg", transparent=True, metadata=DETERMINISTIC_METADATA["svg"])
        svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace("#000000", "currentColor")
    return svg.replace("<svg ", '<svg fill="currentColor" ', 1)
