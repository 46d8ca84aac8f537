"""Comparison tables: one row per method, one column per group, each cell a mean over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from fedmosaic_cli.methods.registry import known_methods, method_info
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, ORACLE_KEY, method_title, paper_sort_key
from fedmosaic_cli.report.paper_results import PublishedResult, published_result

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

OVERVIEW_NAME = "table"
"""The name of the table with all groups."""
EXTENDED_FAMILY = "not in the paper"
ACCURACY_DECIMALS = 9
"""Accuracies that differ only in later digits differ by rounding."""


class BaselineRelation(Enum):
    """How a method compares with the baselines: description, symbol in plain text, colour in the paper."""

    BASELINE = ("baseline", "", "377EB8")
    WORSE_THAN_BOTH = ("worse than both baselines", "▼", "E41A1C")
    WORSE_THAN_LOCAL = ("worse than local training", "▽", "D95F02")
    BETTER_THAN_BOTH = ("better than both baselines", "▲", "1B9E77")
    NEITHER = ("between the baselines or equal to one", "", "")
    UNKNOWN = ("a baseline is missing", "?", "")

    def __init__(self, description: str, symbol: str, colour: str) -> None:
        self.description = description
        self.symbol = symbol
        self.colour = colour


@dataclass(frozen=True)
class MethodResult:
    """A method in a column: mean and sample standard deviation over seeds, as fractions."""

    mean: float
    std: float | None
    seeds: tuple[int, ...]
    relation: BaselineRelation
    is_best: bool
    caveat_symbols: str = ""


@dataclass(frozen=True)
class TableCell:
    """The measured and the published result, each optional, and the command that makes missing runs."""

    measured: MethodResult | None = None
    published: PublishedResult | None = None
    command: str = ""

    @property
    def difference(self) -> float | None:
        """The measured minus the published mean, as a fraction."""
        return self.measured.mean - self.published.mean if self.measured and self.published else None


@dataclass(frozen=True)
class TableColumn:
    """One group or one domain of it. Adjacent columns may share a heading.

    `group` is None for a column of the paper without runs; `preset` and `domain` then identify the column.
    """

    label: str
    group: ComparisonGroup | None
    preset: str
    heading: str = ""
    domain: str = ""

    def select_runs(self) -> Mapping[MethodKey, pd.DataFrame]:
        """Return the runs of each method with the accuracy of this column."""
        if self.group is None:
            return {}
        if not self.domain:
            return self.group.runs_by_method
        in_domain = self.group.runs_in_domain(self.domain)
        selected = {
            key: in_domain.loc[in_domain.index.intersection(runs.index)].sort_values("seed")
            for key, runs in self.group.runs_by_method.items()
        }
        return {key: runs for key, runs in selected.items() if len(runs)}


@dataclass(frozen=True)
class TableRow:
    """A method with one cell per column."""

    method_key: MethodKey
    title: str
    family: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class ComparisonTable:
    """A table. `name` is the stem of its files, `notes` describe the protocol, `commands` make missing runs."""

    name: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    caption: str
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    has_published: bool = False
    privacy_notes: tuple[tuple[str, ...], ...] = ()
    """The lines of the privacy note of each row with noise."""

    def baseline_relations(self) -> list[BaselineRelation]:
        """Return the relations that occur, in the order of their definition."""
        present = {cell.measured.relation for row in self.rows for cell in row.cells if cell.measured}
        return [relation for relation in BaselineRelation if relation in present]

    def seeds(self, column: int) -> tuple[int, ...]:
        """Return the seeds of all methods in a column."""
        group = self.columns[column].group
        return group.seeds if group else ()


def build_rows(
    columns: Sequence[TableColumn],
    method_keys: Sequence[MethodKey],
    with_published: bool,
    extra_methods: Collection[str] | None = None,
    extended_keys: Sequence[MethodKey] = (),
) -> tuple[TableRow, ...]:
    """Build one row for each of `method_keys` in this order, and one for each other row with runs.

    Rows of the same method are adjacent. `extra_methods` limits which methods get further rows; None allows all. Rows
    of `extended_keys` come last and do not change which of the others is the best.
    """
    runs = [column.select_runs() for column in columns]
    extra = {key for by_method in runs for key in by_method if extra_methods is None or key[0] in extra_methods}
    listed = [*method_keys, *extended_keys]
    methods = list(dict.fromkeys([*(method for method, _ in listed), *known_methods()]))
    keys = sorted(
        {*listed, *extra},
        key=lambda key: (methods.index(key[0]), (*listed, key).index(key), paper_sort_key(key)),
    )
    results = [method_results(by_method, [key for key in keys if key not in extended_keys]) for by_method in runs]
    rows = []
    for key in keys:
        cells = tuple(
            TableCell(
                by_method.get(key), published_result(column.preset, column.domain, key) if with_published else None
            )
            for column, by_method in zip(columns, results, strict=True)
        )
        family = EXTENDED_FAMILY if key in extended_keys else method_info(key[0]).family
        rows.append(TableRow(key, method_title(key), family, cells))
    return tuple(sorted(rows, key=lambda row: row.family == EXTENDED_FAMILY))


def method_results(
    runs_by_method: Mapping[MethodKey, pd.DataFrame], shown_keys: Iterable[MethodKey] | None = None
) -> dict[MethodKey, MethodResult]:
    """Return the results of one column. Only methods in `shown_keys` (default: all) can be the best.

    The best methods are those with the highest printed mean among the methods with the most seeds, because seeds are
    not equally easy. The oracle is not a method for a federation and never the best.
    """
    keys = [key for key in shown_keys or runs_by_method if key != ORACLE_KEY]
    shown = {key: runs_by_method[key] for key in keys if key in runs_by_method}
    most_seeds = max(map(len, shown.values()), default=0)
    percents = {
        key: round(100 * float(runs.accuracy.mean()), 2) for key, runs in shown.items() if len(runs) == most_seeds
    }
    return {
        key: MethodResult(
            mean=float(runs.accuracy.mean()),
            std=float(runs.accuracy.std()) if len(runs) > 1 else None,
            seeds=tuple(int(seed) for seed in runs.seed),
            relation=BaselineRelation.BASELINE
            if key in (LOCAL_KEY, CENTRALIZED_KEY)
            else relation_on_common_seeds(runs, runs_by_method),
            is_best=key in percents and percents[key] == max(percents.values()),
            caveat_symbols="".join(symbol for symbol in CAVEAT_DESCRIPTIONS if runs.caveats.str.contains(symbol).any()),
        )
        for key, runs in runs_by_method.items()
    }


def relation_on_common_seeds(runs: pd.DataFrame, runs_by_method: Mapping[MethodKey, pd.DataFrame]) -> BaselineRelation:
    """Compare a method with both baselines on the seeds that all three have."""
    if LOCAL_KEY not in runs_by_method or CENTRALIZED_KEY not in runs_by_method:
        return BaselineRelation.UNKNOWN
    frames = (runs, runs_by_method[LOCAL_KEY], runs_by_method[CENTRALIZED_KEY])
    by_seed = [frame.set_index("seed").accuracy for frame in frames]
    common = sorted(set.intersection(*(set(accuracies.index) for accuracies in by_seed)))
    if not common:
        return BaselineRelation.UNKNOWN
    accuracy, local, centralized = (float(accuracies[common].mean()) for accuracies in by_seed)
    return relation_to_baselines(accuracy, local, centralized)


def relation_to_baselines(accuracy: float, local: float | None, centralized: float | None) -> BaselineRelation:
    """Apply the paper's colour rule. A tie is neither better nor worse."""
    if local is None or centralized is None:
        return BaselineRelation.UNKNOWN
    accuracy, local, centralized = (round(value, ACCURACY_DECIMALS) for value in (accuracy, local, centralized))
    if accuracy < local:
        return BaselineRelation.WORSE_THAN_BOTH if accuracy < centralized else BaselineRelation.WORSE_THAN_LOCAL
    if accuracy > local and accuracy > centralized:
        return BaselineRelation.BETTER_THAN_BOTH
    return BaselineRelation.NEITHER
