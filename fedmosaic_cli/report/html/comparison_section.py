"""Comparison tables as HTML: complete without JavaScript, which only makes them sortable."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME, BaselineRelation
from fedmosaic_cli.report.html.markup import (
    Markup,
    copyable_command,
    format_percent,
    format_percentage_points,
    join_markup,
    note_list,
    pluralize,
    scrollable,
    tag,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison_table import ComparisonTable, MethodResult, TableCell, TableRow

CSS_CLASSES = {
    BaselineRelation.BASELINE: "baseline",
    BaselineRelation.WORSE_THAN_BOTH: "worst",
    BaselineRelation.WORSE_THAN_LOCAL: "worse",
    BaselineRelation.BETTER_THAN_BOTH: "better",
}
MAX_VISIBLE_COMMANDS = 8
"""So many commands are shown before the others are folded away."""


def comparison_section(tables: Sequence[ComparisonTable]) -> Markup:
    """The section's content. What is noted below one table is not said again below the next."""
    if not tables:
        return tag("p", "There is no table.", class_="none")
    pieces: list[Markup] = []
    said: set[object] = set()
    for number, table in enumerate(tables):
        blocks = [block for block in table.privacy_notes if block not in said]
        pieces.append(comparison_card(table, number, [note for note in table.notes if note not in said], blocks))
        said |= {*table.notes, *table.privacy_notes}
    return join_markup(pieces)


def comparison_card(
    table: ComparisonTable, table_number: int, remarks: Sequence[str], blocks: Sequence[Sequence[str]] = ()
) -> Markup:
    """A table with its caption, what its marks mean, remarks, and how to fill what is empty."""
    view = tag(
        "table",
        comparison_head(table),
        tag("tbody", *(comparison_row(row, table, table_number) for row in table.rows)),
        class_="sortable",
    )
    pieces = [
        tag("h3", comparison_title(table)),
        tag("p", table.caption, class_="caption"),
        scrollable(view, f"Table: {table.name}"),
        comparison_legend(table),
        note_list(remarks),
        *(tag("pre", "\n".join(block), class_="noise") for block in blocks),
        missing_cell_commands(table, table_number),
    ]
    return tag("article", *pieces, class_="card", id=f"table-{table_number}")


def comparison_title(table: ComparisonTable) -> str:
    words = "all settings" if table.name == OVERVIEW_NAME else table.name.replace("-", " ").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def comparison_head(table: ComparisonTable) -> Markup:
    """Columns that can be sorted by, below the headings that neighbours share."""
    method = tag("th", "Method", scope="col", data_sort="text", class_="method")
    columns = [tag("th", column.label, scope="col", data_sort="number") for column in table.columns]
    if not any(column.heading for column in table.columns):
        return tag("thead", tag("tr", method, *columns))
    groups = [
        tag("th", heading, scope="colgroup", colspan=len(list(same)), class_="heading")
        for heading, same in groupby(column.heading for column in table.columns)
    ]
    blank = tag("td", class_="method")
    return tag("thead", tag("tr", blank, *groups), tag("tr", method, *columns))


def comparison_row(row: TableRow, table: ComparisonTable, table_number: int) -> Markup:
    name = tag("th", row.title, tag("small", row.family), scope="row", class_="method")
    return tag("tr", name, *(result_cell(cell, table, place, table_number) for place, cell in enumerate(row.cells)))


def result_cell(cell: TableCell, table: ComparisonTable, column_index: int, table_number: int) -> Markup:
    """What we found, then what the paper printed and how far apart the two are."""
    beside = paper_value(cell) if table.has_published else ""
    if cell.measured is None:
        way_out = f"not run: {cell.command}" if cell.command else "not run"
        dash = tag("span", "\u2013", class_="missing", title=way_out)
        link = (
            tag("a", dash, href=f"#fill-{table_number}", aria_label="not run; how to fill it")
            if table.commands
            else dash
        )
        return tag("td", link, beside)
    return tag(
        "td", result_markup(cell.measured, len(table.seeds(column_index))), beside, data_value=repr(cell.measured.mean)
    )


def result_markup(result: MethodResult, num_seeds: int) -> Markup:
    """A mean in the colour of its verdict, with a mark for those who see no colour."""
    mean = tag("b", format_percent(result.mean)) if result.is_best else format_percent(result.mean)
    pieces = [mean, result.caveat_symbols]
    if result.std is not None:
        pieces.append(tag("small", f" ({format_percent(result.std)})"))
    # Without a mark there is room for one, so that numbers stand below each other.
    meaning = {"role": "img", "title": result.relation.description} if result.relation.symbol else {}
    pieces.append(tag("span", result.relation.symbol, class_="mark", **meaning))
    shown = tag("span", *pieces, class_=f"result {CSS_CLASSES.get(result.relation, '')}".rstrip())
    few = tag("small", f"{len(result.seeds)} of {pluralize(num_seeds, 'seed')}", class_="few")
    return shown if len(result.seeds) == num_seeds else join_markup([shown, few])


def paper_value(cell: TableCell) -> Markup:
    if cell.published is None:
        return Markup("")
    printed = f"paper {format_percent(cell.published.mean)} ({format_percent(cell.published.std)})"
    apart = f", \u0394 {format_percentage_points(cell.difference)}" if cell.difference is not None else ""
    return tag("small", printed + apart, class_="paper")


def comparison_legend(table: ComparisonTable) -> Markup:
    """What colours and marks mean, as far as they occur."""
    entries = [
        tag(
            "li",
            tag("span", f"{verdict.symbol or '■'} ", class_=f"result {CSS_CLASSES.get(verdict, '')}"),
            verdict.description,
        )
        for verdict in table.baseline_relations()
        if verdict.symbol or verdict is BaselineRelation.BASELINE
    ]
    entries.append(tag("li", tag("b", "bold"), " best of its column"))
    if table.has_published:
        entries.append(tag("li", tag("small", "paper"), " the published number; \u0394 is ours minus it"))
    return tag("ul", *entries, class_="legend")


def missing_cell_commands(table: ComparisonTable, table_number: int) -> Markup:
    """The commands that fill empty cells."""
    if not table.commands:
        return Markup("")
    empty = sum(cell.measured is None for row in table.rows for cell in row.cells)
    shown, folded = table.commands[:MAX_VISIBLE_COMMANDS], table.commands[MAX_VISIBLE_COMMANDS:]
    pieces = [
        tag("h4", f"{pluralize(empty, 'cell')} without a number of ours. These commands fill them:"),
        *map(copyable_command, shown),
    ]
    if folded:
        pieces.append(tag("details", tag("summary", f"{len(folded)} more"), *map(copyable_command, folded)))
    if len(table.commands) > 1:
        pieces.append(tag("button", "Copy all", class_="copy all", type="button"))
    return tag("div", *pieces, class_="fill", id=f"fill-{table_number}")
