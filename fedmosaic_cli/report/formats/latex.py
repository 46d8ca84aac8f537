"""A table in LaTeX, in the paper's form: booktabs, groups turned on their side, colours by verdict."""

from __future__ import annotations

import unicodedata
from itertools import groupby
from typing import TYPE_CHECKING

from fedmosaic_cli.report.baseline_colors import Verdict
from fedmosaic_cli.report.formats.text_formats import families, percent, share_of_seeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison_table import Cell, Column, Row, Table

PREAMBLE = "fedmosaic-preamble.tex"
PACKAGES = "\\usepackage{booktabs,graphicx,multirow,xcolor}"
COLOURED = [verdict for verdict in Verdict if verdict.colour]
# Groups of the paper that have a name in the margin; the others stand for themselves.
NAMED = ("FL", "PFL")
STACKED_FROM = 6
"""So many columns, and the standard deviation goes below the mean."""
STACK = "stackednumbers"
SHRUNK = (
    "  % Shrunk to the line where it is too wide for it.",
    "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
)
ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"


def preamble() -> str:
    """The colours of the verdicts and the macros of the tables, to be \\input before the document begins."""
    return "\n".join(
        [
            "% What the tables of fedmosaic need: \\input this file before \\begin{document}.",
            PACKAGES,
            *macros(),
            "",
        ]
    )


def macros() -> list[str]:
    return [
        *(f"\\definecolor{{{macro(v)}}}{{HTML}}{{{v.colour}}}" for v in COLOURED),
        *(f"\\providecommand{{\\{macro(v)}}}[1]{{\\textcolor{{{macro(v)}}}{{#1}}}}" for v in COLOURED),
        f"\\providecommand{{\\{STACK}}}[1]{{\\begin{{tabular}}[c]{{@{{}}c@{{}}}}#1\\end{{tabular}}}}",
    ]


def document(names: Sequence[str]) -> str:
    """A document that compiles beside the files of these names and that of the preamble."""
    return "\n".join(
        [
            "% Compiles on its own: pdflatex all.tex",
            "\\documentclass{article}",
            "\\usepackage[margin=2cm]{geometry}",
            f"\\input{{{PREAMBLE}}}",
            "\\begin{document}",
            *(f"\\input{{{name}}}" for name in names),
            "\\end{document}",
            "",
        ]
    )


def alone(floats: Sequence[str]) -> str:
    """Floats that compile on their own and can be \\input into a paper that loads the packages."""
    return "\n".join(
        [
            f"% Compiles on its own; in a paper, {PACKAGES} and \\input this file.",
            "\\makeatletter",
            "\\ifx\\@classoptionslist\\relax",
            "  \\documentclass{article}",
            "  \\usepackage[margin=2cm]{geometry}",
            f"  {PACKAGES}",
            "  \\begin{document}",
            "  \\def\\fedmosaicends{\\end{document}}",
            "\\else",
            "  \\def\\fedmosaicends{}",
            "\\fi",
            "\\makeatother",
            *macros(),
            *(text.rstrip("\n") for text in floats),
            "\\fedmosaicends",
            "",
        ]
    )


def to_latex(table: Table) -> str:
    """The table as a float."""
    key = ", ".join(f"\\{macro(verdict)}{{{verdict.meaning}}}" for verdict in table.verdicts() if verdict.colour)
    stacked = len(table.columns) >= STACKED_FROM
    body: list[str] = []
    for family, rows in families(table):
        body += ["    \\midrule", *family_lines(family, rows, table, stacked)]
    return "\n".join(
        [
            *(f"% to fill a gap: {comment(command)}" for command in table.commands),
            "\\begin{table}[t]",
            "  \\centering\\small\\setlength{\\tabcolsep}{4pt}",
            f"  \\caption{{{escape_latex(table.caption)}{f' Colours: {key}.' if key else ''}}}",
            f"  \\label{{tab:fedmosaic-{table.name}}}",
            "  \\smallskip",
            *SHRUNK,
            f"  \\begin{{tabular}}{{ll{('c' if stacked else 'r') * len(table.columns)}}}",
            "    \\toprule",
            *heads(table.columns),
            *body,
            "    \\bottomrule",
            "  \\end{tabular}}",
            *notes(table),
            "\\end{table}",
            "",
        ]
    )


