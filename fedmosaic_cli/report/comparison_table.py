"""A comparison table: methods by settings, each cell a mean over seeds and what it is worth beside the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.baseline_colors import Verdict, judge
from fedmosaic_cli.report.collect import CAVEATS
from fedmosaic_cli.report.comparison import CENTRALIZED, LOCAL, paper_order, title_of
from fedmosaic_cli.report.paper_results import Published, published_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import Key, Setting


OVERVIEW = "table"
"""The name of the one table that holds all settings."""


@dataclass(frozen=True)
class Result:
    """A method in a setting: mean and sample standard deviation over seeds, as fractions."""

    mean: float
    std: float | None
    seeds: tuple[int, ...]
    verdict: Verdict
    best: bool
    caveats: str = ""


@dataclass(frozen=True)
class Cell:
    """What we found and what the paper printed, either of which may be missing; `command` makes the runs that are."""

    ours: Result | None = None
    published: Published | None = None
    command: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, as a fraction."""
        return self.ours.mean - self.published.mean if self.ours and self.published else None


@dataclass(frozen=True)
class Column:
    """One setting, or one domain of it, under a heading that neighbours may share. `setting` is None where nobody ran
    what the paper has here; `preset` and `domain` say what that is."""

    label: str
    setting: Setting | None
    preset: str
    heading: str = ""
    domain: str = ""

    def runs(self) -> Mapping[Key, pd.DataFrame]:
        """The runs of each method, `accuracy` being the column's."""
        if self.setting is None:
            return {}
        if not self.domain:
            return self.setting.methods
        lines = self.setting.in_domain(self.domain)
        picked = {key: lines.loc[lines.index.intersection(runs.index)] for key, runs in self.setting.methods.items()}
        return {key: runs.sort_values("seed") for key, runs in picked.items() if len(runs)}


@dataclass(frozen=True)
class Row:
    """A method, with a cell a column."""

    key: Key
    title: str
    family: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """`name` is that of its files. `caption` says what the numbers are, `notes` under which protocol they came about,
    `commands` how to fill the cells that are empty."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    paper: bool = False
    """Whether the published numbers stand beside ours."""
    blocks: tuple[tuple[str, ...], ...] = ()
    """What was given away in spite of noise, lines for each kind of run that has any."""

    def verdicts(self) -> list[Verdict]:
        """The verdicts that occur, in the order of their definition."""
        seen = {cell.ours.verdict for row in self.rows for cell in row.cells if cell.ours}
        return [verdict for verdict in Verdict if verdict in seen]

    def seeds(self, column: int) -> tuple[int, ...]:
        """All seeds that any method of a column was run with."""
        setting = self.columns[column].setting
        return setting.seeds if setting else ()


def rows_of(columns: Sequence[Column], keys: Sequence[Key], paper: bool, only: bool = False) -> tuple[Row, ...]:
    """A row for each of `keys`, and for everything else that was run; with `only`, for FedMosaic's other rows alone."""
    runs = [column.runs() for column in columns]
    found = {key for by_method in runs for key in by_method if not only or key[0] == "fedmosaic"}
    every = in_order({*keys, *found}, keys)
    results = [results_of(by_method, every) for by_method in runs]
    return tuple(
        Row(
            key,
            title_of(key),
            METHODS[key[0]].family,
            tuple(
                Cell(by_method.get(key), published_of(column.preset, column.domain, key) if paper else None)
                for column, by_method in zip(columns, results, strict=True)
            ),
        )
        for key in every
    )


def in_order(found: Iterable[Key], keys: Sequence[Key]) -> list[Key]:
    """Methods in the order of `keys`, others in the paper's; rows of one method below each other, those of `keys`
    first."""
    methods = list(dict.fromkeys([*(method for method, _ in keys), *METHODS]))
    return sorted(
        found, key=lambda key: (methods.index(key[0]), keys.index(key) if key in keys else len(keys), paper_order(key))
    )


def results_of(groups: Mapping[Key, pd.DataFrame], shown: Iterable[Key] | None = None) -> dict[Key, Result]:
    """The results of one column. The best is one of those that are shown, if not all are."""
    best = best_of(groups if shown is None else {key: groups[key] for key in shown if key in groups})
    return {
        key: Result(
            mean=float(runs.accuracy.mean()),
            std=float(runs.accuracy.std()) if len(runs) > 1 else None,
            seeds=tuple(int(seed) for seed in runs.seed),
            verdict=Verdict.BASELINE if key in (LOCAL, CENTRALIZED) else verdict_of(runs, groups),
            best=key in best,
            caveats="".join(mark for mark in CAVEATS if runs.caveats.str.contains(mark).any()),
        )
        for key, runs in groups.items()
    }


def best_of(groups: Mapping[Key, pd.DataFrame]) -> set[Key]:
    """All that print as the best mean, among the methods with the most seeds: seeds are not equally easy."""
    most = max(map(len, groups.values()), default=0)
    means = {key: as_printed(float(runs.accuracy.mean())) for key, runs in groups.items() if len(runs) == most}
    return {key for key, mean in means.items() if mean == max(means.values())}


def as_printed(fraction: float) -> float:
    """To a hundredth of a percent: what looks the same to a reader should be treated the same."""
    return round(100 * fraction, 2)


def verdict_of(runs: pd.DataFrame, groups: Mapping[Key, pd.DataFrame]) -> Verdict:
    """A method against both baselines, on the seeds that all three were run with."""
    if LOCAL not in groups or CENTRALIZED not in groups:
        return Verdict.UNKNOWN
    by_seed = [frame.set_index("seed").accuracy for frame in (runs, groups[LOCAL], groups[CENTRALIZED])]
    common = sorted(set.intersection(*(set(each.index) for each in by_seed)))
    if not common:
        return Verdict.UNKNOWN
    accuracy, local, centralized = (float(each[common].mean()) for each in by_seed)
    return judge(accuracy, local, centralized)
