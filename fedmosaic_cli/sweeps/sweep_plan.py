"""The runs of a study: directories, states, remaining jobs and their commands. Imports no torch."""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.config.automatic_names import hyperparameter_tag
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.datasets import find_dataset_source, locate_dataset
from fedmosaic_cli.errors import RequestError, unknown_name_error
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.prepare import is_run_complete, load_latest_run_config, run_directory
from fedmosaic_cli.runner.resume_checks import config_differences
from fedmosaic_cli.storage.files import sha256
from fedmosaic_cli.storage.lock import is_locked
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.sweeps.time_estimates import MeasuredRounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.sweeps.studies import Scale, Scenario, Study, StudyRow

TAGGED_SECTIONS = ("methods.", "privacy.")
"""Sections of values that are in the tag of a run, not in the name of its experiment."""


class SweepRunState(StrEnum):
    """State of a run on disk."""

    FINISHED = "done"
    STARTED = "begun"
    PENDING = "to do"
    LOCKED = "held by another process"


@dataclass(frozen=True)
class SweepOptions:
    """Options of all runs of a sweep. `overrides` are KEY=VALUE assignments for every scenario."""

    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    runs_dir: Path = Path("runs")
    extra_args: tuple[str, ...] = ()
    """Further options of every command, such as --data-dir and --device."""
    extended: bool = False
    """Whether methods that the paper does not compare are added."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a study. `tag` follows the method's name in its directory and names special hyper-parameters."""

    scenario: Scenario
    row: StudyRow
    config: RunConfig
    tag: str
    files: RunDirectory

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.row.title}, seed {self.config.seed}"

    def read_state(self) -> SweepRunState:
        """Read the current state from disk."""
        if is_run_complete(self.files, self.config):
            return SweepRunState.FINISHED
        if is_locked(self.files.path):
            return SweepRunState.LOCKED
        return SweepRunState.STARTED if self.files.has_content() else SweepRunState.PENDING


