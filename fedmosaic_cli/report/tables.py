"""The comparison table as Markdown, LaTeX, CSV, and on a terminal."""

from __future__ import annotations

import csv
import inspect
import io
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.collect import CAVEATS
from fedmosaic_cli.report.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from fedmosaic_cli.report.collect import Cell, Row, Table

MISSING = "-"
NO_LIMIT = 1000


def to_markdown(table: Table) -> str:
    """A GitHub table. Verdicts are marks, the best of a column is bold."""
    lines = ["| | Method | " + " | ".join(map(escape_markdown, table.columns)) + " |"]
    lines.append("|---|---|" + "---:|" * len(table.columns))
    for family, rows in families(table):
        for number, row in enumerate(rows):
            cells = [markdown_cell(cell, table, column) for column, cell in enumerate(row.cells)]
            lines.append(f"| {family if number == 0 else ''} | {row.title} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", table.caption, legend(table)]).rstrip() + "\n"


def to_json(table: Table) -> list[dict[str, Any]]:
    """An entry a cell, accuracies as fractions in full precision."""
    return [
        {
            "setting": column,
            "family": row.family,
            "method": row.title,
            "mean": cell.mean,
            "std": cell.std,
            "seeds": list(cell.seeds),
            "verdict": cell.verdict.meaning,
            "caveats": [CAVEATS[mark] for mark in cell.caveats],
        }
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell
    ]


def to_csv(table: Table) -> str:
    """The same, a line a cell."""
    text = io.StringIO()
    entries = [
        {**entry, "seeds": " ".join(map(str, entry["seeds"])), "caveats": "; ".join(entry["caveats"])}
        for entry in to_json(table)
    ]
    writer = csv.DictWriter(text, fieldnames=list(entries[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A booktabs table that compiles on its own and can be \\input into a paper with booktabs, graphicx and xcolor."""
    colours = [verdict for verdict in Verdict if verdict.colour]
    body: list[str] = []
    for number, (family, rows) in enumerate(families(table)):
        body += ["    \\midrule"] if number else []
        for position, row in enumerate(rows):
            cells = [latex_cell(cell, table, column) for column, cell in enumerate(row.cells)]
            name = escape_latex(family) if position == 0 else ""
            body.append("    " + " & ".join([name, escape_latex(row.title), *cells]) + " \\\\")
    key = ", ".join(f"\\{macro(verdict)}{{{verdict.meaning}}}" for verdict in table.verdicts() if verdict.colour)
    return "\n".join(
        [
            "% Compiles on its own; in a paper, load booktabs, graphicx and xcolor and \\input this file.",
            "\\makeatletter",
            "\\ifx\\@classoptionslist\\relax",
            "  \\documentclass{article}",
            "  \\usepackage{booktabs,graphicx,xcolor}",
            "  \\begin{document}",
            "  \\def\\fedmosaicends{\\end{document}}",
            "\\else",
            "  \\def\\fedmosaicends{}",
            "\\fi",
            "\\makeatother",
            *(f"\\definecolor{{{macro(v)}}}{{HTML}}{{{v.colour}}}" for v in colours),
            *(f"\\providecommand{{\\{macro(v)}}}[1]{{\\textcolor{{{macro(v)}}}{{#1}}}}" for v in colours),
            "\\begin{table}[t]",
            "  \\centering\\small\\setlength{\\tabcolsep}{4pt}",
            f"  \\caption{{{escape_latex(table.caption)}{f' Colours: {key}.' if key else ''}}}",
            "  \\smallskip",
            "  % Shrunk to the line where it is too wide for it.",
            "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
            f"  \\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
            "    \\toprule",
            "    & Method & " + " & ".join(map(escape_latex, table.columns)) + " \\\\",
            "    \\midrule",
            *body,
            "    \\bottomrule",
            "  \\end{tabular}}",
            "\\end{table}",
            "\\fedmosaicends",
            "",
        ]
    )


def to_terminal(table: Table) -> Group:
    """The table in the paper's colours, with a mark beside each for those who cannot tell them apart."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(box=box.SIMPLE_HEAD)
    view.add_column("")
    view.add_column("Method")
    for column in table.columns:
        view.add_column(Text(column), justify="right", overflow="fold")
    for family, rows in families(table):
        for number, row in enumerate(rows):
            cells = [terminal_cell(cell, table, column) for column, cell in enumerate(row.cells)]
            view.add_row(
                Text(family if number == 0 else "", style="dim"), row.title, *cells, end_section=number == len(rows) - 1
            )
    return Group(view, Text(f"{table.caption}\n{legend(table)}".rstrip(), style="dim"))


def to_svg(table: Table) -> str:
    """A picture of the terminal's view, as wide as the table needs."""
    from rich.console import Console

    view = to_terminal(table)
    width = Console(width=NO_LIMIT).measure(view.renderables[0]).maximum
    canvas = Console(record=True, width=max(width, 80), file=io.StringIO())
    canvas.print(view)
    # Rich asks a server for its font; a picture should not: any monospace font will do.
    template = inspect.signature(Console.export_svg).parameters["code_format"].default
    template = re.sub(r"@font-face \{\{.*?\}\}", "", template, flags=re.DOTALL)
    return canvas.export_svg(title="fedmosaic report", code_format=template)


def terminal_cell(cell: Cell | None, table: Table, column: int) -> Text:
    from rich.text import Text

    if cell is None:
        return Text(MISSING, style="dim")
    style = f"#{cell.verdict.colour}" if cell.verdict.colour else ""
    return Text(
        f"{plain(cell, table, column)} {cell.verdict.mark or ' '}", style=f"bold {style}" if cell.best else style
    )


def markdown_cell(cell: Cell | None, table: Table, column: int) -> str:
    if cell is None:
        return MISSING
    text = plain(cell, table, column)
    return f"{f'**{text}**' if cell.best else text} {cell.verdict.mark}".rstrip()


def latex_cell(cell: Cell | None, table: Table, column: int) -> str:
    if cell is None:
        return "--"
    text = f"{percent(cell.mean)}" if not cell.best else f"\\textbf{{{percent(cell.mean)}}}"
    text += escape_latex(cell.caveats)
    text += f" {{\\tiny ({percent(cell.std)})}}" if cell.std is not None else ""
    text += share_of_seeds(cell, table, column)
    return f"\\{macro(cell.verdict)}{{{text}}}" if cell.verdict.colour else text


def plain(cell: Cell, table: Table, column: int) -> str:
    spread = f" ({percent(cell.std)})" if cell.std is not None else ""
    return percent(cell.mean) + cell.caveats + spread + share_of_seeds(cell, table, column)


def share_of_seeds(cell: Cell, table: Table, column: int) -> str:
    """Said only where a method lacks seeds that others of the column have."""
    every = len(table.seeds(column))
    return "" if len(cell.seeds) == every else f" [{len(cell.seeds)} of {every} seeds]"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def legend(table: Table) -> str:
    """What the marks mean, as far as they occur."""
    marks = [f"{verdict.mark} {verdict.meaning}" for verdict in table.verdicts() if verdict.mark]
    return "; ".join(marks) + "." if marks else ""


def families(table: Table) -> list[tuple[str, list[Row]]]:
    """The rows by family, in the order of the table."""
    return [(family, list(rows)) for family, rows in groupby(table.rows, key=lambda row: row.family)]


def macro(verdict: Verdict) -> str:
    """The LaTeX macro of a verdict: letters only, and unlikely to be taken."""
    return "verdict" + verdict.name.lower().replace("_", "")


def escape_latex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {"†": "\\textdagger{}", "‡": "\\textdaggerdbl{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")
