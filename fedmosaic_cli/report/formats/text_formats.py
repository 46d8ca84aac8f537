"""Comparison tables as Markdown, CSV, JSON and SVG, and for a terminal."""

from __future__ import annotations

import csv
import inspect
import io
import re
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from fedmosaic_cli.report.captions import MEAN_AND_DEVIATION
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison_table import BaselineRelation
from fedmosaic_cli.report.formats.table_grid import DEFAULT_LAYOUT, table_grid
from fedmosaic_cli.report.table_averages import average_accuracies, mean_ranks
from fedmosaic_cli.safe_text import to_csv_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.formats.table_grid import GridCell, TableGrid, TableLayout

Note = TypeVar("Note", str, tuple[str, ...])

EMPTY_CELL = "-"
UNLIMITED_WIDTH = 1000
MIN_HEADER_WIDTH = 14
CELL_FIELDS = (
    *("setting", "family", "method", "mean", "std", "seeds", "verdict", "caveats"),
    *("domain", "published", "published_std", "difference", "table", "command"),
    *("preset", "method_name", "method_detail", "best", "gain", "average", "mean_rank"),
)


def tables_to_markdown(tables: Sequence[ComparisonTable], layout: TableLayout = DEFAULT_LAYOUT) -> str:
    """Return the tables of one document: a note is below the first table that has it."""
    seen_notes: set[str] = set()
    return "\n".join(table_to_markdown(table, layout, seen_notes) for table in tables)


def table_to_markdown(
    table: ComparisonTable, layout: TableLayout = DEFAULT_LAYOUT, seen_notes: set[str] | None = None
) -> str:
    """Return a GitHub table. Symbols mark the relation to the baselines; the best method of a column is bold.

    Notes in `seen_notes` are left out, and the others are added to it.
    """
    grid = table_grid(table, layout)
    groups = ["" if layout.transpose else label.group for label in grid.columns]  # families of methods
    headings = [": ".join(filter(None, (group, label.text))) for group, label in zip(groups, grid.columns, strict=True)]
    lines = [
        f"| | {grid.corner} | {' | '.join(map(escape_markdown, headings))} |",
        "|---|---|" + "---:|" * len(headings),
    ]
    for group, rows in grid.row_groups():
        for number, (label, cells) in enumerate(rows):
            name = escape_markdown(group) if number == 0 else ""
            texts = " | ".join(markdown_cell(cell, layout) for cell in cells)
            lines.append(f"| {name} | {escape_markdown(label.text)} | {texts} |")
    lines += ["", escape_markdown(caption_text(table, layout)), *filter(None, [symbol_legend(table)])]
    if not layout.plain:
        lines += markdown_notes(table, set() if seen_notes is None else seen_notes)
    return "\n".join(lines) + "\n"


def markdown_notes(table: ComparisonTable, seen_notes: set[str]) -> list[str]:
    """Return what is below a table: the best method, notes that were not printed before, and missing runs."""
    lines = ["", escape_markdown(table.summary)] if table.summary else []
    if notes := new_notes(table.notes, seen_notes):
        lines += ["", *(f"- {escape_markdown(note)}" for note in notes)]
    for title, *privacy_lines in new_notes(table.privacy_notes, seen_notes):
        lines += ["", escape_markdown(title), "", *(f"    {line}" for line in privacy_lines)]
    if table.commands:
        lines += ["", missing_results_text(table), "", *(f"    {command}" for command in table.commands)]
    return lines


def new_notes(notes: Iterable[Note], seen_notes: set[str]) -> list[Note]:
    """Return the notes that are not in `seen_notes`, and add them to it."""
    new = [note for note in notes if str(note) not in seen_notes]
    seen_notes.update(map(str, new))
    return new


def missing_results_text(table: ComparisonTable) -> str:
    """Introduce the commands that make missing results."""
    return f"{table.num_missing} missing result{'' if table.num_missing == 1 else 's'}. Run:"


