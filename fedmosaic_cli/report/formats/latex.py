"""A table in LaTeX, in the paper's form: booktabs, groups turned on their side, colours by verdict."""

from __future__ import annotations

import unicodedata
from itertools import groupby
from typing import TYPE_CHECKING

from fedmosaic_cli.report.baseline_colors import BaselineRelation
from fedmosaic_cli.report.formats.text_formats import format_accuracy, incomplete_seeds_text, rows_by_family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison_table import ComparisonTable, TableCell, TableColumn, TableRow

PREAMBLE_FILE = "fedmosaic-preamble.tex"
LATEX_PACKAGES = "\\usepackage{booktabs,graphicx,multirow,xcolor}"
COLOURED_RELATIONS = [verdict for verdict in BaselineRelation if verdict.colour]
# Groups of the paper that have a name in the margin; the others stand for themselves.
LABELLED_FAMILIES = ("FL", "PFL")
MIN_STACKED_COLUMNS = 6
"""So many columns, and the standard deviation goes below the mean."""
STACK_MACRO = "stackednumbers"
SHRINK_TO_LINE_WIDTH = (
    "  % Shrunk to the line where it is too wide for it.",
    "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
)
PDFLATEX_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"


def latex_preamble() -> str:
    """The colours of the verdicts and the macros of the tables, to be \\input before the document begins."""
    return "\n".join(
        [
            "% What the tables of fedmosaic need: \\input this file before \\begin{document}.",
            LATEX_PACKAGES,
            *macro_definitions(),
            "",
        ]
    )


def macro_definitions() -> list[str]:
    return [
        *(f"\\definecolor{{{relation_macro(v)}}}{{HTML}}{{{v.colour}}}" for v in COLOURED_RELATIONS),
        *(
            f"\\providecommand{{\\{relation_macro(v)}}}[1]{{\\textcolor{{{relation_macro(v)}}}{{#1}}}}"
            for v in COLOURED_RELATIONS
        ),
        f"\\providecommand{{\\{STACK_MACRO}}}[1]{{\\begin{{tabular}}[c]{{@{{}}c@{{}}}}#1\\end{{tabular}}}}",
    ]


def latex_document(file_names: Sequence[str]) -> str:
    """A document that compiles beside the files of these names and that of the preamble."""
    return "\n".join(
        [
            "% Compiles on its own: pdflatex all.tex",
            "\\documentclass{article}",
            "\\usepackage[margin=2cm]{geometry}",
            f"\\input{{{PREAMBLE_FILE}}}",
            "\\begin{document}",
            *(f"\\input{{{name}}}" for name in file_names),
            "\\end{document}",
            "",
        ]
    )


def standalone_latex(floats: Sequence[str]) -> str:
    """Floats that compile on their own and can be \\input into a paper that loads the packages."""
    return "\n".join(
        [
            f"% Compiles on its own; in a paper, {LATEX_PACKAGES} and \\input this file.",
            "\\makeatletter",
            "\\ifx\\@classoptionslist\\relax",
            "  \\documentclass{article}",
            "  \\usepackage[margin=2cm]{geometry}",
            f"  {LATEX_PACKAGES}",
            "  \\begin{document}",
            "  \\def\\fedmosaicends{\\end{document}}",
            "\\else",
            "  \\def\\fedmosaicends{}",
            "\\fi",
            "\\makeatother",
            *macro_definitions(),
            *(text.rstrip("\n") for text in floats),
            "\\fedmosaicends",
            "",
        ]
    )


def table_to_latex(table: ComparisonTable) -> str:
    """The table as a float."""
    key = ", ".join(
        f"\\{relation_macro(verdict)}{{{verdict.description}}}"
        for verdict in table.baseline_relations()
        if verdict.colour
    )
    stacked = len(table.columns) >= MIN_STACKED_COLUMNS
    body: list[str] = []
    for family, rows in rows_by_family(table):
        body += ["    \\midrule", *latex_family_rows(family, rows, table, stacked)]
    return "\n".join(
        [
            *(f"% to fill a gap: {single_line(command)}" for command in table.commands),
            "\\begin{table}[t]",
            "  \\centering\\small\\setlength{\\tabcolsep}{4pt}",
            f"  \\caption{{{escape_latex(table.caption)}{f' Colours: {key}.' if key else ''}}}",
            f"  \\label{{tab:fedmosaic-{table.name}}}",
            "  \\smallskip",
            *SHRINK_TO_LINE_WIDTH,
            f"  \\begin{{tabular}}{{ll{('c' if stacked else 'r') * len(table.columns)}}}",
            "    \\toprule",
            *latex_header(table.columns),
            *body,
            "    \\bottomrule",
            "  \\end{tabular}}",
            *latex_notes(table),
            "\\end{table}",
            "",
        ]
    )


