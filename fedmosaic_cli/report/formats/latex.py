"""Comparison tables in LaTeX: booktabs, groups of methods, coloured results, fitted to the line."""

from __future__ import annotations

import re
import unicodedata
from textwrap import wrap
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison_table import EXTENDED_FAMILY, BaselineRelation
from fedmosaic_cli.report.formats.table_grid import DEFAULT_LAYOUT, FAMILY_LABELS, TEXT_WIDTH_POINTS, table_grid
from fedmosaic_cli.report.formats.text_formats import caption_text, new_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.formats.table_grid import GridCell, GridLabel, TableGrid, TableLayout

PREAMBLE_FILE = "fedmosaic-preamble.tex"
LATEX_PACKAGES = "\\usepackage{booktabs,xcolor}"
COLOURED_RELATIONS = [relation for relation in BaselineRelation if relation.colour]
MIN_STACKED_COLUMNS = 6
"""From this number of columns on, the standard deviation is below the mean."""
FAMILY_HEADINGS = ("co-training", EXTENDED_FAMILY)
STACK_MACRO, HEADING_MACRO, FIT_MACRO = "stackednumbers", "stackedheading", "fedmosaicfit"
MAX_HEADING_CHARS = 13
"""Headings are broken into lines of this length, longer words are not broken."""
COLUMN_WIDTH_POINTS = 200.0
"""The width of a column of common two-column templates, at most."""
MAX_FLOAT_LINES, HEADER_LINES = 45, 5
"""The number of lines of a float with several tabulars below each other, and of the headings of each."""
# Widths of characters in points at \footnotesize, of the widest of the common fonts.
NARROW_CHARACTERS, WIDE_CHARACTERS = "ijltfI.,:;()[]'|! ", "mw%+=<>@&"
NARROW_POINTS, WIDE_POINTS, AVERAGE_POINTS = 2.7, 6.2, 4.25
BOLD_RATIO = 1.13
"""The width of bold text relative to normal text. \\scriptsize is hardly narrower than \\footnotesize."""
COLUMN_GAP_POINTS = 6.0
PDFLATEX_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
LATEX_ESCAPES = {
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"},
    **{"†": "\\textdagger{}", "‡": "\\textdaggerdbl{}", "§": "\\textsection{}", "¶": "\\textparagraph{}"},
    **{"[": "{[}", "]": "{]}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"},
    **{"λ": "$\\lambda$", "±": "$\\pm$"},
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
        f"\\providecommand{{\\{HEADING_MACRO}}}[1]{{\\begin{{tabular}}[b]{{@{{}}c@{{}}}}#1\\end{{tabular}}}}",
        "% Uses smaller gaps and then a smaller font where a table is too wide for the line.",
        f"\\providecommand{{\\{FIT_MACRO}}}[1]{{\\begingroup\\small\\setlength{{\\tabcolsep}}{{5pt}}\\sbox0{{#1}}%",
        "  \\ifdim\\wd0>\\linewidth\\setlength{\\tabcolsep}{3pt}\\sbox0{#1}\\fi",
        "  \\ifdim\\wd0>\\linewidth\\footnotesize\\sbox0{#1}\\fi",
        "  \\ifdim\\wd0>\\linewidth\\setlength{\\tabcolsep}{1.5pt}\\sbox0{#1}\\fi",
        "  \\ifdim\\wd0>\\linewidth\\scriptsize\\sbox0{#1}\\fi% only in narrow documents",
        "  \\usebox0\\endgroup}",
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


def tables_to_latex(tables: Sequence[ComparisonTable], layout: TableLayout = DEFAULT_LAYOUT) -> list[str]:
    """Return the floats of tables that belong to one document: a note is below the first table that has it."""
    seen_notes: set[str] = set()
    return [table_to_latex(table, layout, seen_notes) for table in tables]


def table_to_latex(
    table: ComparisonTable, layout: TableLayout = DEFAULT_LAYOUT, seen_notes: set[str] | None = None
) -> str:
    """Return the table as a float, or as several if it is too wide for the text.

    Notes in `seen_notes` are left out, and the others are added to it.
    """
    grid = table_grid(table, layout)
    parts = [latex_tabular(part, layout, stacks_numbers(grid)) for part in fitting_parts(grid, layout.table_width)]
    environment = float_environment(label_width_points(grid) + sum(column_widths_points(grid)))
    notes = [] if layout.plain else latex_notes(table, set() if seen_notes is None else seen_notes)
    num_lines = HEADER_LINES + len(grid.rows) * (2 if stacks_numbers(grid) else 1)
    chunk_size = max(1, MAX_FLOAT_LINES // num_lines)
    chunks = [parts[start : start + chunk_size] for start in range(0, len(parts), chunk_size)]
    caption = latex_caption(table, layout)
    lines = [] if layout.plain else [f"% missing: {' '.join(command.split())}" for command in table.commands]
    if len(parts) > 1:
        lines.append("% Wider than the text, so it is split: --table-width, --transpose or fewer methods avoid this.")
    for number, chunk in enumerate(chunks):
        lines += latex_float(
            environment,
            "(continued)" if number else caption,
            "" if number else f"tab:fedmosaic-{table.name}",
            chunk,
            notes if number == len(chunks) - 1 else [],
            is_continued=number > 0,
        )
    return "\n".join([*lines, ""])


def float_environment(width_points: float) -> str:
    """Return `table`, or `table*` for a tabular that is too wide for a column of a two-column paper."""
    return "table" if width_points <= COLUMN_WIDTH_POINTS else "table*"


def latex_float(
    environment: str,
    caption: str,
    label: str,
    tabulars: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    is_continued: bool = False,
) -> list[str]:
    """Return the lines of a float with one or several tabulars below each other. Caption and notes are LaTeX.

    A float that continues a table has the number of the float before it.
    """
    lines = [f"\\begin{{{environment}}}[t]", "  \\centering"]
    lines += ["  \\addtocounter{table}{-1}"] if is_continued else []
    lines += [f"  \\caption{{{caption}}}"]
    lines += [f"  \\label{{{label}}}"] if label else []
    for number, tabular in enumerate(tabulars):
        lines += [
            "  \\par\\bigskip" if number else "  \\par\\smallskip",
            f"  \\{FIT_MACRO}{{%",
            *(f"  {line}" for line in tabular),
        ]
        lines[-1] += "}"
    return [*lines, *notes, f"\\end{{{environment}}}"]


def latex_caption(table: ComparisonTable, layout: TableLayout) -> str:
    """Return the caption with a legend of the colours, if methods have any."""
    text = latex_seed_range(escape_latex(caption_text(table, layout)))
    names = {BaselineRelation.BASELINE: "references"}
    relations = table.baseline_relations()
    coloured = [relation for relation in relations if relation.colour]
    if coloured in ([], [BaselineRelation.BASELINE]):
        return text
    legend = ", ".join(f"\\{relation_macro(each)}{{{names.get(each, each.legend)}}}" for each in coloured)
    if BaselineRelation.NEITHER in relations:
        legend += f", black: {BaselineRelation.NEITHER.legend}"
    return f"{text} Colours: {legend}."


def latex_seed_range(text: str) -> str:
    """Return the text with a dash in ranges of seeds."""
    return re.sub(r"(seeds \d+)-(\d+)", r"\1--\2", text)


def latex_notes(table: ComparisonTable, seen_notes: set[str]) -> list[str]:
    """Return the notes in small print below the table, without those that were printed before."""
    privacy_notes = [" \\newline ".join(map(escape_latex, note)) for note in new_notes(table.privacy_notes, seen_notes)]
    notes = latex_seed_range(escape_latex(" ".join(new_notes(table.notes, seen_notes))))
    if not notes and not privacy_notes:
        return []
    text = " \\par ".join(filter(None, [notes, *privacy_notes]))
    return ["  \\par\\smallskip", f"  \\begin{{minipage}}{{\\linewidth}}\\footnotesize {text}\\end{{minipage}}"]


def latex_tabular(grid: TableGrid, layout: TableLayout, is_stacked: bool) -> list[str]:
    """Return the lines of the tabular, with the group of methods or settings above its rows."""
    width = len(grid.columns) + 1
    body: list[str] = []
    for group, rows in grid.row_groups():
        body.append("  \\midrule")
        if group:
            body.append(f"  \\multicolumn{{{width}}}{{@{{}}l}}{{\\textit{{{escape_latex(group_title(group))}}}}} \\\\")
        for number, (label, cells) in enumerate(rows):
            if number and label.is_summary and not rows[number - 1][0].is_summary:
                body.append("  \\midrule")
            texts = [latex_cell(cell, layout, is_stacked) for cell in cells]
            body.append(f"  {' & '.join([escape_latex(label.text), *texts])} \\\\")
    return [
        f"\\begin{{tabular}}{{@{{}}l{column_alignments(grid, is_stacked)}@{{}}}}",
        "  \\toprule",
        *latex_header(grid),
        *body,
        "  \\bottomrule",
        "\\end{tabular}",
    ]


def column_alignments(grid: TableGrid, is_stacked: bool) -> str:
    """Return a letter for each column: left-aligned if published results make some cells wider than others."""
    with_published = [any(row[number].published for row in grid.cells) for number in range(len(grid.columns))]
    return "".join("l" if published and not is_stacked else "c" for published in with_published)


def latex_header(grid: TableGrid) -> list[str]:
    """Return the line of labels, below a line of groups if there are any."""
    labels = " & ".join([f"\\textbf{{{grid.corner}}}", *map(latex_heading, grid.columns)])
    if not any(label.group for label in grid.columns):
        return [f"  {labels} \\\\"]
    groups, rules, position = [], [], 2
    for group, width in grid.column_groups():
        groups.append(f"\\multicolumn{{{width}}}{{c}}{{\\textbf{{{escape_latex(group_title(group))}}}}}")
        rules.append(f"\\cmidrule(lr){{{position}-{position + width - 1}}}" if group else "")
        position += width
    return [f"  & {' & '.join(groups)} \\\\", f"  {''.join(rules)}", f"  {labels} \\\\"]


def latex_heading(label: GridLabel) -> str:
    """Return the label of a column, in several lines if it is long."""
    lines = [f"\\textbf{{{escape_latex(line)}}}" for line in heading_lines(label.text)]
    return lines[0] if len(lines) == 1 else f"\\{HEADING_MACRO}{{" + "\\\\".join(lines) + "}"


def heading_lines(text: str) -> list[str]:
    """Return the lines of a heading, broken between words, and in long words after hyphens."""
    text = printable_text(text)
    lines = wrap(text, MAX_HEADING_CHARS, break_long_words=False, break_on_hyphens=False) or [""]
    return [part for line in lines for part in wrap(line, MAX_HEADING_CHARS, break_long_words=False) or [""]]


def latex_cell(cell: GridCell, layout: TableLayout, is_stacked: bool) -> str:
    """Return mean and standard deviation in the relation's colour, and the published mean in black."""
    parts = ["--"]
    if cell.mean:
        mean = f"\\textbf{{{cell.mean}}}" if cell.is_best else cell.mean
        std = f"{{\\scriptsize $\\pm$ {cell.std}}}" if layout.plus_minus else f"{{\\scriptsize ({cell.std})}}"
        parts = [mean + escape_latex(cell.symbols), *([std] if cell.std else [])]
        if cell.relation and cell.relation.colour:
            parts = [f"\\{relation_macro(cell.relation)}{{{part}}}" for part in parts]
        parts += [f"{{\\scriptsize {escape_latex(cell.seeds)}}}"] if cell.seeds else []
    if cell.published:
        published = re.sub(r", ([-+][\d.]+)", r", $\1$", escape_latex(cell.published))
        parts.append(f"{{\\scriptsize {published}}}")
    if is_stacked and len(parts) > 1:
        return f"\\{STACK_MACRO}{{" + "\\\\[-2pt]".join(parts) + "}"
    return " ".join(parts)


def stacks_numbers(grid: TableGrid) -> bool:
    return len(grid.columns) >= MIN_STACKED_COLUMNS


def fitting_parts(grid: TableGrid, text_width: float = TEXT_WIDTH_POINTS) -> list[TableGrid]:
    """Return the grid, or grids with some of its columns each, which fit into the width of a text.

    Those with published results only are last.
    """
    parts = split_columns(label_width_points(grid), column_widths_points(grid), text_width)
    grids = [grid] if len(parts) == 1 else [grid.select_columns(part) for part in parts]
    return sorted(grids, key=has_results, reverse=True)  # the caption of the first names seeds and colours


def split_columns(
    label_width: float, widths: Sequence[float], text_width: float = TEXT_WIDTH_POINTS
) -> list[list[int]]:
    """Return the column numbers of the fewest parts that fit into the width of a text, about equally wide."""
    parts = parts_within(label_width, widths, text_width)
    for limit in range(int(max(widths, default=0)), int(text_width), 10):
        balanced = parts_within(label_width, widths, limit)
        if len(balanced) <= len(parts):
            return balanced
    return parts


def has_results(grid: TableGrid) -> bool:
    """Return whether a grid has results of runs, not only published ones."""
    return any(cell.mean for row in grid.cells for cell in row)


def parts_within(label_width: float, widths: Sequence[float], limit: float) -> list[list[int]]:
    """Fill parts with columns up to a width."""
    parts: list[list[int]] = [[]]
    for number, width in enumerate(widths):
        if parts[-1] and label_width + sum(widths[other] for other in parts[-1]) + width > limit:
            parts.append([])
        parts[-1].append(number)
    return parts


def label_width_points(grid: TableGrid) -> float:
    return max(text_width_points(text) for text in (grid.corner, *(label.text for label in grid.rows)))


def column_widths_points(grid: TableGrid) -> list[float]:
    """Estimate the widths of the columns at \\footnotesize, with the gaps between them."""
    is_stacked = stacks_numbers(grid)
    widths = []
    for number, label in enumerate(grid.columns):
        heading = heading_width_points(label.text)
        cells = [cell_width_points(row[number], is_stacked) for row in grid.cells]
        widths.append(max([heading, *cells]) + COLUMN_GAP_POINTS)
    return widths


def cell_width_points(cell: GridCell, is_stacked: bool) -> float:
    small_parts = [f"({cell.std})" if cell.std else "", cell.seeds, cell.published]
    widths = [text_width_points(cell.mean + cell.symbols)]
    widths += [text_width_points(f" {part}") for part in small_parts if part]
    return max(widths) if is_stacked else sum(widths)


def heading_width_points(text: str) -> float:
    """Estimate the width of a bold heading in several lines."""
    return BOLD_RATIO * max(map(text_width_points, heading_lines(text)))


def text_width_points(text: str) -> float:
    """Estimate the width of a text at \\footnotesize."""
    return sum(
        NARROW_POINTS
        if letter in NARROW_CHARACTERS
        else WIDE_POINTS
        if letter.isupper() or letter in WIDE_CHARACTERS
        else AVERAGE_POINTS
        for letter in printable_text(text)
    )


def group_title(group: str) -> str:
    """Return the label of a group as a heading: families of methods begin with a capital letter."""
    return group[:1].upper() + group[1:] if group in (*FAMILY_LABELS.values(), *FAMILY_HEADINGS) else group


def relation_macro(relation: BaselineRelation) -> str:
    """Return the name of the colour and macro of a relation. LaTeX allows only letters."""
    return "verdict" + relation.name.lower().replace("_", "")


def escape_latex(text: str) -> str:
    """Escape text and join its lines. Characters that pdflatex cannot print become their code points."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in printable_text(text))


def printable_text(text: str) -> str:
    """Join the lines of a text and replace characters that pdflatex cannot print by their code points."""
    return "".join(
        character if character in LATEX_ESCAPES or is_pdflatex_letter(character) else f"U+{ord(character):04X}"
        for character in unicodedata.normalize("NFC", " ".join(text.split()))
    )


def is_pdflatex_letter(letter: str) -> bool:
    """Return whether pdflatex prints a letter without packages: ASCII, and European letters with one accent."""
    decomposed = unicodedata.normalize("NFD", letter)
    base, accents = decomposed[0], decomposed[1:]
    accented = not accents or (accents[0] in PDFLATEX_ACCENTS and ord(letter) < 0x180)
    return letter in "ÆØßæøŁłŒœ" or (base.isascii() and base.isprintable() and accented)
