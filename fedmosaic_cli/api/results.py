"""Finished runs as DataFrames."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.api.api_errors import warn
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import SkippedRun, find_run_directories
from fedmosaic_cli.runner.prepare import require_finished_run
from fedmosaic_cli.storage.runs import ROUNDS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd

RUN_KEYS = ("preset", "method", "variant", "seed")
"""Keys of the summary that identify a run in a DataFrame."""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        path: The directory of the run.
        summary: The content of summary.json.

    Example:
        >>> result = fedmosaic.Experiment("quickstart").run()
        >>> result.accuracy
        >>> result.clients[["client", "accuracy"]]
    """

    path: Path
    summary: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """The mean accuracy over clients after the last round, as a fraction."""
        return float(self.summary["accuracy"]["client_mean"])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round and client, with the columns of rounds.jsonl and preset, method, variant and seed."""
        import pandas as pd

        return pd.DataFrame(self.log_rows())

    @property
    def clients(self) -> pd.DataFrame:
        """The rows of the last round: one per client."""
        return last_rounds([self])

    def log_rows(self) -> list[dict[str, Any]]:
        """Return the rows of rounds.jsonl, each with preset, method, variant and seed."""
        files = RunDirectory(self.path)
        files.verify_files(ROUNDS_FILE)
        return [{**self.identity, **row} for row in files.read_rounds()]

    @property
    def identity(self) -> dict[str, Any]:
        """Preset, method, variant and seed."""
        return {key: self.summary[key] for key in RUN_KEYS}

    def __repr__(self) -> str:
        return (
            f"Result({self.summary['preset']}, {self.summary['variant']}, seed {self.summary['seed']}: "
            f"accuracy {100 * self.accuracy:.2f} % after {self.summary['rounds']} rounds, {self.path})"
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{table_html(self.clients)}"


@dataclass(frozen=True, eq=False)
class Runs:
    """Several finished runs. `len` and iteration give the `Result` of each run.

    Attributes:
        results: The finished runs, sorted by path.
        skipped: Runs that are not finished or damaged, with the reason.

    Example:
        >>> runs = fedmosaic.load("runs")
        >>> runs.summary.groupby("method").accuracy.mean()
    """

    results: tuple[Result, ...]
    skipped: tuple[SkippedRun, ...] = ()

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per run: its identity, its conditions, accuracies as fractions, bits per direction and its path."""
        import pandas as pd

        return pd.DataFrame([run_row(result) for result in self.results])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per run, round and client, with the columns of rounds.jsonl and preset, method, variant and seed."""
        import pandas as pd

        return pd.DataFrame([row for result in self.results for row in result.log_rows()])

    @property
    def clients(self) -> pd.DataFrame:
        """The rows of the last round of each run: one per run and client."""
        return last_rounds(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __getitem__(self, number: int) -> Result:
        return self.results[number]

    def __repr__(self) -> str:
        return f"Runs({len(self)} finished, {len(self.skipped)} skipped)"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{table_html(self.summary)}"


def load(path: str | Path) -> Runs:
    """Read the finished runs below a directory. Runs that are not finished cause a `FedMosaicWarning`.

    Args:
        path: The directory of a run, or a directory that contains runs.

    Returns:
        The runs.

    Raises:
        FedMosaicError: There is no finished run.

    Example:
        >>> runs = fedmosaic.load("runs")
        >>> runs.clients.groupby(["variant", "client"]).accuracy.mean()
    """
    directories, skipped = find_run_directories(existing_directory(path))
    results: list[Result] = []
    for directory in directories:
        try:
            results.append(read_result(directory))
        except (RequestError, OSError) as error:
            skipped.append(SkippedRun(directory, str(error)))
    if not results:
        reason = f"; {skipped[0].path}: {skipped[0].reason}" if skipped else ""
        raise RequestError(f"no finished runs ({path}): make one with fedmosaic.Experiment(...).run(){reason}")
    warn(f"skipped {run.path}: {run.reason}" for run in skipped)
    return Runs(tuple(results), tuple(skipped))


def read_result(path: Path) -> Result:
    """Read a finished run."""
    files = RunDirectory(path)
    require_finished_run(files)
    return Result(path, files.read_summary())


def existing_directory(path: str | Path) -> Path:
    """Return the path; raise RequestError if it is not a directory."""
    directory = Path(path)
    if not directory.is_dir():
        problem = "not a directory" if directory.exists() else "no such directory"
        raise RequestError(f"{problem} ({path}): make runs with fedmosaic.Experiment(...).run()")
    return directory


def run_row(result: Result) -> dict[str, Any]:
    """Return the row of a run in `Runs.summary`."""
    summary = result.summary
    accuracy, bits = summary["accuracy"], summary.get("bits", {})
    averages = {f"accuracy_{key}": value for key, value in accuracy.items() if key not in ("client_mean", "per_client")}
    return {
        **result.identity,
        **{key: summary[key] for key in ("dataset", "scheme", "rounds")},
        "clients": summary["shards"]["clients"],
        "accuracy": accuracy["client_mean"],
        **averages,
        **{f"bits_{direction}": bits.get(direction) for direction in ("up", "down")},
        "hyperparameters": summary["hyperparameters"],
        "path": str(result.path),
    }


def last_rounds(results: Iterable[Result]) -> pd.DataFrame:
    """Return the rows of the last round of each run."""
    import pandas as pd

    rows = [row for result in results for row in result.log_rows() if row["round"] == result.summary["rounds"]]
    return pd.DataFrame(rows)


def table_html(frame: pd.DataFrame) -> str:
    """Return a DataFrame as a notebook shows it."""
    return str(frame._repr_html_())  # type: ignore[operator]
