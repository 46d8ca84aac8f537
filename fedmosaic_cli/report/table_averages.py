"""Averages and mean ranks of the rows of a comparison table over its columns."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, ORACLE_KEY
from fedmosaic_cli.report.comparison_table import EXTENDED_FAMILY, MIN_CANDIDATES, format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.comparison_table import ComparisonTable, TableRow

UNRANKED_KEYS = (CENTRALIZED_KEY, ORACLE_KEY)
"""Rows without a rank: no federation can use the data or labels that they use."""


def average_accuracies(table: ComparisonTable) -> dict[MethodKey, float]:
    """Return the mean over columns of each row with a result in all of them.

    Columns without runs, which show published results only, do not count.
    """
    return {row.method_key: fmean(means) for row in table.rows if (means := complete_means(table, row))}


def mean_ranks(table: ComparisonTable) -> dict[MethodKey, float]:
    """Return the mean rank over columns of each comparable row; 1 is best, ties share a rank.

    Results are compared as they are printed. Centralized and the oracle have no rank, and neither has a single method.
    """
    percents = {
        row.method_key: [float(format_percent(mean)) for mean in complete_means(table, row)]
        for row in comparable_rows(table)
        if row.method_key not in UNRANKED_KEYS
    }
    if len(percents) < MIN_CANDIDATES:
        return {}
    columns = list(zip(*percents.values(), strict=True))
    return {
        key: fmean(tied_rank(value, column) for value, column in zip(values, columns, strict=True))
        for key, values in percents.items()
    }


def tied_rank(value: float, values: tuple[float, ...]) -> float:
    """Return the rank of a value, 1 for the largest; equal values share the mean of their ranks."""
    return 1 + sum(other > value for other in values) + (values.count(value) - 1) / 2


def complete_means(table: ComparisonTable, row: TableRow) -> list[float]:
    """Return the means of a row in the columns with runs; [] if one of them has no result."""
    cells = [cell for column, cell in zip(table.columns, row.cells, strict=True) if column.group is not None]
    means = [cell.measured.mean for cell in cells if cell.measured]
    return means if len(means) == len(cells) else []


def comparable_rows(table: ComparisonTable) -> list[TableRow]:
    """Return the rows with a result and the most seeds in every column, because seeds are not equally easy.

    Rows that are not part of the paper's table are not compared.
    """
    rows = [row for row in table.rows if row.family != EXTENDED_FAMILY and complete_means(table, row)]
    num_seeds = {row.method_key: [len(cell.measured.seeds) for cell in row.cells if cell.measured] for row in rows}
    most = [max(counts) for counts in zip(*num_seeds.values(), strict=True)]
    return [row for row in rows if num_seeds[row.method_key] == most]


def best_methods(table: ComparisonTable, texts: Mapping[MethodKey, str], largest: bool) -> set[MethodKey]:
    """Return the comparable methods with the largest or smallest printed value. References do not count."""
    candidates = {row.method_key for row in comparable_rows(table) if not row.is_reference}
    printed = {key: float(text) for key, text in texts.items() if key in candidates}
    best = (max if largest else min)(printed.values(), default=None)
    return {key for key, value in printed.items() if len(printed) >= MIN_CANDIDATES and value == best}