@dataclass(frozen=True)
class SweepJob:
    """Runs of one row and scenario that one command executes one after the other."""

    runs: tuple[SweepRun, ...]
    options: SweepOptions

    @property
    def title(self) -> str:
        return f"{self.runs[0].scenario.name}, {self.runs[0].row.title}"

    def cli_args(self) -> list[str]:
        """Return the arguments of `fedmosaic` that execute the job."""
        run = self.runs[0]
        scenario, row = run.scenario, run.row
        args = ["train"] if row.method == "fedmosaic" else ["baseline", row.method]
        args += ["--preset", scenario.preset]
        for assignment in (*scenario.overrides, *self.options.overrides, *row.overrides):
            args += ["--set", assignment]
        args += ["--name", scenario.name] if scenario.name != scenario.preset else []
        # With other hyper-parameters in all rows, the command would choose another tag.
        is_tag_given = run.tag or any(word.startswith(TAGGED_SECTIONS) for word in self.options.overrides)
        args += ["--tag", run.tag] if is_tag_given else []
        args += ["--seeds", ",".join(str(run.config.seed) for run in self.runs)]
        args += ["--runs-dir", str(self.options.runs_dir)] if self.options.runs_dir != default_runs_dir() else []
        return [*args, *self.options.extra_args]

    def shell_command(self, *extra_args: str) -> str:
        """Return the command as a line for a shell."""
        return shlex.join(["fedmosaic", *self.cli_args(), *extra_args])


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a study that are possible here, in order of execution, and the reasons why others are skipped."""

    runs: tuple[SweepRun, ...]
    options: SweepOptions
    skipped_reasons: tuple[str, ...] = ()

    def pending_jobs(self, states: dict[Path, SweepRunState], one_run_per_job: bool = False) -> list[SweepJob]:
        """Return the jobs of all unfinished runs: one per row and scenario, with locked runs in separate jobs."""
        groups: defaultdict[tuple[Scenario, StudyRow, bool | Path], list[SweepRun]] = defaultdict(list)
        for run in self.runs:
            state = states[run.files.path]
            if state is not SweepRunState.FINISHED:
                part = run.files.path if one_run_per_job else state is SweepRunState.LOCKED
                groups[run.scenario, run.row, part].append(run)
        return [SweepJob(tuple(runs), self.options) for runs in groups.values()]

    def read_states(self) -> dict[Path, SweepRunState]:
        """Read the current state of every run, by directory."""
        return {run.files.path: run.read_state() for run in self.runs}


def plan_sweep(study: Study, scale: Scale, options: SweepOptions, data_dirs: DataDirs) -> SweepPlan:
    """Plan the runs of a study.

    Scenarios without their data and methods that do not fit a scenario are skipped.

    Raises:
        RequestError: If a method is unknown, or a run directory holds a run with a different configuration.
    """
    methods_of_study = list(dict.fromkeys(row.method for row in study.select_rows((), options.extended)))
    for name in options.methods:
        if name not in METHODS:
            raise unknown_name_error("method", name, METHODS, "--methods", "'fedmosaic baseline --list' shows all")
        if name not in methods_of_study:
            raise RequestError(
                f"'{name}' is not a method of this study (--methods): choose from {', '.join(methods_of_study)}"
            )
    runs: dict[Path, SweepRun] = {}
    skipped: list[str] = []
    incompatible: defaultdict[str, list[str]] = defaultdict(list)
    for scenario in study.scenarios[scale]:
        if options.overrides:
            digest = sha256("\n".join(options.overrides).encode())[:6]
            scenario = replace(scenario, name=f"{scenario.name}-changed-{digest}")  # noqa: PLW2901
        scenario_runs = [
            plan_sweep_run(scenario, row, seed, options, data_dirs)
            for row in study.select_rows(options.methods, options.extended)
            for seed in options.seeds
        ]
        reason = missing_data_reason(scenario_runs[0].config, data_dirs)
        if reason:
            skipped.append(f"{scenario.name}, {reason}")
            continue
        for run in scenario_runs:
            conflict = run.config.incompatibility()
            if conflict is None:
                runs.setdefault(run.files.path, run)
            else:
                names = incompatible[f"{run.config.method.info.title} {conflict.requirement}, but {conflict.problem}"]
                names += [] if scenario.name in names else [scenario.name]
    skipped += [f"{reason} ({', '.join(names)})" for reason, names in incompatible.items()]
    require_matching_configs(runs.values(), data_dirs)
    return SweepPlan(tuple(runs.values()), options, tuple(skipped))


def plan_sweep_run(
    scenario: Scenario, row: StudyRow, seed: int, options: SweepOptions, data_dirs: DataDirs
) -> SweepRun:
    """Plan one run. Its directory depends on its hyper-parameters only, so studies share equal runs."""
    layers = ConfigLayers()
    layers.add_all(load_preset(scenario.preset).layers)
    for assignment in (*scenario.overrides, *options.overrides):
        layers.add_assignment(assignment)
    default = resolve_run_config(scenario.name, layers, row.method, seed, data_dirs).method
    for assignment in row.overrides:
        layers.add_assignment(assignment)
    config = resolve_run_config(scenario.name, layers, row.method, seed, data_dirs)
    tag = hyperparameter_tag(config.method, default)
    return SweepRun(scenario, row, config, tag, RunDirectory(run_directory(options.runs_dir, config, tag)))


def missing_data_reason(config: RunConfig, data_dirs: DataDirs) -> str:
    """Return why a scenario's data is missing and how to get it, or "" if it is present. Downloads nothing."""
    source = find_dataset_source(config.data.dataset)
    try:
        path = locate_dataset(config.data.dataset, data_dirs)
    except RequestError as error:
        return str(error)
    has_domain_folders = source.is_resizable and source.inspect is None
    missing = [name for name in config.data.domains if has_domain_folders and not (path / name).is_dir()]
    if missing:
        return f"domain '{missing[0]}' of data set '{config.data.dataset}' is missing ({path}): {source.setup_hint}"
    return ""


def require_matching_configs(runs: Iterable[SweepRun], data_dirs: DataDirs) -> None:
    """Refuse a sweep whose run directories hold runs with a different configuration."""
    conflicts = []
    for run in runs:
        if run.files.has_content() and not is_locked(run.files.path):
            run.files.check_file_types()
            differences = config_differences(load_latest_run_config(run.files, data_dirs), run.config)
            conflicts += [(run, difference.text) for difference in differences[:1]]
    if conflicts:
        run, text = conflicts[0]
        raise RequestError(
            f"{len(conflicts)} runs of this study exist with a different configuration, the first: {text} "
            f"({run.files.path}): move them, or choose another --runs-dir"
        )


def estimate_seconds(jobs: Sequence[SweepJob], runs: Iterable[SweepRun], max_parallel: int) -> float | None:
    """Estimate the duration of jobs from rounds that were measured in the same scenario; see `MeasuredRounds`.

    Returns:
        Seconds with `max_parallel` jobs at a time, or None if a scenario has no such round yet.
    """
    measured: defaultdict[str, MeasuredRounds] = defaultdict(MeasuredRounds)
    num_finished = {
        run.files.path: measured[run.scenario.name].add(run.row.method, run.files, run.config.train.rounds)
        for run in runs
    }
    durations = []
    for job in jobs:
        seconds = measured[job.runs[0].scenario.name].round_seconds(job.runs[0].row.method)
        if seconds is None:
            return None
        left = sum(max(1, run.config.train.rounds - num_finished.get(run.files.path, 0)) for run in job.runs)
        durations.append(left * seconds)
    return max([sum(durations) / max_parallel, *durations], default=0.0)