def tables_to_json(tables: Sequence[ComparisonTable]) -> list[dict[str, Any]]:
    """Return one record per cell with a result or a command. Accuracies are fractions in full precision."""
    records = []
    for table in tables:
        averages, ranks = average_accuracies(table), mean_ranks(table)
        for row in (*table.rows, *table.missing_rows):
            for column, cell in zip(table.columns, row.cells, strict=True):
                measured, published = cell.measured, cell.published
                values = (
                    *(column.group.label if column.group else column.preset, row.family, row.title),
                    *(measured and measured.mean, measured and measured.std, list(measured.seeds) if measured else []),
                    measured and measured.relation.description,
                    [CAVEAT_DESCRIPTIONS[symbol] for symbol in measured.caveat_symbols] if measured else [],
                    *(column.domain or None, published and published.mean, published and published.std),
                    *(cell.difference, table.name, cell.command or None),
                    *(column.group.name if column.group else column.preset, row.method_key[0], row.method_key[1]),
                    *(measured and measured.is_best, measured and measured.gain),
                    *(averages.get(row.method_key), ranks.get(row.method_key)),
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


def table_to_terminal(
    table: ComparisonTable,
    width: int = UNLIMITED_WIDTH,
    layout: TableLayout = DEFAULT_LAYOUT,
    seen_notes: set[str] | None = None,
) -> Group:
    """Return the table in the paper's colours, with symbols for readers who cannot distinguish them.

    If the columns do not fit into the width, the result is several tables below each other. It does not contain the
    commands that make missing runs, because a console wraps what it prints. Notes in `seen_notes` are left out, and the
    others are added to it.
    """
    from rich.console import Console, Group
    from rich.text import Text

    def fits(view: RichTable) -> bool:
        return Console(width=UNLIMITED_WIDTH).measure(view).maximum <= width

    grid = table_grid(table, layout)
    columns = range(len(grid.columns))
    views = [terminal_table(grid, layout, UNLIMITED_WIDTH)]
    if not fits(views[0]):
        parts: list[list[int]] = [[]]
        for column in columns:
            candidate = grid.select_columns([*parts[-1], column])
            if parts[-1] and not fits(terminal_table(candidate, layout, MIN_HEADER_WIDTH)):
                parts.append([])
            parts[-1].append(column)
        views = [terminal_table(grid.select_columns(part), layout, MIN_HEADER_WIDTH) for part in parts]
    lines, summary = [caption_text(table, layout), symbol_legend(table)], []
    if not layout.plain:
        seen = set() if seen_notes is None else seen_notes
        lines += new_notes(table.notes, seen)
        lines += [line for note in new_notes(table.privacy_notes, seen) for line in note]
        summary = [Text(table.summary)] if table.summary else []
    return Group(*views, *summary, Text("\n".join(filter(None, lines)), style="dim"))


def terminal_table(grid: TableGrid, layout: TableLayout, max_header_width: int) -> RichTable:
    """Return a view of the grid. Headings wider than the maximum and than their cells are wrapped."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(box=box.SIMPLE_HEAD)
    view.add_column("")
    view.add_column(grid.corner, overflow="fold")
    for number, label in enumerate(grid.columns):
        cells = [terminal_cell(row[number], layout) for row in grid.cells]
        width = max(max_header_width, *(cell.cell_len for cell in cells))
        lines = [line for text in (label.group, label.text) for line in wrap(text, width)]
        view.add_column(Text("\n".join(lines)), justify="right", no_wrap=True)
    for group, rows in grid.row_groups():
        for number, (label, row) in enumerate(rows):
            name = Text(group if number == 0 else "", style="dim")
            cells = [terminal_cell(cell, layout) for cell in row]
            view.add_row(name, Text(label.text), *cells, end_section=number == len(rows) - 1)
    return view


def table_to_svg(table: ComparisonTable, layout: TableLayout = DEFAULT_LAYOUT) -> str:
    """Return an image of the terminal view, as wide as the table needs."""
    from rich.console import Console

    view = table_to_terminal(table, layout=layout)
    width = Console(width=UNLIMITED_WIDTH).measure(view.renderables[0]).maximum
    console = Console(record=True, width=max(width, 80), file=io.StringIO())
    console.print(view)
    # Rich's template loads a font from a server. Any local monospace font is good enough.
    template = inspect.signature(Console.export_svg).parameters["code_format"].default
    template = re.sub(r"@font-face \{\{.*?\}\}", "", template, flags=re.DOTALL)
    return console.export_svg(title="fedmosaic report", code_format=template)


def terminal_cell(cell: GridCell, layout: TableLayout) -> Text:
    from rich.text import Text

    published = f" {cell.published}" if cell.published else ""
    if not cell.mean:
        return Text(f"{EMPTY_CELL}{published}  ", style="dim")
    colour, symbol = (cell.relation.colour, cell.relation.symbol) if cell.relation else ("", "")
    style = f"#{colour}" if colour else ""
    text = f"{result_text(cell, layout)} {symbol or ' '}{published}"
    return Text(text, style=f"bold {style}" if cell.is_best else style)


def markdown_cell(cell: GridCell, layout: TableLayout) -> str:
    published = escape_markdown_characters(f" {cell.published}" if cell.published else "")
    if not cell.mean:
        return EMPTY_CELL + published
    text = result_text(cell, layout)
    symbol = cell.relation.symbol if cell.relation else ""
    return f"{f'**{text}**' if cell.is_best else text} {symbol}".rstrip() + published


def result_text(cell: GridCell, layout: TableLayout) -> str:
    """Return mean, caveat symbols, standard deviation and, if incomplete, the number of seeds."""
    std = f"± {cell.std}" if layout.plus_minus else f"({cell.std})"
    return " ".join(filter(None, (cell.mean + cell.symbols, std if cell.std else "", cell.seeds)))


def symbol_legend(table: ComparisonTable) -> str:
    """Explain the symbols that occur in a table."""
    relations = table.baseline_relations()
    symbols = [f"{relation.symbol} {relation.legend}" for relation in relations if relation.symbol]
    if symbols and BaselineRelation.NEITHER in relations:
        symbols.append(f"no symbol: {BaselineRelation.NEITHER.legend}")
    return "; ".join(symbols) + "." if symbols else ""


def caption_text(table: ComparisonTable, layout: TableLayout) -> str:
    """Return the caption for the form in which standard deviations are printed."""
    return (
        table.caption.replace(MEAN_AND_DEVIATION, "mean ± standard deviation") if layout.plus_minus else table.caption
    )


def escape_markdown(text: str) -> str:
    """Escape text and join its lines. Underscores inside words need no escape."""
    return escape_markdown_characters(" ".join(text.split()))


def escape_markdown_characters(text: str) -> str:
    return re.sub(r"([\\|*`<\[\]$~])", r"\\\1", text)
