"""Tests and summaries that are worked out elsewhere: simple tables and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.html.markup import Markup, format_signed, join_markup, scrollable, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.stats_tables import TextTable


def statistics_section(text_tables: Sequence[TextTable]) -> Markup:
    """The section's content."""
    return join_markup(map(text_table_card, text_tables))


def text_table_card(text_table: TextTable) -> Markup:
    pieces = [tag("h3", text_table.title)]
    if text_table.rows:
        pieces.append(scrollable(text_table_markup(text_table), text_table.title))
    if text_table.svg:
        pieces.append(
            tag("figure", strip_svg_prolog(text_table.svg), tabindex="0", aria_label=f"Diagram: {text_table.title}")
        )
    if text_table.note:
        pieces.append(tag("p", text_table.note, class_="caption"))
    return tag("article", *pieces, class_="card")


def text_table_markup(text_table: TextTable) -> Markup:
    first, *others = text_table.header
    heads = [
        tag("th", first, scope="col", data_sort="text", class_="method"),
        *(tag("th", name, scope="col", data_sort="number") for name in others),
    ]
    return tag(
        "table", tag("thead", tag("tr", *heads)), tag("tbody", *map(text_table_row, text_table.rows)), class_="sortable"
    )


def text_table_row(row: tuple[str, ...]) -> Markup:
    return tag(
        "tr", tag("th", row[0], scope="row", class_="method"), *(tag("td", format_signed(text)) for text in row[1:])
    )


def strip_svg_prolog(svg: str) -> Markup:
    """An SVG document without what stands before it in a file of its own."""
    return Markup(svg[max(svg.find("<svg"), 0) :])
