"""A table as text: Markdown, CSV, JSON, and for a terminal. LaTeX has a file of its own."""

from __future__ import annotations

import csv
import inspect
import io
import re
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    from fedmosaic_cli.report.comparison_table import ComparisonTable, MethodResult, TableCell, TableColumn, TableRow

EMPTY_CELL = "-"
UNLIMITED_WIDTH = 1000
MIN_HEADER_WIDTH = 14
CELL_FIELDS = (
    *("setting", "family", "method", "mean", "std", "seeds", "verdict", "caveats"),
    *("domain", "published", "published_std", "difference", "table", "command"),
)


def table_to_markdown(table: ComparisonTable) -> str:
    """A GitHub table. Verdicts are marks, the best of a column is bold."""
    heads = [escape_markdown(": ".join(filter(None, (column.heading, column.label)))) for column in table.columns]
    lines = [f"| | Method | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for family, rows in rows_by_family(table):
        for number, row in enumerate(rows):
            cells = [markdown_cell(cell, table, column) for column, cell in enumerate(row.cells)]
            name = family if number == 0 else ""
            lines.append(f"| {name} | {escape_markdown(row.title)} | {' | '.join(cells)} |")
    lines += ["", escape_markdown(table.caption), *([symbol_legend(table)] if symbol_legend(table) else [])]
    if table.notes:
        lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)]
    for title, *told in table.privacy_notes:
        lines += ["", escape_markdown(title), "", *(f"    {line}" for line in told)]
    if table.commands:
        lines += ["", "Missing:", "", *(f"    {command}" for command in table.commands)]
    return "\n".join(lines) + "\n"


def tables_to_json(tables: Sequence[ComparisonTable]) -> list[dict[str, Any]]:
    """An entry a cell, accuracies as fractions in full precision; a cell without a number says how to fill it."""
    return [
        cell_record(table, row, column, cell)
        for table in tables
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell.measured or cell.published or cell.command
    ]


def cell_record(table: ComparisonTable, row: TableRow, column: TableColumn, cell: TableCell) -> dict[str, Any]:
    ours, paper = cell.measured, cell.published
    values = (
        *(column.group.label if column.group else column.preset, row.family, row.title),
        *(ours and ours.mean, ours and ours.std, list(ours.seeds) if ours else []),
        *(
            ours and ours.relation.description,
            [CAVEAT_DESCRIPTIONS[mark] for mark in ours.caveat_symbols] if ours else [],
        ),
        *(column.domain or None, paper and paper.mean, paper and paper.std, cell.difference),
        *(table.name, cell.command or None),
    )
    return dict(zip(CELL_FIELDS, values, strict=True))


def tables_to_csv(tables: Sequence[ComparisonTable]) -> str:
    """The same, a line a cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=CELL_FIELDS, lineterminator="\n")
    writer.writeheader()
    for entry in tables_to_json(tables):
        joined = {"seeds": " ".join(map(str, entry["seeds"])), "caveats": "; ".join(entry["caveats"])}
        writer.writerow({**entry, **joined})
    return text.getvalue()


def table_to_terminal(table: ComparisonTable, width: int = UNLIMITED_WIDTH) -> Group:
    """The table in the paper's colours, with a mark beside each for those who cannot tell them apart.

    Where not all columns fit into the width, it is several tables below each other.
    """
    from rich.console import Group
    from rich.text import Text

    below = [
        table.caption,
        symbol_legend(table),
        *table.notes,
        *(line for block in table.privacy_notes for line in block),
    ]
    missing = [Text("missing:", style="dim"), *map(Text, table.commands)] if table.commands else []
    return Group(*terminal_tables(table, width), Text("\n".join(filter(None, below)), style="dim"), *missing)


def terminal_tables(table: ComparisonTable, width: int) -> list[RichTable]:
    """The columns in one table or, with narrower heads, in as few of this width as can be; each has at least one."""
    from rich.console import Console

    def fits(part: RichTable) -> bool:
        return Console(width=UNLIMITED_WIDTH).measure(part).maximum <= width

    every = range(len(table.columns))
    if fits(whole := terminal_table(table, every, UNLIMITED_WIDTH)):
        return [whole]
    parts: list[list[int]] = [[]]
    for column in every:
        if parts[-1] and not fits(terminal_table(table, [*parts[-1], column], MIN_HEADER_WIDTH)):
            parts.append([])
        parts[-1].append(column)
    return [terminal_table(table, columns, MIN_HEADER_WIDTH) for columns in parts]


def terminal_table(table: ComparisonTable, columns: Sequence[int], max_header_width: int) -> RichTable:
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
        room = max(max_header_width, *(cell.cell_len for cell in cells[number]))
        lines = [line for text in (column.heading, column.label) for line in wrap(text, room)]
        view.add_column(Text("\n".join(lines)), justify="right", no_wrap=True)
    place = 0
    for family, rows in rows_by_family(table):
        for number, row in enumerate(rows):
            name = Text(family if number == 0 else "", style="dim")
            last = number == len(rows) - 1
            view.add_row(name, Text(row.title), *(cells[column][place] for column in columns), end_section=last)
            place += 1
    return view


def table_to_svg(table: ComparisonTable) -> str:
    """A picture of the terminal's view, as wide as the table needs."""
    from rich.console import Console

    view = table_to_terminal(table)
    width = Console(width=UNLIMITED_WIDTH).measure(view.renderables[0]).maximum
    canvas = Console(record=True, width=max(width, 80), file=io.StringIO())
    canvas.print(view)
    # Rich asks a server for its font; a picture should not: any monospace font will do.
    template = inspect.signature(Console.export_svg).parameters["code_format"].default
    template = re.sub(r"@font-face \{\{.*?\}\}", "", template, flags=re.DOTALL)
    return canvas.export_svg(title="fedmosaic report", code_format=template)


