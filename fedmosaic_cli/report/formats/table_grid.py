"""A comparison table as a grid of texts, which all formats print: with averages and ranks, and transposed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import ORACLE_KEY
from fedmosaic_cli.report.comparison_table import format_percent
from fedmosaic_cli.report.table_averages import average_accuracies, best_methods, mean_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.comparison_table import (
        BaselineRelation,
        ComparisonTable,
        MethodResult,
        TableCell,
        TableRow,
    )

FAMILY_LABELS = {"baseline": "references"}
"""Labels of families of methods, where they differ from the names in JSON and CSV."""
TEXT_WIDTH_POINTS = 385.0
"""The width of the text of common templates, at most."""
AVERAGE_LABEL, RANK_LABEL = "Average", "Mean rank"


@dataclass(frozen=True)
class TableLayout:
    """How comparison tables are printed.

    Attributes:
        average: Add the mean over settings.
        rank: Add the mean rank over settings.
        transpose: One row per setting and one column per method.
        plain: Without notes and commands below the table.
        plus_minus: Standard deviations after a plus-minus sign instead of in brackets.
        table_width: Width in points above which a table in LaTeX is split.
    """

    average: bool = False
    rank: bool = False
    transpose: bool = False
    plain: bool = False
    plus_minus: bool = False
    table_width: float = TEXT_WIDTH_POINTS


DEFAULT_LAYOUT = TableLayout()


@dataclass(frozen=True)
class GridCell:
    """The texts of a cell. `mean` is empty without a result; `published` has the difference to the published result."""

    mean: str = ""
    std: str = ""
    symbols: str = ""
    seeds: str = ""
    published: str = ""
    relation: BaselineRelation | None = None
    is_best: bool = False


@dataclass(frozen=True)
class GridLabel:
    """The label of a row or column. Adjacent labels may belong to a group. Averages and ranks are summaries."""

    text: str
    group: str = ""
    is_summary: bool = False


@dataclass(frozen=True)
class TableGrid:
    """Rows of cells with labels. `corner` names the labels of the rows."""

    corner: str
    columns: tuple[GridLabel, ...]
    rows: tuple[GridLabel, ...]
    cells: tuple[tuple[GridCell, ...], ...]

    def transposed(self, corner: str) -> TableGrid:
        return TableGrid(corner, self.rows, self.columns, tuple(zip(*self.cells, strict=True)))

    def select_columns(self, numbers: Sequence[int]) -> TableGrid:
        """Return the grid with some of its columns."""
        cells = tuple(tuple(row[number] for number in numbers) for row in self.cells)
        return TableGrid(self.corner, tuple(self.columns[number] for number in numbers), self.rows, cells)

    def row_groups(self) -> list[tuple[str, list[tuple[GridLabel, tuple[GridCell, ...]]]]]:
        """Return the adjacent rows of each group."""
        labelled = zip(self.rows, self.cells, strict=True)
        return [(group, list(rows)) for group, rows in groupby(labelled, key=lambda pair: pair[0].group)]

    def column_groups(self) -> list[tuple[str, int]]:
        """Return the groups of adjacent columns with their numbers of columns."""
        return [(group, len(list(same))) for group, same in groupby(self.columns, key=lambda label: label.group)]


def table_grid(table: ComparisonTable, layout: TableLayout = DEFAULT_LAYOUT) -> TableGrid:
    """Return the grid of a table in a layout."""
    columns = [GridLabel(column.label, column.heading) for column in table.columns]
    cells = [[grid_cell(cell, table, number) for number, cell in enumerate(row.cells)] for row in table.rows]
    if layout.average:
        averages = {key: format_percent(value) for key, value in average_accuracies(table).items()}
        add_column(columns, cells, AVERAGE_LABEL, text_cells(table, averages, best_methods(table, averages, True)))
    if layout.rank:
        ranks = {key: f"{value:.2f}" for key, value in mean_ranks(table).items()}
        add_column(columns, cells, RANK_LABEL, text_cells(table, ranks, best_methods(table, ranks, False)))
    grid = TableGrid("Method", tuple(columns), row_labels(table.rows), tuple(map(tuple, cells)))
    return grid.transposed("Setting") if layout.transpose else grid


def row_labels(rows: Sequence[TableRow]) -> tuple[GridLabel, ...]:
    """Return the titles of rows with their families.

    If the rows of a family are not adjacent, only the references are labelled.
    """
    families = [family for family, _ in groupby(row.family for row in rows if row.method_key != ORACLE_KEY)]
    labelled = set(families)
    if len(labelled) < len(families):
        labelled = {family for family in FAMILY_LABELS if families.count(family) == 1}
    return tuple(
        GridLabel(row.title, FAMILY_LABELS.get(row.family, row.family) if row.family in labelled else "")
        for row in rows
    )


def add_column(columns: list[GridLabel], cells: list[list[GridCell]], label: str, values: Sequence[GridCell]) -> None:
    columns.append(GridLabel(label, is_summary=True))
    for row, value in zip(cells, values, strict=True):
        row.append(value)


def text_cells(table: ComparisonTable, texts: Mapping[MethodKey, str], best: set[MethodKey]) -> list[GridCell]:
    """Return a cell for each row, empty where there is no text."""
    return [GridCell(texts.get(row.method_key, ""), is_best=row.method_key in best) for row in table.rows]


def grid_cell(cell: TableCell, table: ComparisonTable, column: int) -> GridCell:
    """Return the texts of a cell of the table."""
    published = published_text(cell)
    result = cell.measured
    if result is None:
        return GridCell(published=published)
    return GridCell(
        format_percent(result.mean),
        "" if result.std is None else format_percent(result.std),
        result.caveat_symbols,
        incomplete_seeds_text(result, table, column),
        published,
        result.relation,
        result.is_best,
    )


def incomplete_seeds_text(result: MethodResult, table: ComparisonTable, column: int) -> str:
    """Return the number of seeds of a method that lacks seeds of its column."""
    total = len(table.seeds(column))
    return "" if len(result.seeds) == total else f"[{len(result.seeds)} of {total} seeds]"


def published_text(cell: TableCell) -> str:
    """Return the published mean and the difference to it."""
    if cell.published is None:
        return ""
    difference = "" if cell.difference is None else f", {format_percent(cell.difference, signed=True)}"
    return f"[{format_percent(cell.published.mean)}{difference}]"
