"""Tests and summaries that are worked out elsewhere: simple tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.report.page.markup import Markup, joined, scrolling, tag

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Statistics:
    """A table of texts under a title, with a note below it. The first column names what a row is about; `pictures` are
    SVG documents of ours, drawn into the page as they are, so text in them must be escaped already."""

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str = ""
    pictures: tuple[str, ...] = ()


def statistics_list(items: Sequence[Statistics]) -> Markup:
    """The section's content."""
    return joined(map(card, items))


def card(item: Statistics) -> Markup:
    pieces = [tag("h3", item.title)]
    if item.rows:
        pieces.append(scrolling(table(item), item.title))
    pieces += [tag("figure", inline(picture)) for picture in item.pictures]
    if item.note:
        pieces.append(tag("p", item.note, class_="caption"))
    return tag("article", *pieces, class_="card")


def table(item: Statistics) -> Markup:
    first, *others = item.header or ("",)
    heads = [
        tag("th", first, scope="col", data_sort="text", class_="method"),
        *(tag("th", name, scope="col", data_sort="number") for name in others),
    ]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *map(line, item.rows)), class_="sortable")


def line(row: tuple[str, ...]) -> Markup:
    return tag("tr", tag("th", row[0], scope="row", class_="method"), *(tag("td", text) for text in row[1:]))


def inline(picture: str) -> Markup:
    """An SVG document without what stands before it in a file of its own."""
    return Markup(picture[max(picture.find("<svg"), 0) :])
