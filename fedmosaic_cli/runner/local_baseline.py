"""Which Local run a run is compared with, and how to come by it where there is none."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.rerun_args import conditions_of, default_runs_dir
from fedmosaic_cli.config.run_config import stored_run
from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.report.collaboration import caveats, compare, misfit
from fedmosaic_cli.runner.prepare import check_finished
from fedmosaic_cli.storage.runs import SUMMARY, RunFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.report.collaboration import Collaboration


@dataclass(frozen=True)
class Recorded:
    """A finished run and its summary."""

    files: RunFiles
    summary: dict[str, Any]

    def check_unchanged(self) -> None:
        """Refuse to write beside a run what was true of it a moment ago."""
        if not self.files.finished() or self.files.summary() != self.summary:
            raise RequestError(f"the run went on in the meantime ({self.files.path}): evaluate it when it is finished")


@dataclass(frozen=True)
class LocalRun:
    """The Local run of a run. `accuracies` are its clients'; None where this command examines it, too.

    One that was `named` has to be of use. `caveats` tell what is odd about either run.
    """

    files: RunFiles
    caveats: list[str]
    accuracies: list[float] | None = None
    named: bool = False


@dataclass(frozen=True)
class NoLocalRun:
    """Why there is none to compare with. `way_out` is empty where nothing is amiss: Local itself needs none."""

    reason: str
    path: Path | None = None
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.path}): {self.way_out}"


def recorded(path: Path) -> Recorded:
    """A run directory as it is found; refused where it is none, not finished, or does not tell of its clients."""
    files = RunFiles(path)
    check_finished(files)
    summary = files.summary()
    untold = [key for key in ("digest", "clients") if not summary["shards"].get(key)]
    if untold or not summary["accuracy"].get("per_client"):
        what = f"shards.{untold[0]}" if untold else "accuracy.per_client"
        raise RequestError(f"the summary is damaged, no {what} ({files.path / SUMMARY}): run it again")
    return Recorded(files, summary)


def find_local(
    run: Recorded, others: Sequence[Recorded], named: Recorded | None, split: str, place: Place
) -> LocalRun | NoLocalRun:
    """The Local run among `others`, else the one that was named, else the one in its usual place beside the run.

    One that was named has to fit.
    """
    if run.summary["method"] == "local":
        return NoLocalRun("this is Local itself")
    for other in others:
        if misfit(run.summary, other.summary) is None:
            return LocalRun(other.files, caveats(run.summary, other.summary))
    if named is not None:
        found = judged(run, named, split, place)
        if isinstance(found, NoLocalRun):
            raise RequestError(str(found))
        return replace(found, named=True)
    path = usual_place(run)
    if not RunFiles(path).exists():
        making = shlex.join(making_of(run, place, path))
        return NoLocalRun("there is no Local run to compare with", path, f"make it: {making}")
    try:
        return judged(run, recorded(path), split, place)
    except RunStateError:
        reason, way_out = "another process is making the Local run", "examine this run when it is finished"
    except RequestError:
        making = shlex.join([*making_of(run, place, path), "--resume"])
        reason, way_out = "the Local run is not finished, or damaged", f"mend it: {making}"
    return NoLocalRun(reason, path, way_out)


def usual_place(run: Recorded) -> Path:
    """Where a Local run of the same setting and seed lies, if nobody put it elsewhere."""
    seed = f"seed-{run.summary['seed']}"
    if run.files.path.absolute().name == seed:
        return Path(os.path.normpath(run.files.path / ".." / ".." / "local" / seed))
    return default_place(run.summary["preset"], run.summary["seed"])


def default_place(setting: str, seed: int) -> Path:
    """Where a Local run is written, if nobody says otherwise."""
    return default_runs_dir() / setting / "local" / f"seed-{seed}"


def judged(run: Recorded, local: Recorded, split: str, place: Place) -> LocalRun | NoLocalRun:
    """The run `local` with its accuracies, if it is the run's Local run and they are known."""
    path = local.files.path
    reason = misfit(run.summary, local.summary)
    if reason is not None:
        making = shlex.join([*making_of(run, place, None), "--run-dir", "DIR"])
        way_out = f"use --local DIR with the right one, made by: {making}"
        return NoLocalRun(f"this is not the Local run to compare with, {reason}", path, way_out)
    accuracies = accuracies_of(local, split)
    if accuracies is None:
        examining = shlex.join(["fedmosaic", "evaluate", str(path), "--split", split])
        what = f"the Local run was not examined on its {split} part, or the file is damaged"
        return NoLocalRun(what, path, f"name both runs in one command, or first: {examining}")
    return LocalRun(local.files, caveats(run.summary, local.summary), accuracies)


def compared(
    local: LocalRun, accuracies: Sequence[float], alone: Sequence[float], sizes: Sequence[int]
) -> Collaboration | NoLocalRun:
    """The accuracies of a run's clients beside those of its Local run, if these could be any."""
    try:
        return compare(accuracies, alone, sizes)
    except ValueError as error:
        return NoLocalRun(f"the Local run's accuracies are damaged, {error}", local.files.path, "make that run anew")


def told(run: RunFiles, local: LocalRun, found: Collaboration) -> dict[str, Any]:
    """The comparison with a Local run, as documents have it."""
    where = os.path.relpath(local.files.path, run.path)
    return {"local": where, **found.to_dict(), "caveats": local.caveats}


def accuracies_of(local: Recorded, split: str) -> list[float] | None:
    """The accuracies that a Local run has on record for a part, one a client; None where it has none."""
    if split == "test":
        found = local.summary["accuracy"].get("per_client")
    else:
        try:
            content = local.files.load_evaluation(split)
            found = [mark["accuracy"] for mark in content["per_client"]]
        except (RequestError, KeyError, TypeError):
            return None
    fine = isinstance(found, list) and all(isinstance(value, int | float) for value in found)
    return found if fine else None


def making_of(run: Recorded, place: Place, path: Path | None) -> list[str]:
    """The command that makes the Local run of a run, at `path` if one is given."""
    config = stored_run(run.files.config, place)
    conditions = conditions_of(config, run.files.environment(), place)
    words = ["fedmosaic", "baseline", "local", *conditions, "--seed", str(config.seed)]
    elsewhere = path is not None and path.absolute() != default_place(config.setting, config.seed).absolute()
    return [*words, "--run-dir", str(path)] if elsewhere else words
