"""A table as text: Markdown, CSV, JSON, and for a terminal. LaTeX has a file of its own."""

from __future__ import annotations

import csv
import inspect
import io
import re
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.collect import CAVEATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    from fedmosaic_cli.report.comparison_table import Cell, Column, Result, Row, Table

MISSING = "-"
NO_LIMIT = 1000
NARROWEST_HEAD = 14
FIELDS = (
    *("setting", "family", "method", "mean", "std", "seeds", "verdict", "caveats"),
    *("domain", "published", "published_std", "difference", "table", "command"),
)


def to_markdown(table: Table) -> str:
    """A GitHub table. Verdicts are marks, the best of a column is bold."""
    heads = [escape_markdown(": ".join(filter(None, (column.heading, column.label)))) for column in table.columns]
    lines = [f"| | Method | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for family, rows in families(table):
        for number, row in enumerate(rows):
            cells = [markdown_cell(cell, table, column) for column, cell in enumerate(row.cells)]
            name = family if number == 0 else ""
            lines.append(f"| {name} | {escape_markdown(row.title)} | {' | '.join(cells)} |")
    lines += ["", escape_markdown(table.caption), *([legend(table)] if legend(table) else [])]
    if table.notes:
        lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)]
    for title, *told in table.blocks:
        lines += ["", escape_markdown(title), "", *(f"    {line}" for line in told)]
    if table.commands:
        lines += ["", "Missing:", "", *(f"    {command}" for command in table.commands)]
    return "\n".join(lines) + "\n"


def to_json(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """An entry a cell, accuracies as fractions in full precision; a cell without a number says how to fill it."""
    return [
        entry_of(table, row, column, cell)
        for table in tables
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell.ours or cell.published or cell.command
    ]


def entry_of(table: Table, row: Row, column: Column, cell: Cell) -> dict[str, Any]:
    ours, paper = cell.ours, cell.published
    values = (
        *(column.setting.label if column.setting else column.preset, row.family, row.title),
        *(ours and ours.mean, ours and ours.std, list(ours.seeds) if ours else []),
        *(ours and ours.verdict.meaning, [CAVEATS[mark] for mark in ours.caveats] if ours else []),
        *(column.domain or None, paper and paper.mean, paper and paper.std, cell.difference),
        *(table.name, cell.command or None),
    )
    return dict(zip(FIELDS, values, strict=True))


def to_csv(tables: Sequence[Table]) -> str:
    """The same, a line a cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=FIELDS, lineterminator="\n")
    writer.writeheader()
    for entry in to_json(tables):
        joined = {"seeds": " ".join(map(str, entry["seeds"])), "caveats": "; ".join(entry["caveats"])}
        writer.writerow({**entry, **joined})
    return text.getvalue()


def to_terminal(table: Table, width: int = NO_LIMIT) -> Group:
    """The table in the paper's colours, with a mark beside each for those who cannot tell them apart.

    Where not all columns fit into the width, it is several tables below each other.
    """
    from rich.console import Group
    from rich.text import Text

    below = [table.caption, legend(table), *table.notes, *(line for block in table.blocks for line in block)]
    missing = [Text("missing:", style="dim"), *map(Text, table.commands)] if table.commands else []
    return Group(*terminal_parts(table, width), Text("\n".join(filter(None, below)), style="dim"), *missing)


def terminal_parts(table: Table, width: int) -> list[RichTable]:
    """The columns in one table or, with narrower heads, in as few of this width as can be; each has at least one."""
    from rich.console import Console

    def fits(part: RichTable) -> bool:
        return Console(width=NO_LIMIT).measure(part).maximum <= width

    every = range(len(table.columns))
    if fits(whole := terminal_part(table, every, NO_LIMIT)):
        return [whole]
    parts: list[list[int]] = [[]]
    for column in every:
        if parts[-1] and not fits(terminal_part(table, [*parts[-1], column], NARROWEST_HEAD)):
            parts.append([])
        parts[-1].append(column)
    return [terminal_part(table, columns, NARROWEST_HEAD) for columns in parts]


def terminal_part(table: Table, columns: Sequence[int], widest_head: int) -> RichTable:
    """Some columns of the table. Heads are wrapped that are wider than this and than what is below them."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(box=box.SIMPLE_HEAD)
    view.add_column("")
    view.add_column("Method")
    cells = {number: [terminal_cell(row.cells[number], table, number) for row in table.rows] for number in columns}
    for number in columns:
        column = table.columns[number]
        room = max(widest_head, *(cell.cell_len for cell in cells[number]))
        lines = [line for text in (column.heading, column.label) for line in wrap(text, room)]
        view.add_column(Text("\n".join(lines)), justify="right", no_wrap=True)
    place = 0
    for family, rows in families(table):
        for number, row in enumerate(rows):
            name = Text(family if number == 0 else "", style="dim")
            last = number == len(rows) - 1
            view.add_row(name, Text(row.title), *(cells[column][place] for column in columns), end_section=last)
            place += 1
    return view


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


def terminal_cell(cell: Cell, table: Table, column: int) -> Text:
    from rich.text import Text

    if cell.ours is None:
        return Text(f"{MISSING}{beside(cell)}  ", style="dim")
    verdict = cell.ours.verdict
    style = f"#{verdict.colour}" if verdict.colour else ""
    text = f"{number_of(cell.ours, table, column)} {verdict.mark or ' '}{beside(cell)}"
    return Text(text, style=f"bold {style}" if cell.ours.best else style)


def markdown_cell(cell: Cell, table: Table, column: int) -> str:
    if cell.ours is None:
        return f"{MISSING}{escape_inside(beside(cell))}"
    text = number_of(cell.ours, table, column)
    text = f"{f'**{text}**' if cell.ours.best else text} {cell.ours.verdict.mark}".rstrip()
    return text + escape_inside(beside(cell))


def number_of(result: Result, table: Table, column: int) -> str:
    """Mean, caveats, spread, and how many seeds."""
    spread = f" ({percent(result.std)})" if result.std is not None else ""
    return percent(result.mean) + result.caveats + spread + share_of_seeds(result, table, column)


def beside(cell: Cell) -> str:
    """The published number, and how far ours is from it."""
    if cell.published is None:
        return ""
    away = "" if cell.difference is None else f", {100 * cell.difference:+.2f}"
    return f" [{percent(cell.published.mean)}{away}]"


def share_of_seeds(result: Result, table: Table, column: int) -> str:
    """Said only where a method lacks seeds that others of the column have."""
    every = len(table.seeds(column))
    return "" if len(result.seeds) == every else f" [{len(result.seeds)} of {every} seeds]"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def legend(table: Table) -> str:
    """What the marks mean, as far as they occur."""
    marks = [f"{verdict.mark} {verdict.meaning}" for verdict in table.verdicts() if verdict.mark]
    return "; ".join(marks) + "." if marks else ""


def families(table: Table) -> list[tuple[str, list[Row]]]:
    """The rows by family, in the order of the table."""
    return [(family, list(rows)) for family, rows in groupby(table.rows, key=lambda row: row.family)]


def escape_markdown(text: str) -> str:
    """Text that means nothing to Markdown. An underscore inside a word is none of its signs."""
    return escape_inside(" ".join(text.split()))


def escape_inside(text: str) -> str:
    return re.sub(r"([\\|*`<\[\]$~])", r"\\\1", text)
