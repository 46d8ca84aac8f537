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
REFERENCE_KEYS = (CENTRALIZED_KEY, LOCAL_KEY, ORACLE_KEY)
"""Rows that methods are compared with. They are never the best method."""
MIN_CANDIDATES = 2
"""The number of methods from which on one of them is called the best."""
ACCURACY_DECIMALS = 9
"""Accuracies that differ only in later digits differ by rounding."""
PERCENT_DECIMALS = 2


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

    @property
    def legend(self) -> str:
        """The description for readers of a table, whose rows of baselines are called references."""
        return self.description.replace("baseline", "reference")


@dataclass(frozen=True)
class MethodResult:
    """A method in a column: mean and sample standard deviation over seeds, as fractions."""

    mean: float
    std: float | None
    seeds: tuple[int, ...]
    relation: BaselineRelation
    is_best: bool
    caveat_symbols: str = ""
    gain: float | None = None
    """The mean difference to Local on the seeds that both have, as a fraction."""


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

    def select_runs(self) -> dict[MethodKey, pd.DataFrame]:
        """Return the runs of each row with the accuracy of this column."""
        return self._with_accuracy(self.group.runs_by_method) if self.group else {}

    def select_baseline_runs(self) -> dict[MethodKey, pd.DataFrame]:
        """Return the runs of Local and Centralized with the accuracy of this column, also if they are not shown."""
        return self._with_accuracy(self.group.baseline_runs) if self.group else {}

    def _with_accuracy(self, runs_by_method: Mapping[MethodKey, pd.DataFrame]) -> dict[MethodKey, pd.DataFrame]:
        if self.group is None or not self.domain:
            return dict(runs_by_method)
        selected = {key: self.group.runs_in_domain(runs, self.domain) for key, runs in runs_by_method.items()}
        return {key: runs for key, runs in selected.items() if len(runs)}


@dataclass(frozen=True)
class TableRow:
    """A method with one cell per column."""

    method_key: MethodKey
    title: str
    family: str
    cells: tuple[TableCell, ...]

    @property
    def is_reference(self) -> bool:
        """Whether methods are compared with this row, so that it is not one of them."""
        return self.method_key in REFERENCE_KEYS

    @property
    def has_results(self) -> bool:
        return any(cell.measured or cell.published for cell in self.cells)


@dataclass(frozen=True)
class ComparisonTable:
    """A table. `name` is the stem of its files, `notes` describe the protocol, `commands` make missing runs.

    `summary` says in one sentence which method is best. `missing_rows` are baselines without runs, which are not shown.
    """

    name: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    caption: str
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    has_published: bool = False
    privacy_notes: tuple[tuple[str, ...], ...] = ()
    """The lines of the privacy note of each row with noise."""
    summary: str = ""
    missing_rows: tuple[TableRow, ...] = ()
    num_missing: int = 0
    """The number of results that `commands` make."""

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
    order: Sequence[MethodKey] | None = None,
) -> tuple[TableRow, ...]:
    """Build one row for each of `method_keys` in this order, and one for each other row with runs.

    Rows of the same method are adjacent, FedMosaic-W before -U.

    `extra_methods` limits which methods get further rows; None allows all. Rows
    of `extended_keys` come last and do not change which of the others is the best. `order` is the order of the rows
    instead; rows that are not in it are left out.
    """
    runs = [column.select_runs() for column in columns]
    extra = {key for by_method in runs for key in by_method if extra_methods is None or key[0] in extra_methods}
    listed = [*method_keys, *extended_keys]
    methods = list(dict.fromkeys([*(method for method, _ in listed), *known_methods()]))
    keys = sorted(
        {*listed, *extra},
        key=lambda key: (methods.index(key[0]), paper_sort_key(key)),
    )
    if order is not None:
        keys = [key for key in order if key in keys]
    candidates = [key for key in keys if key not in extended_keys]
    results = [
        method_results(by_method, candidates, column.select_baseline_runs())
        for column, by_method in zip(columns, runs, strict=True)
    ]
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
    runs_by_method: Mapping[MethodKey, pd.DataFrame],
    shown_keys: Iterable[MethodKey] | None = None,
    baseline_runs: Mapping[MethodKey, pd.DataFrame] | None = None,
) -> dict[MethodKey, MethodResult]:
    """Return the results of one column. Only methods in `shown_keys` (default: all) can be the best.

    The best methods are those with the highest printed mean among the methods with the most seeds, because seeds are
    not equally easy. References are never the best, and a single method is not called the best. `baseline_runs` are the
    runs of Local and Centralized, by default those in `runs_by_method`.
    """
    baselines = runs_by_method if baseline_runs is None else baseline_runs
    keys = [key for key in shown_keys or runs_by_method if key not in REFERENCE_KEYS]
    candidates = {key: runs_by_method[key] for key in keys if key in runs_by_method}
    most_seeds = max(map(len, candidates.values()), default=0)
    percents = {
        key: format_percent(float(runs.accuracy.mean())) for key, runs in candidates.items() if len(runs) == most_seeds
    }
    best = max(percents.values(), key=float, default=None) if len(candidates) >= MIN_CANDIDATES else None
    return {
        key: MethodResult(
            mean=float(runs.accuracy.mean()),
            std=float(runs.accuracy.std()) if len(runs) > 1 else None,
            seeds=tuple(int(seed) for seed in runs.seed),
            relation=BaselineRelation.BASELINE
            if key in (LOCAL_KEY, CENTRALIZED_KEY)
            else relation_on_common_seeds(runs, baselines),
            is_best=best is not None and percents.get(key) == best,
            caveat_symbols="".join(symbol for symbol in CAVEAT_DESCRIPTIONS if runs.caveats.str.contains(symbol).any()),
            gain=None if key == LOCAL_KEY else gain_over_local(runs, baselines),
        )
        for key, runs in runs_by_method.items()
    }


def format_percent(fraction: float, signed: bool = False) -> str:
    """Return a fraction in percent as it is printed, e.g. 86.38 for 0.86375 and for 0.86374999999999991."""
    percent = round(100 * fraction, ACCURACY_DECIMALS)
    return f"{percent:{'+' if signed else ''}.{PERCENT_DECIMALS}f}"


def gain_over_local(runs: pd.DataFrame, baseline_runs: Mapping[MethodKey, pd.DataFrame]) -> float | None:
    """Return the mean difference to Local on the seeds that both have; None without any."""
    means = means_on_common_seeds(runs, baseline_runs, (LOCAL_KEY,))
    return None if means is None else means[0] - means[1]


def means_on_common_seeds(
    runs: pd.DataFrame, baseline_runs: Mapping[MethodKey, pd.DataFrame], baseline_keys: Sequence[MethodKey]
) -> list[float] | None:
    """Return the mean accuracy of a method and of baselines on the seeds that all have; None without any."""
    if any(key not in baseline_runs for key in baseline_keys):
        return None
    by_seed = [frame.set_index("seed").accuracy for frame in (runs, *(baseline_runs[key] for key in baseline_keys))]
    common = sorted(set.intersection(*(set(accuracies.index) for accuracies in by_seed)))
    return [float(accuracies[common].mean()) for accuracies in by_seed] if common else None


def relation_on_common_seeds(runs: pd.DataFrame, baseline_runs: Mapping[MethodKey, pd.DataFrame]) -> BaselineRelation:
    """Compare a method with both baselines on the seeds that all three have."""
    means = means_on_common_seeds(runs, baseline_runs, (LOCAL_KEY, CENTRALIZED_KEY))
    return BaselineRelation.UNKNOWN if means is None else relation_to_baselines(*means)


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
