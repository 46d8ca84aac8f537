"""The tables of `fedmosaic report` from Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.api.compare_runs import collect_sources
from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report import stats_tables
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.formats.latex import standalone_latex, tables_to_latex
from fedmosaic_cli.report.formats.text_formats import tables_to_csv, tables_to_json, tables_to_markdown
from fedmosaic_cli.report.paper_tables import PAPER_TABLES, select_tables
from fedmosaic_cli.report.statistics import compare_methods_with_local, rank_methods

if TYPE_CHECKING:
    import pandas as pd

    from fedmosaic_cli.api.compare_runs import RunSource
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.statistics import MethodComparison, MethodRanking


class Report(ABC):
    """Tables about runs in several formats, with the texts that `fedmosaic report` prints."""

    @abstractmethod
    def to_markdown(self) -> str:
        """Return the tables as Markdown, as `fedmosaic report --markdown` prints them."""

    @abstractmethod
    def to_latex(self) -> str:
        """Return the tables as a LaTeX document, as `fedmosaic report --latex` prints them."""

    @abstractmethod
    def to_csv(self) -> str:
        """Return one line per cell in full precision, as `fedmosaic report --csv` prints them."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return the lines of `to_csv` as dictionaries."""

    def to_frame(self) -> pd.DataFrame:
        """Return the content of `to_csv` as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def __repr__(self) -> str:
        return self.to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


@dataclass(frozen=True, repr=False)
class AccuracyReport(Report):
    """Accuracies: one row per method, one column per setting."""

    tables: tuple[ComparisonTable, ...]

    def to_markdown(self) -> str:
        return tables_to_markdown(self.tables)

    def to_latex(self) -> str:
        return standalone_latex(tables_to_latex(self.tables))

    def to_csv(self) -> str:
        return tables_to_csv(self.tables)

    def records(self) -> list[dict[str, Any]]:
        return tables_to_json(self.tables)


@dataclass(frozen=True, repr=False)
class StatisticsReport(Report):
    """Tests over clients, and ranks over settings."""

    comparisons: tuple[MethodComparison, ...]
    ranking: MethodRanking | None

    def to_markdown(self) -> str:
        return "\n".join(map(stats_tables.text_table_to_markdown, self._tables()))

    def to_latex(self) -> str:
        return standalone_latex(list(map(stats_tables.text_table_to_latex, self._tables())))

    def to_csv(self) -> str:
        return stats_tables.statistics_to_csv(self.comparisons, self.ranking)

    def records(self) -> list[dict[str, Any]]:
        ranks = self.ranking.ranks if self.ranking else {}
        return [*map(asdict, self.comparisons), *({"method": name, "average_rank": ranks[name]} for name in ranks)]

    def _tables(self) -> list[stats_tables.TextTable]:
        return stats_tables.build_statistics_tables(self.comparisons, self.ranking)


def report(
    path: RunSource | None = None, table: str | None = None, paper: bool = False, statistics: bool = False
) -> Report:
    """Compare all methods of some runs: mean and standard deviation over seeds, per setting.

    Args:
        path: A directory of runs, a `Result`, or `Runs`; by default FEDMOSAIC_RUNS or `runs`.
        table: One of the paper's tables: "label-skew", "feature-shift", "hybrid", "compact" or "all". None makes one
            table of all settings.
        paper: Show the published results and the difference to them.
        statistics: Report tests over clients and ranks over settings instead of accuracies.

    Returns:
        The report. A notebook shows it as a table.

    Raises:
        FedMosaicError: There are no finished runs, or none for the table.

    Example:
        >>> fedmosaic.report("runs").to_frame()
        >>> Path("table.tex").write_text(fedmosaic.report("runs", table="label-skew").to_latex())
    """
    if statistics and (table or paper):
        raise RequestError("statistics are reported instead of tables (statistics): omit table and paper")
    source = default_runs_dir() if path is None else path
    groups = comparison_groups(collect_sources(source))
    if not statistics:
        tables, omitted = select_tables(table, groups, paper)
        if not tables:
            raise RequestError(
                f"no runs for the table '{table}' ({source}): make some with the preset "
                f"'{PAPER_TABLES[omitted[0]].quickstart_preset}', or show the published results with paper=True"
            )
        return AccuracyReport(tuple(tables))
    comparisons = tuple(line for group in groups for line in compare_methods_with_local(group))
    if not comparisons:
        raise RequestError("no runs of Local to compare with (statistics): make them with method='local'")
    return StatisticsReport(comparisons, rank_methods(groups))