def terminal_cell(cell: TableCell, table: ComparisonTable, column: int) -> Text:
    from rich.text import Text

    if cell.measured is None:
        return Text(f"{EMPTY_CELL}{published_text(cell)}  ", style="dim")
    verdict = cell.measured.relation
    style = f"#{verdict.colour}" if verdict.colour else ""
    text = f"{result_text(cell.measured, table, column)} {verdict.symbol or ' '}{published_text(cell)}"
    return Text(text, style=f"bold {style}" if cell.measured.is_best else style)


def markdown_cell(cell: TableCell, table: ComparisonTable, column: int) -> str:
    if cell.measured is None:
        return f"{EMPTY_CELL}{escape_markdown_characters(published_text(cell))}"
    text = result_text(cell.measured, table, column)
    text = f"{f'**{text}**' if cell.measured.is_best else text} {cell.measured.relation.symbol}".rstrip()
    return text + escape_markdown_characters(published_text(cell))


def result_text(result: MethodResult, table: ComparisonTable, column: int) -> str:
    """Mean, caveats, spread, and how many seeds."""
    spread = f" ({format_accuracy(result.std)})" if result.std is not None else ""
    return format_accuracy(result.mean) + result.caveat_symbols + spread + incomplete_seeds_text(result, table, column)


def published_text(cell: TableCell) -> str:
    """The published number, and how far ours is from it."""
    if cell.published is None:
        return ""
    away = "" if cell.difference is None else f", {100 * cell.difference:+.2f}"
    return f" [{format_accuracy(cell.published.mean)}{away}]"


def incomplete_seeds_text(result: MethodResult, table: ComparisonTable, column: int) -> str:
    """Said only where a method lacks seeds that others of the column have."""
    every = len(table.seeds(column))
    return "" if len(result.seeds) == every else f" [{len(result.seeds)} of {every} seeds]"


def format_accuracy(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def symbol_legend(table: ComparisonTable) -> str:
    """What the marks mean, as far as they occur."""
    marks = [f"{verdict.symbol} {verdict.description}" for verdict in table.baseline_relations() if verdict.symbol]
    return "; ".join(marks) + "." if marks else ""


def rows_by_family(table: ComparisonTable) -> list[tuple[str, list[TableRow]]]:
    """The rows by family, in the order of the table."""
    return [(family, list(rows)) for family, rows in groupby(table.rows, key=lambda row: row.family)]


def escape_markdown(text: str) -> str:
    """Text that means nothing to Markdown. An underscore inside a word is none of its signs."""
    return escape_markdown_characters(" ".join(text.split()))


def escape_markdown_characters(text: str) -> str:
    return re.sub(r"([\\|*`<\[\]$~])", r"\\\1", text)
