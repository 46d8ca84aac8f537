"""Captions of figures as Markdown and as LaTeX."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fedmosaic_cli.report.formats.latex import escape_latex
from fedmosaic_cli.report.plots.figure_options import MAX_COLUMN_INCHES
from fedmosaic_cli.safe_text import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.report.plots.figure_options import FigureOptions

MATH = {
    "\N{GREEK SMALL LETTER LAMDA}": "$\\lambda$",
    "\N{GREEK SMALL LETTER ALPHA}": "$\\alpha$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
}
LATEX_COMMENT = (
    "% Write \\graphicspath{{figures/}} before \\begin{document}, or copy the figures to the LaTeX file.\n\n"
)


def caption_files(captions: Mapping[str, str], options: FigureOptions) -> dict[str, str]:
    """The captions as `captions.md` and, as complete figures to copy into a paper, as `captions.tex`."""
    markdown = "".join(f"**{name}**: {caption}\n\n" for name, caption in captions.items())
    latex = "\n".join(figure_latex(name, caption, options) for name, caption in captions.items())
    files = {"captions.md": markdown.rstrip("\n") + "\n", "captions.tex": LATEX_COMMENT + latex}
    return {name: escape_control_characters(text) for name, text in files.items()}


def figure_latex(name: str, caption: str, options: FigureOptions) -> str:
    """A figure with its caption, after a comment with its name. It extends over both columns if it is wide."""
    environment = "figure*" if options.width_inches > MAX_COLUMN_INCHES else "figure"
    lines = [
        f"% {name}",
        f"\\begin{{{environment}}}",
        "  \\centering",
        f"  \\includegraphics[width=\\linewidth]{{{name}}}",
        f"  \\caption{{{caption_latex(caption)}}}",
        f"  \\label{{fig:{name}}}",
        f"\\end{{{environment}}}",
        "",
    ]
    return "\n".join(lines)


def caption_latex(caption: str) -> str:
    """The caption for LaTeX, with Greek letters as math."""
    parts = re.split(f"([{''.join(MATH)}])", caption)
    return "".join(MATH.get(part) or re.sub(r"\S+", lambda word: escape_latex(word.group()), part) for part in parts)
