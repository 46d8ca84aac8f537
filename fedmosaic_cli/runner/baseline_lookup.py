"""Find the Local run that a run is compared with, or the command that makes it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.rerun_args import cli_args_for, default_runs_dir
from fedmosaic_cli.config.run_config import load_run_config
from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.report.collaboration import comparison_caveats, gains_over_local, local_run_mismatch
from fedmosaic_cli.runner.prepare import require_finished_run
from fedmosaic_cli.storage.runs import SUMMARY_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.report.collaboration import GainsOverLocal


@dataclass(frozen=True)
class RecordedRun:
    """A finished run and its summary."""

    files: RunDirectory
    summary: dict[str, Any]

    def check_unchanged(self) -> None:
        """Raise RequestError if the run has changed since it was read."""
        if not self.files.is_finished() or self.files.read_summary() != self.summary:
            raise RequestError(
                f"the run changed during the evaluation ({self.files.path}): evaluate it when it is finished"
            )


@dataclass(frozen=True)
class LocalBaseline:
    """The Local run to compare with.

    Attributes:
        caveats: Why the comparison may be unfair.
        accuracies: Per client; None if the same command evaluates the Local run.
        is_user_given: Named with --compare-with, so that it must fit.
    """

    files: RunDirectory
    caveats: list[str]
    accuracies: list[float] | None = None
    is_user_given: bool = False


@dataclass(frozen=True)
class MissingLocalBaseline:
    """Why there is no Local run to compare with; `remedy` is empty if the run itself is Local."""

    reason: str
    path: Path | None = None
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.path}): {self.remedy}"


def load_recorded_run(path: Path) -> RecordedRun:
    """Read a finished run; raise RequestError if it is unfinished or its summary is damaged."""
    files = RunDirectory(path)
    require_finished_run(files)
    summary = files.read_summary()
    missing = [key for key in ("digest", "clients") if not summary["shards"].get(key)]
    if summary.get("unreported"):
        raise RequestError(
            f"the sites of {len(summary['unreported'])} clients do not report their accuracy ({files.path}): evaluate "
            "their models at the sites"
        )
    if missing or not summary["accuracy"].get("per_client"):
        key = f"shards.{missing[0]}" if missing else "accuracy.per_client"
        raise RequestError(f"the summary is damaged, no {key} ({files.path / SUMMARY_FILE}): run it again")
    return RecordedRun(files, summary)


def find_local_baseline(
    run: RecordedRun, others: Sequence[RecordedRun], user_given: RecordedRun | None, split: str, data_dirs: DataDirs
) -> LocalBaseline | MissingLocalBaseline:
    """Find the Local run for a run: among `others`, else the one the user named, else in the default directory.

    Raises:
        RequestError: The run that the user named does not fit.
    """
    if run.summary["method"] == "local":
        return MissingLocalBaseline("this is Local itself")
    for other in others:
        if local_run_mismatch(run.summary, other.summary) is None:
            return LocalBaseline(other.files, comparison_caveats(run.summary, other.summary))
    if user_given is not None:
        match = match_local_run(run, user_given, split, data_dirs)
        if isinstance(match, MissingLocalBaseline):
            raise RequestError(str(match))
        return replace(match, is_user_given=True)
    path = expected_local_path(run)
    if not RunDirectory(path).has_content():
        command = shlex.join(local_run_command(run, data_dirs, path))
        return MissingLocalBaseline("there is no Local run to compare with", path, f"make it: {command}")
    try:
        return match_local_run(run, load_recorded_run(path), split, data_dirs)
    except RunStateError:
        reason, remedy = "another process is making the Local run", "evaluate this run when it is finished"
    except RequestError:
        command = shlex.join(local_run_command(run, data_dirs, path))
        reason, remedy = "the Local run is not finished, or damaged", f"continue it: {command}"
    return MissingLocalBaseline(reason, path, remedy)


def expected_local_path(run: RecordedRun) -> Path:
    """Return the directory where the Local run with the same experiment name and seed is expected."""
    seed = f"seed-{run.summary['seed']}"
    if run.files.path.absolute().name == seed:
        return Path(os.path.normpath(run.files.path / ".." / ".." / "local" / seed))
    return default_local_path(run.summary["preset"], run.summary["seed"])


def default_local_path(experiment_name: str, seed: int) -> Path:
    """Return the default directory of a Local run."""
    return default_runs_dir() / experiment_name / "local" / f"seed-{seed}"


def match_local_run(
    run: RecordedRun, local: RecordedRun, split: str, data_dirs: DataDirs
) -> LocalBaseline | MissingLocalBaseline:
    """Return `local` with its accuracies if it fits the run and has been evaluated on `split`."""
    path = local.files.path
    reason = local_run_mismatch(run.summary, local.summary)
    if reason is not None:
        command = shlex.join([*local_run_command(run, data_dirs, None), "--run-dir", "DIR"])
        remedy = f"use --compare-with DIR with the right one, made by: {command}"
        return MissingLocalBaseline(f"this is not the Local run to compare with, {reason}", path, remedy)
    accuracies = recorded_accuracies(local, split)
    if accuracies is None:
        command = shlex.join(["fedmosaic", "evaluate", str(path), "--split", split])
        problem = f"the Local run was not evaluated on its {split} data, or the file is damaged"
        return MissingLocalBaseline(problem, path, f"name both runs in one command, or first: {command}")
    return LocalBaseline(local.files, comparison_caveats(run.summary, local.summary), accuracies)


def compare_accuracies(
    local: LocalBaseline, accuracies: Sequence[float], local_accuracies: Sequence[float], sizes: Sequence[int]
) -> GainsOverLocal | MissingLocalBaseline:
    """Compare accuracies per client with those of the Local run, unless these are damaged."""
    try:
        return gains_over_local(accuracies, local_accuracies, sizes)
    except ValueError as error:
        return MissingLocalBaseline(
            f"the Local run's accuracies are damaged, {error}", local.files.path, "repeat that run"
        )


def comparison_to_dict(run: RunDirectory, local: LocalBaseline, comparison: GainsOverLocal) -> dict[str, Any]:
    """Return the comparison as it is stored in evaluation.json and printed as JSON."""
    path = os.path.relpath(local.files.path, run.path)
    return {"local": path, **comparison.to_dict(), "caveats": local.caveats}


def recorded_accuracies(local: RecordedRun, split: str) -> list[float] | None:
    """Return the recorded accuracies of a Local run per client, or None."""
    if split == "test":
        accuracies = local.summary["accuracy"].get("per_client")
    else:
        try:
            content = local.files.read_evaluation(split)
            accuracies = [entry["accuracy"] for entry in content["per_client"]]
        except (RequestError, KeyError, TypeError):
            return None
    is_valid = isinstance(accuracies, list) and all(isinstance(value, int | float) for value in accuracies)
    return accuracies if is_valid else None


def local_run_command(run: RecordedRun, data_dirs: DataDirs, path: Path | None) -> list[str]:
    """Return the command that makes the Local run of a run, at `path` if given."""
    config = load_run_config(run.files.config_path, data_dirs)
    conditions = cli_args_for(config, run.files.read_environment(), data_dirs)
    words = ["fedmosaic", "baseline", "local", *conditions, "--seed", str(config.seed)]
    elsewhere = (
        path is not None and path.absolute() != default_local_path(config.experiment_name, config.seed).absolute()
    )
    return [*words, "--run-dir", str(path)] if elsewhere else words
