"""Compare methods with a baseline, over seeds and over clients."""

from __future__ import annotations

from math import nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.api.api_errors import warn
from fedmosaic_cli.api.results import Result, Runs, existing_directory
from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import collect_run_directories, find_run_directories
from fedmosaic_cli.report.comparison import comparison_groups, method_title
from fedmosaic_cli.report.statistics import SIGNIFICANCE_LEVEL, client_gains, outcome_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

RunSource = Result | Runs | str | Path
OUTCOMES = ("helped", "unchanged", "hurt")
"""The columns that count clients, in the order of `outcome_counts`."""


def compare(*runs: RunSource, baseline: str = "local") -> pd.DataFrame:
    """Compare methods with a baseline on the same shards and seeds.

    Args:
        *runs: Results, runs that `load` returned, or directories of runs. By default FEDMOSAIC_RUNS or `runs`.
        baseline: Name of the method to compare with, or its text in the column `method`.

    Returns:
        One row per setting and method. `accuracy` is the mean over `seeds` seeds, as a fraction. `difference_points`
        is the mean difference to the baseline over common seeds in percentage points; `ci_low_points` and
        `ci_high_points` are the limits of its 95 % t interval, NaN with one common seed. `helped`, `unchanged` and
        `hurt` count the clients of all seeds whose model is better than, as good as or worse than that of the
        baseline. All of them are missing in a setting without runs of the baseline.

    Raises:
        FedMosaicError: There are no finished runs, or no runs of the baseline.

    Example:
        >>> fedmosaic.compare("runs", baseline="local")
    """
    import pandas as pd

    groups = comparison_groups(collect_sources(*runs or (default_runs_dir(),)))
    rows = [row for group in groups for row in compare_group(group, baseline)]
    if all(row["difference_points"] is None for row in rows):
        methods = sorted({key[0] for group in groups for key in group.runs_by_method})
        raise RequestError(f"no runs of '{baseline}' (baseline): make them, or use one of {', '.join(methods)}")
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(OUTCOMES, "Int64") | {"difference_points": "float64"})


def collect_sources(*sources: RunSource) -> pd.DataFrame:
    """Return one row per finished run; warn about runs that are skipped. See `report.collect.collect_runs`."""
    directories: dict[Path, Path] = {}
    for source in sources:
        for path in source_directories(source):
            directories.setdefault(path.resolve(), path)
    frame, skipped = collect_run_directories(list(directories.values()))
    if frame.empty:
        reason = f"; {skipped[0].path}: {skipped[0].reason}" if skipped else ""
        where = ", ".join(str(source) for source in sources)
        raise RequestError(f"no finished runs ({where}): make one with fedmosaic.Experiment(...).run(){reason}")
    warn(f"skipped {run.path}: {run.reason}" for run in skipped)
    return frame


def source_directories(source: RunSource) -> list[Path]:
    """Return the run directories of a result, of loaded runs, or below a directory."""
    if isinstance(source, Result):
        return [source.path]
    if isinstance(source, Runs):
        return [result.path for result in source]
    return find_run_directories(existing_directory(source))[0]


def compare_group(group: ComparisonGroup, baseline: str) -> list[dict[str, Any]]:
    """Return the rows of a setting."""
    baseline_runs = find_baseline(group, baseline)
    rows = []
    for key, runs in group.runs_by_method.items():
        row = {
            "setting": group.label,
            "method": method_title(key),
            "seeds": len(runs),
            "accuracy": float(runs.accuracy.mean()),
            "difference_points": None,
            "ci_low_points": nan,
            "ci_high_points": nan,
            **dict.fromkeys(OUTCOMES),
        }
        if baseline_runs is not None:
            differences = points_by_seed(runs, baseline_runs)
            if differences:
                row["difference_points"] = fmean(differences)
                row["ci_low_points"], row["ci_high_points"] = mean_interval(differences)
                counts = outcome_counts(list(client_gains(runs, baseline_runs).values()))
                row |= zip(OUTCOMES, counts.values(), strict=True)
        rows.append(row)
    return rows


def find_baseline(group: ComparisonGroup, baseline: str) -> pd.DataFrame | None:
    """Return the runs of the baseline in a setting, or None.

    Raises:
        RequestError: The setting contains several variants of the method.
    """
    by_title: dict[str, MethodKey] = {method_title(key): key for key in group.runs_by_method}
    titles = [title for title, key in by_title.items() if baseline in (title, key[0])]
    if baseline in titles:
        titles = [baseline]
    if len(titles) > 1:
        raise RequestError(f"several variants of '{baseline}' (baseline): use one of {', '.join(map(repr, titles))}")
    return group.runs_by_method[by_title[titles[0]]] if titles else None


def points_by_seed(runs: pd.DataFrame, baseline_runs: pd.DataFrame) -> list[float]:
    """Return the differences in accuracy on common seeds, in percentage points."""
    reference = dict(zip(baseline_runs.seed, baseline_runs.accuracy, strict=True))
    pairs = zip(runs.seed, runs.accuracy, strict=True)
    return [100 * float(accuracy - reference[seed]) for seed, accuracy in pairs if seed in reference]


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of the 95 % t interval of a mean; NaN for one value."""
    from scipy.stats import t

    if len(values) < 2:
        return nan, nan
    half = float(t.ppf(1 - SIGNIFICANCE_LEVEL / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
