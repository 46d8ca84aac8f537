"""Comparison tables as Markdown, CSV, JSON and SVG, and for a terminal."""

from __future__ import annotations

import csv
import inspect
import io
import re
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.safe_text import to_csv_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    from fedmosaic_cli.report.comparison_table import ComparisonTable, MethodResult, TableCell, TableRow

EMPTY_CELL = "-"
UNLIMITED_WIDTH = 1000
MIN_HEADER_WIDTH = 14
CELL_FIELDS = (
    *("setting", "family", "method", "mean", "std", "seeds", "verdict", "caveats"),
    *("domain", "published", "published_std", "difference", "table", "command"),
)


def table_to_markdown(table: ComparisonTable) -> str:
    """Return a GitHub table. Symbols mark the relation to the baselines; the best result of a column is bold."""
    headings = [escape_markdown(": ".join(filter(None, (column.heading, column.label)))) for column in table.columns]
    lines = [f"| | Method | {' | '.join(headings)} |", "|---|---|" + "---:|" * len(headings)]
    for family, rows in rows_by_family(table):
        for number, row in enumerate(rows):
            cells = [markdown_cell(cell, table, column) for column, cell in enumerate(row.cells)]
            name = family if number == 0 else ""
            lines.append(f"| {name} | {escape_markdown(row.title)} | {' | '.join(cells)} |")
    lines += ["", escape_markdown(table.caption), *filter(None, [symbol_legend(table)])]
    if table.notes:
        lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)]
    for title, *privacy_lines in table.privacy_notes:
        lines += ["", escape_markdown(title), "", *(f"    {line}" for line in privacy_lines)]
    if table.commands:
        lines += ["", "Missing:", "", *(f"    {command}" for command in table.commands)]
    return "\n".join(lines) + "\n"


def tables_to_json(tables: Sequence[ComparisonTable]) -> list[dict[str, Any]]:
    """Return one record per cell with a result or a command. Accuracies are fractions in full precision."""
    records = []
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                measured, published = cell.measured, cell.published
                values = (
                    *(column.group.label if column.group else column.preset, row.family, row.title),
                    *(measured and measured.mean, measured and measured.std, list(measured.seeds) if measured else []),
                    measured and measured.relation.description,
                    [CAVEAT_DESCRIPTIONS[symbol] for symbol in measured.caveat_symbols] if measured else [],
                    *(column.domain or None, published and published.mean, published and published.std),
                    *(cell.difference, table.name, cell.command or None),
                )
                if measured or published or cell.command:
                    records.append(dict(zip(CELL_FIELDS, values, strict=True)))
    return records


def tables_to_csv(tables: Sequence[ComparisonTable]) -> str:
    """Return the records of `tables_to_json` as CSV."""
    joined = [
        {**record, "seeds": " ".join(map(str, record["seeds"])), "caveats": "; ".join(record["caveats"])}
        for record in tables_to_json(tables)
    ]
    return records_to_csv(CELL_FIELDS, joined)


def records_to_csv(field_names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return one line per record. Text cannot become a formula in a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(to_csv_cell, field_names))
    writer.writerows([to_csv_cell(record.get(name, "")) for name in field_names] for record in records)
    return text.getvalue()


def table_to_terminal(table: ComparisonTable, width: int = UNLIMITED_WIDTH) -> Group:
    """Return the table in the paper's colours, with symbols for readers who cannot distinguish them.

    If the columns do not fit into the width, the result is several tables below each other.
    """
    from rich.console import Console, Group
    from rich.text import Text

    def fits(view: RichTable) -> bool:
        return Console(width=UNLIMITED_WIDTH).measure(view).maximum <= width

    columns = range(len(table.columns))
    views = [terminal_table(table, columns, UNLIMITED_WIDTH)]
    if not fits(views[0]):
        parts: list[list[int]] = [[]]
        for column in columns:
            if parts[-1] and not fits(terminal_table(table, [*parts[-1], column], MIN_HEADER_WIDTH)):
                parts.append([])
            parts[-1].append(column)
        views = [terminal_table(table, part, MIN_HEADER_WIDTH) for part in parts]
    privacy_lines = [line for note in table.privacy_notes for line in note]
    text = "\n".join(filter(None, [table.caption, symbol_legend(table), *table.notes, *privacy_lines]))
    missing = [Text("missing:", style="dim"), *map(Text, table.commands)] if table.commands else []
    return Group(*views, Text(text, style="dim"), *missing)


