"""A comparison table: methods by settings, each cell a mean over seeds and what it is worth beside the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.baseline_colors import BaselineRelation, relation_to_baselines
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, method_title, paper_sort_key
from fedmosaic_cli.report.paper_results import PublishedResult, published_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey


OVERVIEW_NAME = "table"
"""The name of the one table that holds all settings."""


@dataclass(frozen=True)
class MethodResult:
    """A method in a setting: mean and sample standard deviation over seeds, as fractions."""

    mean: float
    std: float | None
    seeds: tuple[int, ...]
    relation: BaselineRelation
    is_best: bool
    caveat_symbols: str = ""


@dataclass(frozen=True)
class TableCell:
    """What we found and what the paper printed, either of which may be missing; `command` makes the runs that are."""

    measured: MethodResult | None = None
    published: PublishedResult | None = None
    command: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, as a fraction."""
        return self.measured.mean - self.published.mean if self.measured and self.published else None


@dataclass(frozen=True)
class TableColumn:
    """One setting, or one domain of it, under a heading that neighbours may share. `setting` is None where nobody ran
    what the paper has here; `preset` and `domain` say what that is."""

    label: str
    group: ComparisonGroup | None
    preset: str
    heading: str = ""
    domain: str = ""

    def select_runs(self) -> Mapping[MethodKey, pd.DataFrame]:
        """The runs of each method, `accuracy` being the column's."""
        if self.group is None:
            return {}
        if not self.domain:
            return self.group.runs_by_method
        lines = self.group.runs_in_domain(self.domain)
        picked = {
            key: lines.loc[lines.index.intersection(runs.index)] for key, runs in self.group.runs_by_method.items()
        }
        return {key: runs.sort_values("seed") for key, runs in picked.items() if len(runs)}


@dataclass(frozen=True)
class TableRow:
    """A method, with a cell a column."""

    method_key: MethodKey
    title: str
    family: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class ComparisonTable:
    """`name` is that of its files. `caption` says what the numbers are, `notes` under which protocol they came about,
    `commands` how to fill the cells that are empty."""

    name: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    caption: str
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    has_published: bool = False
    """Whether the published numbers stand beside ours."""
    privacy_notes: tuple[tuple[str, ...], ...] = ()
    """What was given away in spite of noise, lines for each kind of run that has any."""

    def baseline_relations(self) -> list[BaselineRelation]:
        """The verdicts that occur, in the order of their definition."""
        seen = {cell.measured.relation for row in self.rows for cell in row.cells if cell.measured}
        return [verdict for verdict in BaselineRelation if verdict in seen]

    def seeds(self, column: int) -> tuple[int, ...]:
        """All seeds that any method of a column was run with."""
        setting = self.columns[column].group
        return setting.seeds if setting else ()


def build_rows(
    columns: Sequence[TableColumn], method_keys: Sequence[MethodKey], with_published: bool, only_listed: bool = False
) -> tuple[TableRow, ...]:
    """A row for each of `keys`, and for everything else that was run; with `only`, for FedMosaic's other rows alone."""
    runs = [column.select_runs() for column in columns]
    found = {key for by_method in runs for key in by_method if not only_listed or key[0] == "fedmosaic"}
    every = sort_method_keys({*method_keys, *found}, method_keys)
    results = [method_results(by_method, every) for by_method in runs]
    return tuple(
        TableRow(
            key,
            method_title(key),
            METHODS[key[0]].family,
            tuple(
                TableCell(
                    by_method.get(key), published_result(column.preset, column.domain, key) if with_published else None
                )
                for column, by_method in zip(columns, results, strict=True)
            ),
        )
        for key in every
    )


def sort_method_keys(found: Iterable[MethodKey], listed: Sequence[MethodKey]) -> list[MethodKey]:
    """Methods in the order of `keys`, others in the paper's; rows of one method below each other, those of `keys`
    first."""
    methods = list(dict.fromkeys([*(method for method, _ in listed), *METHODS]))
    return sorted(
        found,
        key=lambda key: (
            methods.index(key[0]),
            listed.index(key) if key in listed else len(listed),
            paper_sort_key(key),
        ),
    )


def method_results(
    runs_by_method: Mapping[MethodKey, pd.DataFrame], shown_keys: Iterable[MethodKey] | None = None
) -> dict[MethodKey, MethodResult]:
    """The results of one column. The best is one of those that are shown, if not all are."""
    best = best_method_keys(
        runs_by_method
        if shown_keys is None
        else {key: runs_by_method[key] for key in shown_keys if key in runs_by_method}
    )
    return {
        key: MethodResult(
            mean=float(runs.accuracy.mean()),
            std=float(runs.accuracy.std()) if len(runs) > 1 else None,
            seeds=tuple(int(seed) for seed in runs.seed),
            relation=BaselineRelation.BASELINE
            if key in (LOCAL_KEY, CENTRALIZED_KEY)
            else relation_on_common_seeds(runs, runs_by_method),
            is_best=key in best,
            caveat_symbols="".join(mark for mark in CAVEAT_DESCRIPTIONS if runs.caveats.str.contains(mark).any()),
        )
        for key, runs in runs_by_method.items()
    }


def best_method_keys(runs_by_method: Mapping[MethodKey, pd.DataFrame]) -> set[MethodKey]:
    """All that print as the best mean, among the methods with the most seeds: seeds are not equally easy."""
    most = max(map(len, runs_by_method.values()), default=0)
    means = {
        key: printed_percent(float(runs.accuracy.mean())) for key, runs in runs_by_method.items() if len(runs) == most
    }
    return {key for key, mean in means.items() if mean == max(means.values())}


def printed_percent(fraction: float) -> float:
    """To a hundredth of a percent: what looks the same to a reader should be treated the same."""
    return round(100 * fraction, 2)


def relation_on_common_seeds(runs: pd.DataFrame, runs_by_method: Mapping[MethodKey, pd.DataFrame]) -> BaselineRelation:
    """A method against both baselines, on the seeds that all three were run with."""
    if LOCAL_KEY not in runs_by_method or CENTRALIZED_KEY not in runs_by_method:
        return BaselineRelation.UNKNOWN
    by_seed = [
        frame.set_index("seed").accuracy for frame in (runs, runs_by_method[LOCAL_KEY], runs_by_method[CENTRALIZED_KEY])
    ]
    common = sorted(set.intersection(*(set(each.index) for each in by_seed)))
    if not common:
        return BaselineRelation.UNKNOWN
    accuracy, local, centralized = (float(each[common].mean()) for each in by_seed)
    return relation_to_baselines(accuracy, local, centralized)
