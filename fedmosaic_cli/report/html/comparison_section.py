"""Comparison tables as HTML: complete without JavaScript, which only makes them sortable."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from fedmosaic_cli.report.baseline_colors import Verdict
from fedmosaic_cli.report.comparison_table import OVERVIEW
from fedmosaic_cli.report.html.markup import Markup, copied, counted, joined, notes, percent, points, scrolling, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison_table import Cell, Result, Row, Table

CLASSES = {
    Verdict.BASELINE: "baseline",
    Verdict.WORSE_THAN_BOTH: "worst",
    Verdict.WORSE_THAN_LOCAL: "worse",
    Verdict.BETTER_THAN_BOTH: "better",
}
MOST_SHOWN = 8
"""So many commands are shown before the others are folded away."""


def comparisons(tables: Sequence[Table]) -> Markup:
    """The section's content. What is noted below one table is not said again below the next."""
    if not tables:
        return tag("p", "There is no table.", class_="none")
    pieces: list[Markup] = []
    said: set[object] = set()
    for number, table in enumerate(tables):
        blocks = [block for block in table.blocks if block not in said]
        pieces.append(comparison(table, number, [note for note in table.notes if note not in said], blocks))
        said |= {*table.notes, *table.blocks}
    return joined(pieces)


def comparison(table: Table, number: int, remarks: Sequence[str], blocks: Sequence[Sequence[str]] = ()) -> Markup:
    """A table with its caption, what its marks mean, remarks, and how to fill what is empty."""
    view = tag("table", head(table), tag("tbody", *(line(row, table, number) for row in table.rows)), class_="sortable")
    pieces = [
        tag("h3", title(table)),
        tag("p", table.caption, class_="caption"),
        scrolling(view, f"Table: {table.name}"),
        legend(table),
        notes(remarks),
        *(tag("pre", "\n".join(block), class_="noise") for block in blocks),
        missing(table, number),
    ]
    return tag("article", *pieces, class_="card", id=f"table-{number}")


def title(table: Table) -> str:
    words = "all settings" if table.name == OVERVIEW else table.name.replace("-", " ").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def head(table: Table) -> Markup:
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


def line(row: Row, table: Table, number: int) -> Markup:
    name = tag("th", row.title, tag("small", row.family), scope="row", class_="method")
    return tag("tr", name, *(cell_of(cell, table, place, number) for place, cell in enumerate(row.cells)))


def cell_of(cell: Cell, table: Table, column: int, number: int) -> Markup:
    """What we found, then what the paper printed and how far apart the two are."""
    beside = paper(cell) if table.paper else ""
    if cell.ours is None:
        way_out = f"not run: {cell.command}" if cell.command else "not run"
        dash = tag("span", "\u2013", class_="missing", title=way_out)
        link = tag("a", dash, href=f"#fill-{number}", aria_label="not run; how to fill it") if table.commands else dash
        return tag("td", link, beside)
    return tag("td", found(cell.ours, len(table.seeds(column))), beside, data_value=repr(cell.ours.mean))


def found(result: Result, every: int) -> Markup:
    """A mean in the colour of its verdict, with a mark for those who see no colour."""
    mean = tag("b", percent(result.mean)) if result.best else percent(result.mean)
    pieces = [mean, result.caveats]
    if result.std is not None:
        pieces.append(tag("small", f" ({percent(result.std)})"))
    # Without a mark there is room for one, so that numbers stand below each other.
    meaning = {"role": "img", "title": result.verdict.meaning} if result.verdict.mark else {}
    pieces.append(tag("span", result.verdict.mark, class_="mark", **meaning))
    shown = tag("span", *pieces, class_=f"result {CLASSES.get(result.verdict, '')}".rstrip())
    few = tag("small", f"{len(result.seeds)} of {counted(every, 'seed')}", class_="few")
    return shown if len(result.seeds) == every else joined([shown, few])


def paper(cell: Cell) -> Markup:
    if cell.published is None:
        return Markup("")
    printed = f"paper {percent(cell.published.mean)} ({percent(cell.published.std)})"
    apart = f", \u0394 {points(cell.difference)}" if cell.difference is not None else ""
    return tag("small", printed + apart, class_="paper")


def legend(table: Table) -> Markup:
    """What colours and marks mean, as far as they occur."""
    entries = [
        tag("li", tag("span", f"{verdict.mark or '■'} ", class_=f"result {CLASSES.get(verdict, '')}"), verdict.meaning)
        for verdict in table.verdicts()
        if verdict.mark or verdict is Verdict.BASELINE
    ]
    entries.append(tag("li", tag("b", "bold"), " best of its column"))
    if table.paper:
        entries.append(tag("li", tag("small", "paper"), " the published number; \u0394 is ours minus it"))
    return tag("ul", *entries, class_="legend")


def missing(table: Table, number: int) -> Markup:
    """The commands that fill empty cells."""
    if not table.commands:
        return Markup("")
    empty = sum(cell.ours is None for row in table.rows for cell in row.cells)
    shown, folded = table.commands[:MOST_SHOWN], table.commands[MOST_SHOWN:]
    pieces = [
        tag("h4", f"{counted(empty, 'cell')} without a number of ours. These commands fill them:"),
        *map(copied, shown),
    ]
    if folded:
        pieces.append(tag("details", tag("summary", f"{len(folded)} more"), *map(copied, folded)))
    if len(table.commands) > 1:
        pieces.append(tag("button", "Copy all", class_="copy all", type="button"))
    return tag("div", *pieces, class_="fill", id=f"fill-{number}")