def latex_notes(table: ComparisonTable) -> list[str]:
    """The protocol, in small print below the table."""
    blocks = [" \\newline ".join(map(escape_latex, block)) for block in table.privacy_notes]
    if not table.notes and not blocks:
        return []
    text = " \\par ".join([escape_latex(" ".join(table.notes)), *blocks])
    return ["  \\par\\smallskip", f"  \\begin{{minipage}}{{\\linewidth}}\\footnotesize {text}\\end{{minipage}}"]


def latex_header(columns: Sequence[TableColumn]) -> list[str]:
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


def latex_family_rows(family: str, rows: Sequence[TableRow], table: ComparisonTable, stacked: bool) -> list[str]:
    """The rows of a group, its name beside the first, turned where there is room for it."""
    turned = f"\\multirow{{{len(rows)}}}{{*}}{{\\rotatebox[origin=c]{{90}}{{\\textbf{{{family}}}}}}}"
    name = turned if family in LABELLED_FAMILIES and len(rows) > 1 else family if family in LABELLED_FAMILIES else ""
    lines = []
    for number, row in enumerate(rows):
        cells = [latex_result_cell(cell, table, column, stacked) for column, cell in enumerate(row.cells)]
        lines.append("    " + " & ".join([name if number == 0 else "", escape_latex(row.title), *cells]) + " \\\\")
    return lines


def latex_result_cell(cell: TableCell, table: ComparisonTable, column: int, stacked: bool) -> str:
    """Mean and spread in the colour of the verdict; the paper's number, where wanted, in black."""
    beside = [] if cell.published is None else [f"[{format_accuracy(cell.published.mean)}"]
    if beside:
        beside[0] += "]" if cell.difference is None else f", ${100 * cell.difference:+.2f}$]"
    result = cell.measured
    if result is None:
        return join_cell_parts(["--", *beside], stacked)
    mean = f"\\textbf{{{format_accuracy(result.mean)}}}" if result.is_best else format_accuracy(result.mean)
    mean += escape_latex(result.caveat_symbols) + incomplete_seeds_text(result, table, column)
    spread = [f"({format_accuracy(result.std)})"] if result.std is not None else []
    parts = [mean, *spread]
    if result.relation.colour:
        parts = [f"\\{relation_macro(result.relation)}{{{part}}}" for part in parts]
    return join_cell_parts([*parts, *beside], stacked)


def join_cell_parts(parts: list[str], stacked: bool) -> str:
    """A number and what goes with it, side by side or one above the other."""
    first, *small = parts[0], *(f"{{\\tiny {part}}}" for part in parts[1:])
    if not stacked or not small:
        return " ".join([first, *small])
    return f"\\{STACK_MACRO}{{" + "\\\\[-3pt]".join([first, *small]) + "}"


def relation_macro(relation: BaselineRelation) -> str:
    """The LaTeX macro of a verdict: letters only, and unlikely to be taken."""
    return "verdict" + relation.name.lower().replace("_", "")


def single_line(text: str) -> str:
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
        special.get(letter) or (letter if is_pdflatex_letter(letter) else f"U+{ord(letter):04X}") for letter in words
    )


def is_pdflatex_letter(letter: str) -> bool:
    """Whether pdflatex prints a letter without further packages: plain ones, and those of Europe with one accent."""
    parts = unicodedata.normalize("NFD", letter)
    plain, accents = parts[0], parts[1:]
    accented = not accents or (accents[0] in PDFLATEX_ACCENTS and ord(letter) < 0x180)
    return letter in "ÆØßæøŁłŒœ" or (plain.isascii() and plain.isprintable() and accented)
