"""Tests and summaries that are worked out elsewhere: simple tables and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.html.markup import Markup, joined, scrolling, signed, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.stats_tables import Sheet


def statistics_list(items: Sequence[Sheet]) -> Markup:
    """The section's content."""
    return joined(map(card, items))


def card(item: Sheet) -> Markup:
    pieces = [tag("h3", item.title)]
    if item.rows:
        pieces.append(scrolling(table(item), item.title))
    if item.picture:
        pieces.append(tag("figure", inline(item.picture), tabindex="0", aria_label=f"Diagram: {item.title}"))
    if item.note:
        pieces.append(tag("p", item.note, class_="caption"))
    return tag("article", *pieces, class_="card")


def table(item: Sheet) -> Markup:
    first, *others = item.head
    heads = [
        tag("th", first, scope="col", data_sort="text", class_="method"),
        *(tag("th", name, scope="col", data_sort="number") for name in others),
    ]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *map(line, item.rows)), class_="sortable")


def line(row: tuple[str, ...]) -> Markup:
    return tag("tr", tag("th", row[0], scope="row", class_="method"), *(tag("td", signed(text)) for text in row[1:]))


def inline(picture: str) -> Markup:
    """An SVG document without what stands before it in a file of its own."""
    return Markup(picture[max(picture.find("<svg"), 0) :])