def terminal_table(table: ComparisonTable, columns: Sequence[int], max_header_width: int) -> RichTable:
    """Return some columns of the table. Headings wider than the maximum and than their cells are wrapped."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(box=box.SIMPLE_HEAD)
    view.add_column("")
    view.add_column("Method")
    for number in columns:
        column = table.columns[number]
        cells = [terminal_cell(row.cells[number], table, number) for row in table.rows]
        width = max(max_header_width, *(cell.cell_len for cell in cells))
        lines = [line for text in (column.heading, column.label) for line in wrap(text, width)]
        view.add_column(Text("\n".join(lines)), justify="right", no_wrap=True)
    for family, rows in rows_by_family(table):
        for number, row in enumerate(rows):
            name = Text(family if number == 0 else "", style="dim")
            cells = [terminal_cell(row.cells[column], table, column) for column in columns]
            view.add_row(name, Text(row.title), *cells, end_section=number == len(rows) - 1)
    return view


def table_to_svg(table: ComparisonTable) -> str:
    """Return an image of the terminal view, as wide as the table needs."""
    from rich.console import Console

    view = table_to_terminal(table)
    width = Console(width=UNLIMITED_WIDTH).measure(view.renderables[0]).maximum
    console = Console(record=True, width=max(width, 80), file=io.StringIO())
    console.print(view)
    # Rich's template loads a font from a server. Any local monospace font is good enough.
    template = inspect.signature(Console.export_svg).parameters["code_format"].default
    template = re.sub(r"@font-face \{\{.*?\}\}", "", template, flags=re.DOTALL)
    return console.export_svg(title="fedmosaic report", code_format=template)


def terminal_cell(cell: TableCell, table: ComparisonTable, column: int) -> Text:
    from rich.text import Text

    if cell.measured is None:
        return Text(f"{EMPTY_CELL}{published_text(cell)}  ", style="dim")
    relation = cell.measured.relation
    style = f"#{relation.colour}" if relation.colour else ""
    text = f"{result_text(cell.measured, table, column)} {relation.symbol or ' '}{published_text(cell)}"
    return Text(text, style=f"bold {style}" if cell.measured.is_best else style)


def markdown_cell(cell: TableCell, table: ComparisonTable, column: int) -> str:
    text = EMPTY_CELL
    if cell.measured is not None:
        text = result_text(cell.measured, table, column)
        text = f"{f'**{text}**' if cell.measured.is_best else text} {cell.measured.relation.symbol}".rstrip()
    return text + escape_markdown_characters(published_text(cell))


def result_text(result: MethodResult, table: ComparisonTable, column: int) -> str:
    """Return mean, caveat symbols, standard deviation and, if incomplete, the number of seeds."""
    std = f" ({format_accuracy(result.std)})" if result.std is not None else ""
    return format_accuracy(result.mean) + result.caveat_symbols + std + incomplete_seeds_text(result, table, column)


def published_text(cell: TableCell) -> str:
    """Return the published mean and the difference to it."""
    if cell.published is None:
        return ""
    difference = "" if cell.difference is None else f", {100 * cell.difference:+.2f}"
    return f" [{format_accuracy(cell.published.mean)}{difference}]"


def incomplete_seeds_text(result: MethodResult, table: ComparisonTable, column: int) -> str:
    """Return the number of seeds of a method that lacks seeds of its column."""
    total = len(table.seeds(column))
    return "" if len(result.seeds) == total else f" [{len(result.seeds)} of {total} seeds]"


def format_accuracy(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def symbol_legend(table: ComparisonTable) -> str:
    """Explain the symbols that occur in a table."""
    symbols = [
        f"{relation.symbol} {relation.description}" for relation in table.baseline_relations() if relation.symbol
    ]
    return "; ".join(symbols) + "." if symbols else ""


def rows_by_family(table: ComparisonTable) -> list[tuple[str, list[TableRow]]]:
    return [(family, list(rows)) for family, rows in groupby(table.rows, key=lambda row: row.family)]


def escape_markdown(text: str) -> str:
    """Escape text and join its lines. Underscores inside words need no escape."""
    return escape_markdown_characters(" ".join(text.split()))


def escape_markdown_characters(text: str) -> str:
    return re.sub(r"([\\|*`<\[\]$~])", r"\\\1", text)
