"""The table after training: one row per method and hyper-parameters, with means over seeds, the best first."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.views.evaluation_view import MISSING_CELL
from fedmosaic_cli.cli.views.watch_view import ASCII_SYMBOLS, BLOCK_SYMBOLS, sparkline
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.run_costs import BITS_PER_KILOBYTE
from fedmosaic_cli.report.run_progress import RoundHistory
from fedmosaic_cli.runner.baseline_lookup import MissingLocalBaseline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedmosaic_cli.cli.views.local_comparison import LocalComparison
    from fedmosaic_cli.runner.plan import PlannedRun

REFERENCE_METHODS = ("local", "centralized")
REFERENCE_MARK = "*"
MIN_CURVE_WIDTH, MAX_CURVE_WIDTH = 5, 30


@dataclass(frozen=True)
class RowRun:
    """A finished run and its comparison with Local, if there is one."""

    run: PlannedRun
    summary: dict[str, Any]
    comparison: LocalComparison | MissingLocalBaseline | None = None

    @property
    def row_dir(self) -> Path:
        """The directory that the runs of a row share: that of the method, or the run's if it has another layout."""
        path = self.run.files.path
        return path.parent if path.name == f"seed-{self.summary['seed']}" else path


@dataclass(frozen=True)
class ResultRow:
    """The runs of one row, one per seed."""

    label: str
    results: list[RowRun]

    @property
    def is_reference(self) -> bool:
        return self.results[0].summary["method"] in REFERENCE_METHODS

    @property
    def seeds(self) -> list[int]:
        return sorted(result.summary["seed"] for result in self.results)

    @property
    def comparisons(self) -> list[Any]:
        """The comparisons with Local: one per seed, or none if one of them is missing."""
        found = [result.comparison for result in self.results]
        is_complete = all(each is not None and not isinstance(each, MissingLocalBaseline) for each in found)
        return found if is_complete else []

    def accuracies(self, name: str) -> list[float]:
        """Return an average per seed; [] if a run withholds it."""
        values = [result.summary["accuracy"].get(name) for result in self.results]
        return [] if None in values else values

    def kilobytes(self, direction: str) -> float | None:
        """Return the mean kilobytes per client and round; None if raw data moves."""
        summaries = [result.summary for result in self.results]
        bits = [summary["bits"][direction] for summary in summaries]
        if None in bits:
            return None
        return fmean(
            number / BITS_PER_KILOBYTE / summary["shards"]["clients"] / summary["rounds"]
            for number, summary in zip(bits, summaries, strict=True)
        )

    def accuracy_curve(self) -> list[float]:
        """Return the mean accuracy of each evaluated round; [] if a log cannot be read."""
        values: defaultdict[int, list[float]] = defaultdict(list)
        for result in self.results:
            history = RoundHistory(keep_all_rounds=True)
            try:
                rows = result.run.files.read_rounds()
            except RequestError:
                return []
            for row in rows:
                history.add_row(row)
            for number, accuracy, _ in history.mean_curve():
                if accuracy is not None:
                    values[number].append(accuracy)
        return [fmean(values[number]) for number in sorted(values)]


def group_by_method(results: Sequence[RowRun]) -> list[ResultRow]:
    """Group runs that differ only in the seed, the best mean accuracy first."""
    rows: defaultdict[Path, list[RowRun]] = defaultdict(list)
    for result in results:
        rows[result.row_dir].append(result)
    base = common_directory(list(rows))
    methods = []
    for directory, members in rows.items():
        has_default_layout = directory != members[0].run.files.path
        label = os.path.relpath(directory, base) if has_default_layout else members[0].summary["variant"]
        methods.append(ResultRow(label, members))
    return sorted(methods, key=lambda method: -fmean(method.accuracies("client_mean") or [-inf]))


def common_directory(row_dirs: Sequence[Path]) -> Path:
    """Return the directory that contains the directories of all rows."""
    return Path(os.path.commonpath([path.parent.absolute() for path in row_dirs]))


def results_table(methods: Sequence[ResultRow], console: Console) -> Table:
    """Return one row per method. The curve of accuracy is left out if it does not fit the terminal."""
    curves = [method.accuracy_curve() for method in methods]
    table = build_table(methods, console, [])
    width = min(MAX_CURVE_WIDTH, console.width - console.measure(table).maximum - 1)
    if width < MIN_CURVE_WIDTH or not any(len(curve) > 1 for curve in curves):
        return table
    symbols = BLOCK_SYMBOLS if has_unicode(console) else ASCII_SYMBOLS
    return build_table(methods, console, [sparkline(curve, width, symbols) if curve else "" for curve in curves])