def notes(table: Table) -> list[str]:
    """The protocol, in small print below the table."""
    blocks = [" \\newline ".join(map(escape_latex, block)) for block in table.blocks]
    if not table.notes and not blocks:
        return []
    text = " \\par ".join([escape_latex(" ".join(table.notes)), *blocks])
    return ["  \\par\\smallskip", f"  \\begin{{minipage}}{{\\linewidth}}\\footnotesize {text}\\end{{minipage}}"]


def heads(columns: Sequence[Column]) -> list[str]:
    """One line of labels, below a line of headings where there are any."""
    labels = "    & \\textbf{Method} & " + " & ".join(f"\\textbf{{{escape_latex(c.label)}}}" for c in columns) + " \\\\"
    if not any(column.heading for column in columns):
        return [labels]
    above, rules, at = [], [], 3
    for heading, group in groupby(columns, key=lambda column: column.heading):
        width = len(list(group))
        above.append(f"\\multicolumn{{{width}}}{{c}}{{\\textbf{{{escape_latex(heading)}}}}}")
        rules.append(f"\\cmidrule(lr){{{at}-{at + width - 1}}}" if heading else "")
        at += width
    return ["    & & " + " & ".join(above) + " \\\\", "    " + "".join(rules), labels]


def family_lines(family: str, rows: Sequence[Row], table: Table, stacked: bool) -> list[str]:
    """The rows of a group, its name beside the first, turned where there is room for it."""
    turned = f"\\multirow{{{len(rows)}}}{{*}}{{\\rotatebox[origin=c]{{90}}{{\\textbf{{{family}}}}}}}"
    name = turned if family in NAMED and len(rows) > 1 else family if family in NAMED else ""
    lines = []
    for number, row in enumerate(rows):
        cells = [latex_cell(cell, table, column, stacked) for column, cell in enumerate(row.cells)]
        lines.append("    " + " & ".join([name if number == 0 else "", escape_latex(row.title), *cells]) + " \\\\")
    return lines


def latex_cell(cell: Cell, table: Table, column: int, stacked: bool) -> str:
    """Mean and spread in the colour of the verdict; the paper's number, where wanted, in black."""
    beside = [] if cell.published is None else [f"[{percent(cell.published.mean)}"]
    if beside:
        beside[0] += "]" if cell.difference is None else f", ${100 * cell.difference:+.2f}$]"
    result = cell.ours
    if result is None:
        return together(["--", *beside], stacked)
    mean = f"\\textbf{{{percent(result.mean)}}}" if result.best else percent(result.mean)
    mean += escape_latex(result.caveats) + share_of_seeds(result, table, column)
    spread = [f"({percent(result.std)})"] if result.std is not None else []
    parts = [mean, *spread]
    if result.verdict.colour:
        parts = [f"\\{macro(result.verdict)}{{{part}}}" for part in parts]
    return together([*parts, *beside], stacked)


def together(parts: list[str], stacked: bool) -> str:
    """A number and what goes with it, side by side or one above the other."""
    first, *small = parts[0], *(f"{{\\tiny {part}}}" for part in parts[1:])
    if not stacked or not small:
        return " ".join([first, *small])
    return f"\\{STACK}{{" + "\\\\[-3pt]".join([first, *small]) + "}"


def macro(verdict: Verdict) -> str:
    """The LaTeX macro of a verdict: letters only, and unlikely to be taken."""
    return "verdict" + verdict.name.lower().replace("_", "")


def comment(text: str) -> str:
    """On one line, whatever it holds."""
    return " ".join(text.split())


def escape_latex(text: str) -> str:
    """Text that means nothing to LaTeX. Letters that pdflatex does not know by itself are written as their numbers."""
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {
        "†": "\\textdagger{}",
        "‡": "\\textdaggerdbl{}",
        "§": "\\textsection{}",
        "¶": "\\textparagraph{}",
        "[": "{[}",
        "]": "{]}",
        "<": "\\textless{}",
    }
    special |= {">": "\\textgreater{}", "|": "\\textbar{}", '"': "''"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    words = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(
        special.get(letter) or (letter if known_to_latex(letter) else f"U+{ord(letter):04X}") for letter in words
    )


def known_to_latex(letter: str) -> bool:
    """Whether pdflatex prints a letter without further packages: plain ones, and those of Europe with one accent."""
    parts = unicodedata.normalize("NFD", letter)
    plain, accents = parts[0], parts[1:]
    accented = not accents or (accents[0] in ACCENTS and ord(letter) < 0x180)
    return letter in "ÆØßæøŁłŒœ" or (plain.isascii() and plain.isprintable() and accented)
