"""Which Local run a run is compared with, and how to come by it where there is none."""

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
        """Refuse to write beside a run what was true of it a moment ago."""
        if not self.files.is_finished() or self.files.read_summary() != self.summary:
            raise RequestError(f"the run went on in the meantime ({self.files.path}): evaluate it when it is finished")


@dataclass(frozen=True)
class LocalBaseline:
    """The Local run of a run. `accuracies` are its clients'; None where this command examines it, too.

    One that was `named` has to be of use. `caveats` tell what is odd about either run.
    """

    files: RunDirectory
    caveats: list[str]
    accuracies: list[float] | None = None
    is_user_given: bool = False


@dataclass(frozen=True)
class MissingLocalBaseline:
    """Why there is none to compare with. `way_out` is empty where nothing is amiss: Local itself needs none."""

    reason: str
    path: Path | None = None
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.path}): {self.remedy}"


def load_recorded_run(path: Path) -> RecordedRun:
    """A run directory as it is found; refused where it is none, not finished, or does not tell of its clients."""
    files = RunDirectory(path)
    require_finished_run(files)
    summary = files.read_summary()
    untold = [key for key in ("digest", "clients") if not summary["shards"].get(key)]
    if untold or not summary["accuracy"].get("per_client"):
        what = f"shards.{untold[0]}" if untold else "accuracy.per_client"
        raise RequestError(f"the summary is damaged, no {what} ({files.path / SUMMARY_FILE}): run it again")
    return RecordedRun(files, summary)


def find_local_baseline(
    run: RecordedRun, others: Sequence[RecordedRun], user_given: RecordedRun | None, split: str, data_dirs: DataDirs
) -> LocalBaseline | MissingLocalBaseline:
    """The Local run among `others`, else the one that was named, else the one in its usual place beside the run.

    One that was named has to fit.
    """
    if run.summary["method"] == "local":
        return MissingLocalBaseline("this is Local itself")
    for other in others:
        if local_run_mismatch(run.summary, other.summary) is None:
            return LocalBaseline(other.files, comparison_caveats(run.summary, other.summary))
    if user_given is not None:
        found = match_local_run(run, user_given, split, data_dirs)
        if isinstance(found, MissingLocalBaseline):
            raise RequestError(str(found))
        return replace(found, is_user_given=True)
    path = expected_local_path(run)
    if not RunDirectory(path).has_content():
        making = shlex.join(local_run_command(run, data_dirs, path))
        return MissingLocalBaseline("there is no Local run to compare with", path, f"make it: {making}")
    try:
        return match_local_run(run, load_recorded_run(path), split, data_dirs)
    except RunStateError:
        reason, way_out = "another process is making the Local run", "examine this run when it is finished"
    except RequestError:
        making = shlex.join([*local_run_command(run, data_dirs, path), "--resume"])
        reason, way_out = "the Local run is not finished, or damaged", f"mend it: {making}"
    return MissingLocalBaseline(reason, path, way_out)


def expected_local_path(run: RecordedRun) -> Path:
    """Where a Local run of the same setting and seed lies, if nobody put it elsewhere."""
    seed = f"seed-{run.summary['seed']}"
    if run.files.path.absolute().name == seed:
        return Path(os.path.normpath(run.files.path / ".." / ".." / "local" / seed))
    return default_local_path(run.summary["preset"], run.summary["seed"])


def default_local_path(experiment_name: str, seed: int) -> Path:
    """Where a Local run is written, if nobody says otherwise."""
    return default_runs_dir() / experiment_name / "local" / f"seed-{seed}"


def match_local_run(
    run: RecordedRun, local: RecordedRun, split: str, data_dirs: DataDirs
) -> LocalBaseline | MissingLocalBaseline:
    """The run `local` with its accuracies, if it is the run's Local run and they are known."""
    path = local.files.path
    reason = local_run_mismatch(run.summary, local.summary)
    if reason is not None:
        making = shlex.join([*local_run_command(run, data_dirs, None), "--run-dir", "DIR"])
        way_out = f"use --compare-with DIR with the right one, made by: {making}"
        return MissingLocalBaseline(f"this is not the Local run to compare with, {reason}", path, way_out)
    accuracies = recorded_accuracies(local, split)
    if accuracies is None:
        examining = shlex.join(["fedmosaic", "evaluate", str(path), "--split", split])
        what = f"the Local run was not examined on its {split} part, or the file is damaged"
        return MissingLocalBaseline(what, path, f"name both runs in one command, or first: {examining}")
    return LocalBaseline(local.files, comparison_caveats(run.summary, local.summary), accuracies)


def compare_accuracies(
    local: LocalBaseline, accuracies: Sequence[float], local_accuracies: Sequence[float], sizes: Sequence[int]
) -> GainsOverLocal | MissingLocalBaseline:
    """The accuracies of a run's clients beside those of its Local run, if these could be any."""
    try:
        return gains_over_local(accuracies, local_accuracies, sizes)
    except ValueError as error:
        return MissingLocalBaseline(
            f"the Local run's accuracies are damaged, {error}", local.files.path, "make that run anew"
        )


def comparison_to_dict(run: RunDirectory, local: LocalBaseline, comparison: GainsOverLocal) -> dict[str, Any]:
    """The comparison with a Local run, as documents have it."""
    where = os.path.relpath(local.files.path, run.path)
    return {"local": where, **comparison.to_dict(), "caveats": local.caveats}


def recorded_accuracies(local: RecordedRun, split: str) -> list[float] | None:
    """The accuracies that a Local run has on record for a part, one a client; None where it has none."""
    if split == "test":
        found = local.summary["accuracy"].get("per_client")
    else:
        try:
            content = local.files.read_evaluation(split)
            found = [mark["accuracy"] for mark in content["per_client"]]
        except (RequestError, KeyError, TypeError):
            return None
    fine = isinstance(found, list) and all(isinstance(value, int | float) for value in found)
    return found if fine else None


def local_run_command(run: RecordedRun, data_dirs: DataDirs, path: Path | None) -> list[str]:
    """The command that makes the Local run of a run, at `path` if one is given."""
    config = load_run_config(run.files.config_path, data_dirs)
    conditions = cli_args_for(config, run.files.read_environment(), data_dirs)
    words = ["fedmosaic", "baseline", "local", *conditions, "--seed", str(config.seed)]
    elsewhere = (
        path is not None and path.absolute() != default_local_path(config.experiment_name, config.seed).absolute()
    )
    return [*words, "--run-dir", str(path)] if elsewhere else words