def build_table(methods: Sequence[ResultRow], console: Console, curves: Sequence[str]) -> Table:
    """Return the table, with the curves as the last column if there are any."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold", vertical="bottom")
    plus_minus = plus_minus_sign(console) if any(len(method.seeds) > 1 for method in methods) else ""
    accuracy_heading = f"accuracy %\nmean {plus_minus} std" if plus_minus else "accuracy\n%"
    for heading in ("seeds", accuracy_heading, "weighted\n%", "worst\nclient %", "kB\nup", "kB\ndown"):
        table.add_column(heading, justify="right", no_wrap=True)
    if curves:
        table.add_column("by\nround", no_wrap=True)
    for number, method in enumerate(methods):
        cells = [accuracy_cell(method.accuracies("client_mean"), plus_minus)]
        cells += [accuracy_cell(method.accuracies(name)) for name in ("sample_weighted", "worst")]
        cells += [traffic_cell(method.kilobytes(direction)) for direction in ("up", "down")]
        label = method.label + REFERENCE_MARK * method.is_reference
        table.add_row(label, str(len(method.seeds)), *cells, *curves[number : number + 1])
    return table


def has_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def has_curve_column(table: Table) -> bool:
    return "round" in str(table.columns[-1].header)


def plus_minus_sign(console: Console) -> str:
    return "±" if has_unicode(console) else "+-"


def accuracy_cell(values: Sequence[float], plus_minus: str = "") -> str:
    """Return the mean in percent, and after the sign, if given, the standard deviation over seeds."""
    if not values:
        return "withheld"
    text = f"{100 * fmean(values):.2f}"
    if plus_minus:
        text += f" {plus_minus} {f'{100 * stdev(values):.2f}' if len(values) > 1 else MISSING_CELL.ljust(4)}"
    return text


def traffic_cell(kilobytes: float | None) -> str:
    if not kilobytes:
        return "raw data" if kilobytes is None else "0"
    return f"{kilobytes:.2f}" if kilobytes < 10 else f"{kilobytes:.1f}" if kilobytes < 1000 else f"{kilobytes:,.0f}"


def legend_lines(methods: Sequence[ResultRow], has_curves: bool) -> list[str]:
    """Return the explanations of the columns."""
    deviation = "; std: over seeds" if any(len(method.seeds) > 1 for method in methods) else ""
    curves = "; by round: accuracy, from its lowest to its highest value" if has_curves else ""
    lines = [
        "accuracy: mean over clients, each on its own test data, last round",
        f"weighted: mean over test examples{deviation}{curves}",
        "kB up, kB down: sent and received per client and round, 1 kB = 1000 bytes",
    ]
    if any(method.is_reference for method in methods):
        lines.append(f"{REFERENCE_MARK} reference: training without collaboration, or on the pooled data")
    return lines


def locations_line(methods: Sequence[ResultRow]) -> str:
    """Return where the runs are: one directory, or a pattern for several."""
    results = [result for method in methods for result in method.results]
    paths = [result.run.files.path for result in results]
    if len(paths) == 1:
        return f"written to {paths[0]}"
    base = common_directory([method.results[0].row_dir for method in methods])
    if not paths[0].is_absolute():
        base = Path(os.path.relpath(base))
    seeds = sorted({result.summary["seed"] for result in results})
    seed = f"seed-{seeds[0]}" if len(seeds) == 1 else "seed-<seed>"
    method_name = methods[0].label if len(methods) == 1 else "<method>"
    return f"written to {base / method_name / seed}"


def comparison_table(methods: Sequence[ResultRow]) -> Table | None:
    """Return the comparisons with Local, clients counted over all seeds; None if no method has one."""
    compared = [method for method in methods if method.comparisons]
    if not compared:
        return None
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("clients against Local", overflow="fold")
    for heading in ("better", "equal", "worse", "mean difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in compared:
        gains = [comparison.collaboration for comparison in method.comparisons]
        counts = [sum(getattr(gain, name) for gain in gains) for name in ("helped", "unharmed", "hurt")]
        mean = f"{100 * fmean(gain.mean_gain for gain in gains):+.2f} points"
        table.add_row(method.label + REFERENCE_MARK * method.is_reference, *map(str, counts), mean)
    return table
