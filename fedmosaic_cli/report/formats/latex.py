"""Comparison tables in LaTeX as in the paper: booktabs, rotated family names, coloured results."""

from __future__ import annotations

import unicodedata
from itertools import groupby
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison_table import BaselineRelation
from fedmosaic_cli.report.formats.text_formats import format_accuracy, incomplete_seeds_text, rows_by_family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison_table import ComparisonTable, TableCell, TableColumn, TableRow

PREAMBLE_FILE = "fedmosaic-preamble.tex"
LATEX_PACKAGES = "\\usepackage{booktabs,graphicx,multirow,xcolor}"
COLOURED_RELATIONS = [relation for relation in BaselineRelation if relation.colour]
# Families with a name in the margin.
LABELLED_FAMILIES = ("FL", "PFL")
MIN_STACKED_COLUMNS = 6
"""From this number of columns on, the standard deviation is below the mean."""
STACK_MACRO = "stackednumbers"
SHRINK_TO_LINE_WIDTH = (
    "  % Shrunk to the line where it is too wide for it.",
    "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
)
PDFLATEX_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
LATEX_ESCAPES = {
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"},
    **{"†": "\\textdagger{}", "‡": "\\textdaggerdbl{}", "§": "\\textsection{}", "¶": "\\textparagraph{}"},
    **{"[": "{[}", "]": "{]}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"},
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def latex_preamble() -> str:
    """Return the file with colours and macros to \\input before the document begins."""
    comment = "% What the tables of fedmosaic need: \\input this file before \\begin{document}."
    return "\n".join([comment, LATEX_PACKAGES, *macro_definitions(), ""])


def macro_definitions() -> list[str]:
    macros = {relation_macro(relation): relation.colour for relation in COLOURED_RELATIONS}
    return [
        *(f"\\definecolor{{{macro}}}{{HTML}}{{{colour}}}" for macro, colour in macros.items()),
        *(f"\\providecommand{{\\{macro}}}[1]{{\\textcolor{{{macro}}}{{#1}}}}" for macro in macros),
        f"\\providecommand{{\\{STACK_MACRO}}}[1]{{\\begin{{tabular}}[c]{{@{{}}c@{{}}}}#1\\end{{tabular}}}}",
    ]


def latex_document(file_names: Sequence[str]) -> str:
    """Return a document that compiles beside the given files and the preamble file."""
    lines = [
        "% Compiles on its own: pdflatex all.tex",
        "\\documentclass{article}",
        "\\usepackage[margin=2cm]{geometry}",
        f"\\input{{{PREAMBLE_FILE}}}",
        "\\begin{document}",
        *(f"\\input{{{name}}}" for name in file_names),
        "\\end{document}",
        "",
    ]
    return "\n".join(lines)


def standalone_latex(floats: Sequence[str]) -> str:
    """Return a file that compiles alone, and that a paper with the packages can \\input."""
    lines = [
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
    return "\n".join(lines)


def table_to_latex(table: ComparisonTable) -> str:
    """Return the table as a float."""
    relations = [relation for relation in table.baseline_relations() if relation.colour]
    legend = ", ".join(f"\\{relation_macro(relation)}{{{relation.description}}}" for relation in relations)
    stacked = len(table.columns) >= MIN_STACKED_COLUMNS
    body: list[str] = []
    for family, rows in rows_by_family(table):
        body += ["    \\midrule", *latex_family_rows(family, rows, table, stacked)]
    lines = [
        *(f"% to fill a gap: {' '.join(command.split())}" for command in table.commands),
        "\\begin{table}[t]",
        "  \\centering\\small\\setlength{\\tabcolsep}{4pt}",
        f"  \\caption{{{escape_latex(table.caption)}{f' Colours: {legend}.' if legend else ''}}}",
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
    return "\n".join(lines)


def latex_notes(table: ComparisonTable) -> list[str]:
    """Return the notes in small print below the table."""
    privacy_notes = [" \\newline ".join(map(escape_latex, note)) for note in table.privacy_notes]
    if not table.notes and not privacy_notes:
        return []
    text = " \\par ".join([escape_latex(" ".join(table.notes)), *privacy_notes])
    return ["  \\par\\smallskip", f"  \\begin{{minipage}}{{\\linewidth}}\\footnotesize {text}\\end{{minipage}}"]


def latex_header(columns: Sequence[TableColumn]) -> list[str]:
    """Return the line of labels, below a line of headings if there are any."""
    labels = "    & \\textbf{Method} & " + " & ".join(f"\\textbf{{{escape_latex(c.label)}}}" for c in columns) + " \\\\"
    if not any(column.heading for column in columns):
        return [labels]
    headings, rules, position = [], [], 3
    for heading, group in groupby(columns, key=lambda column: column.heading):
        width = len(list(group))
        headings.append(f"\\multicolumn{{{width}}}{{c}}{{\\textbf{{{escape_latex(heading)}}}}}")
        rules.append(f"\\cmidrule(lr){{{position}-{position + width - 1}}}" if heading else "")
        position += width
    return ["    & & " + " & ".join(headings) + " \\\\", "    " + "".join(rules), labels]


def latex_family_rows(family: str, rows: Sequence[TableRow], table: ComparisonTable, stacked: bool) -> list[str]:
    """Return the rows of a family, with its name beside the first row, rotated if there are several rows."""
    name = family if family in LABELLED_FAMILIES else ""
    if name and len(rows) > 1:
        name = f"\\multirow{{{len(rows)}}}{{*}}{{\\rotatebox[origin=c]{{90}}{{\\textbf{{{family}}}}}}}"
    lines = []
    for number, row in enumerate(rows):
        cells = [latex_result_cell(cell, table, column, stacked) for column, cell in enumerate(row.cells)]
        lines.append("    " + " & ".join([name if number == 0 else "", escape_latex(row.title), *cells]) + " \\\\")
    return lines


def latex_result_cell(cell: TableCell, table: ComparisonTable, column: int, stacked: bool) -> str:
    """Return mean and standard deviation in the relation's colour, and the published mean in black."""
    parts, result = ["--"], cell.measured
    if result is not None:
        mean = f"\\textbf{{{format_accuracy(result.mean)}}}" if result.is_best else format_accuracy(result.mean)
        parts = [mean + escape_latex(result.caveat_symbols) + incomplete_seeds_text(result, table, column)]
        parts += [f"({format_accuracy(result.std)})"] if result.std is not None else []
        if result.relation.colour:
            parts = [f"\\{relation_macro(result.relation)}{{{part}}}" for part in parts]
    if cell.published is not None:
        difference = "" if cell.difference is None else f", ${100 * cell.difference:+.2f}$"
        parts.append(f"[{format_accuracy(cell.published.mean)}{difference}]")
    sized = [parts[0], *(f"{{\\tiny {part}}}" for part in parts[1:])]
    return f"\\{STACK_MACRO}{{" + "\\\\[-3pt]".join(sized) + "}" if stacked and len(sized) > 1 else " ".join(sized)


def relation_macro(relation: BaselineRelation) -> str:
    """Return the name of the colour and macro of a relation. LaTeX allows only letters."""
    return "verdict" + relation.name.lower().replace("_", "")


def escape_latex(text: str) -> str:
    """Escape text and join its lines. Characters that pdflatex cannot print become their code points."""
    characters = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(
        LATEX_ESCAPES.get(character) or (character if is_pdflatex_letter(character) else f"U+{ord(character):04X}")
        for character in characters
    )


def is_pdflatex_letter(letter: str) -> bool:
    """Return whether pdflatex prints a letter without packages: ASCII, and European letters with one accent."""
    decomposed = unicodedata.normalize("NFD", letter)
    base, accents = decomposed[0], decomposed[1:]
    accented = not accents or (accents[0] in PDFLATEX_ACCENTS and ord(letter) < 0x180)
    return letter in "ÆØßæøŁłŒœ" or (base.isascii() and base.isprintable() and accented)
