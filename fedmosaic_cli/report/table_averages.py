"""Averages and mean ranks of the rows of a comparison table over its columns."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, ORACLE_KEY
from fedmosaic_cli.report.comparison_table import format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.comparison_table import ComparisonTable, TableRow

UNRANKED_KEYS = (CENTRALIZED_KEY, ORACLE_KEY)
"""Rows without a rank: no federation can use the data or labels that they use."""


def average_accuracies(table: ComparisonTable) -> dict[MethodKey, float]:
    """Return the mean over columns of each row with a result in all of them."""
    return {row.method_key: fmean(means) for row in table.rows if (means := complete_means(row))}


def mean_ranks(table: ComparisonTable) -> dict[MethodKey, float]:
    """Return the mean rank over columns of each row with a result in all of them; 1 is best, ties share a rank.

    Results are compared as they are printed. Centralized and the oracle have no rank.
    """
    percents = {
        row.method_key: [float(format_percent(mean)) for mean in means]
        for row in table.rows
        if row.method_key not in UNRANKED_KEYS and (means := complete_means(row))
    }
    columns = list(zip(*percents.values(), strict=True))
    return {
        key: fmean(tied_rank(value, column) for value, column in zip(values, columns, strict=True))
        for key, values in percents.items()
    }


def tied_rank(value: float, values: tuple[float, ...]) -> float:
    """Return the rank of a value, 1 for the largest; equal values share the mean of their ranks."""
    return 1 + sum(other > value for other in values) + (values.count(value) - 1) / 2


def complete_means(row: TableRow) -> list[float]:
    """Return the means of a row; [] if a column has no result."""
    means = [cell.measured.mean for cell in row.cells if cell.measured]
    return means if len(means) == len(row.cells) else []


def best_methods(table: ComparisonTable, texts: Mapping[MethodKey, str], largest: bool) -> set[MethodKey]:
    """Return the methods with the largest or smallest printed value. References do not count."""
    references = {row.method_key for row in table.rows if row.is_reference}
    printed = {key: float(text) for key, text in texts.items() if key not in references}
    best = (max if largest else min)(printed.values(), default=None)
    return {key for key, value in printed.items() if len(printed) > 1 and value == best}
