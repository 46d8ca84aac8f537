"""Options of figures: style, size, font, file formats, and the clients to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WIDTHS_INCHES = {"column": 3.25, "text": 5.5, "page": 7.0}
MIN_WIDTH_INCHES, MAX_WIDTH_INCHES = 2.0, 12.0
MAX_COLUMN_INCHES = 3.6
"""Wider figures extend over both columns of a paper."""
MAX_NARROW_INCHES = 4.5
"""Figures up to this width have no space for names beside the lines."""
FIGURE_FORMATS = ("png", "pdf", "svg")
MAX_CHOSEN_CLIENTS = 12
"""More clients cannot be distinguished in one figure."""


class FigureStyle(StrEnum):
    """Whether titles and explanations are inside the figure or in a file of captions."""

    explained = "explained"
    paper = "paper"


class FigureWidth(StrEnum):
    """The width of a column, of the text of a one-column paper, or of the text of a two-column paper."""

    column = "column"
    text = "text"
    page = "page"


@dataclass(frozen=True)
class FigureOptions:
    """How to draw figures.

    Attributes:
        style: `explained` has a title and a note inside the figure; `paper` has them in files of captions.
        width: Width of the figure, by name or in inches; by default that of a page, or of the text in the style of a
            paper.
        is_serif: Whether to use a font like Times.
        formats: File formats, of `FIGURE_FORMATS`.
        clients: The clients in figures of single clients; the first ones if None.
    """

    style: FigureStyle = FigureStyle.explained
    width: FigureWidth | float | None = None
    is_serif: bool = False
    formats: tuple[str, ...] = ("png", "pdf")
    clients: tuple[int, ...] | None = None

    @property
    def is_paper(self) -> bool:
        return self.style is FigureStyle.paper

    @property
    def width_inches(self) -> float:
        if isinstance(self.width, float):
            return self.width
        return WIDTHS_INCHES[self.width or (FigureWidth.text if self.is_paper else FigureWidth.page)]

    @property
    def is_narrow(self) -> bool:
        """Whether there is no space for names beside the lines."""
        return self.width_inches <= MAX_NARROW_INCHES

    @property
    def font_size(self) -> float:
        """Size of all text in points, if the figure is included without scaling. Serif letters are smaller."""
        return (7.0 if self.is_narrow else 8.0) + 0.5 * self.is_serif

    @property
    def line_height_inches(self) -> float:
        return 1.25 * self.font_size / 72

    @property
    def char_inches(self) -> float:
        """Width of a wide character."""
        return (0.5 if self.is_serif else 0.57) * self.font_size / 72


DEFAULT_OPTIONS = FigureOptions()
PAGE_OPTIONS = FigureOptions(FigureStyle.paper, FigureWidth.page)
"""Options of figures on the page, which has their titles and notes as text."""
