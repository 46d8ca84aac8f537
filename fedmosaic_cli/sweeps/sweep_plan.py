"""From a study to its runs: where each belongs, what is there, the commands that make the rest. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.config.resume_changes import config_differences
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.datasets import find_dataset_source, locate_dataset
from fedmosaic_cli.errors import RequestError, unknown_name_error
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.prepare import is_run_complete, load_latest_run_config, run_directory
from fedmosaic_cli.storage.files import sha256
from fedmosaic_cli.storage.lock import is_locked
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.sweeps.studies import Scale, Scenario, Study, StudyRow


class SweepRunState(StrEnum):
    """How far a run is."""

    FINISHED = "done"
    STARTED = "begun"
    PENDING = "to do"
    LOCKED = "held by another process"


@dataclass(frozen=True)
class SweepOptions:
    """What holds for all runs of a request. `changes` are assignments that are laid over every setting."""

    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    runs_dir: Path = Path("runs")
    extra_args: tuple[str, ...] = ()
    """Options that every command gets: where data lies, what computes."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a study. `label` stands behind the method's name in its directory, where nothing else tells."""

    scenario: Scenario
    row: StudyRow
    config: RunConfig
    tag: str
    files: RunDirectory

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.row.title}, seed {self.config.seed}"

    def read_state(self) -> SweepRunState:
        """How far it is now."""
        if is_run_complete(self.files, self.config):
            return SweepRunState.FINISHED
        if is_locked(self.files.path):
            return SweepRunState.LOCKED
        return SweepRunState.STARTED if self.files.has_content() else SweepRunState.PENDING


@dataclass(frozen=True)
class SweepJob:
    """Cells of one row of one setting, which one command makes one after the other."""

    runs: tuple[SweepRun, ...]
    options: SweepOptions

    @property
    def title(self) -> str:
        return f"{self.runs[0].scenario.name}, {self.runs[0].row.title}"

    def cli_args(self) -> list[str]:
        """The command, as one would type it behind `fedmosaic`."""
        cell = self.runs[0]
        scenario, row = cell.scenario, cell.row
        words = ["train"] if row.method == "fedmosaic" else ["baseline", row.method]
        words += ["--preset", scenario.preset]
        for assignment in (*scenario.overrides, *self.options.overrides, *row.overrides):
            words += ["--set", assignment]
        words += ["--name", scenario.name] if scenario.name != scenario.preset else []
        words += ["--tag", cell.tag] if cell.tag else []
        words += ["--seeds", ",".join(str(each.config.seed) for each in self.runs)]
        elsewhere = self.options.runs_dir != default_runs_dir()
        return [*words, *(["--runs-dir", str(self.options.runs_dir)] if elsewhere else []), *self.options.extra_args]


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a study that can be made here, in the order in which they are, and why others cannot."""

    runs: tuple[SweepRun, ...]
    options: SweepOptions
    skipped_reasons: tuple[str, ...] = field(default=())

    def pending_jobs(self, states: dict[Path, SweepRunState], one_run_per_job: bool = False) -> list[SweepJob]:
        """What remains, setting by setting, a job a row; runs that somebody else is making are jobs of their own.

        With `apart` every run is: there are many places for them.
        """
        rows: dict[tuple[Scenario, StudyRow, SweepRunState | Path], list[SweepRun]] = {}
        for cell in self.runs:
            state = states[cell.files.path]
            if state is not SweepRunState.FINISHED:
                held = SweepRunState.LOCKED if state is SweepRunState.LOCKED else SweepRunState.PENDING
                rows.setdefault((cell.scenario, cell.row, cell.files.path if one_run_per_job else held), []).append(
                    cell
                )
        return [SweepJob(tuple(cells), self.options) for cells in rows.values()]

    def read_states(self) -> dict[Path, SweepRunState]:
        """How far every run is now, by its directory."""
        return {cell.files.path: cell.read_state() for cell in self.runs}


def plan_sweep(study: Study, scale: Scale, options: SweepOptions, data_dirs: DataDirs) -> SweepPlan:
    """The runs of a study. Settings whose data is not here, and methods that cannot be played there, are left out."""
    require_study_methods(study, options.methods)
    cells: dict[Path, SweepRun] = {}
    left_out: list[str] = []
    misfits: dict[str, list[str]] = {}
    for plain in study.scenarios[scale]:
        scenario = scenario_with_overrides(plain, options.overrides)
        made = [
            plan_sweep_run(scenario, row, seed, options, data_dirs)
            for row in study.select_rows(options.methods)
            for seed in options.seeds
        ]
        absent = missing_data_reason(made[0].config, data_dirs)
        if absent:
            left_out.append(f"{scenario.name}, {absent}")
            continue
        for cell in made:
            why = cell.config.incompatibility()
            if why is None:
                cells.setdefault(cell.files.path, cell)
            else:
                names = misfits.setdefault(f"{cell.config.method.title} {why.requirement}, but {why.problem}", [])
                names += [] if scenario.name in names else [scenario.name]
    left_out += [f"{reason} ({', '.join(names)})" for reason, names in misfits.items()]
    program = SweepPlan(tuple(cells.values()), options, tuple(left_out))
    require_matching_configs(program, data_dirs)
    return program


def require_study_methods(study: Study, methods: Sequence[str]) -> None:
    """Refuse methods that are none, or have no row here."""
    rows = list(dict.fromkeys(row.method for row in study.rows))
    for name in methods:
        if name not in METHODS:
            raise unknown_name_error("method", name, METHODS, "--methods", "'fedmosaic baseline --list' shows all")
        if name not in rows:
            raise RequestError(f"'{name}' has no row in this study (--methods): there is {', '.join(rows)}")


def scenario_with_overrides(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    """The setting under a name of its own, if anything is other than the study has it."""
    if not overrides:
        return scenario
    return replace(scenario, name=f"{scenario.name}-changed-{sha256(chr(10).join(overrides).encode())[:6]}")


def plan_sweep_run(
    scenario: Scenario, row: StudyRow, seed: int, options: SweepOptions, data_dirs: DataDirs
) -> SweepRun:
    """One run. Its hyper-parameters decide where it lies, so that studies which share it find it there."""
    layers = ConfigLayers()
    layers.add_all(load_preset(scenario.preset).layers)
    for assignment in (*scenario.overrides, *options.overrides):
        layers.add_assignment(assignment)
    usual = resolve_run_config(scenario.name, layers, row.method, seed, data_dirs).method
    for assignment in row.overrides:
        layers.add_assignment(assignment)
    config = resolve_run_config(scenario.name, layers, row.method, seed, data_dirs)
    label = hyperparameter_tag(config.method, usual)
    return SweepRun(scenario, row, config, label, RunDirectory(run_directory(options.runs_dir, config, label)))


def hyperparameter_tag(method: Method, default: Method) -> str:
    """What tells a method from the usual one beside its variant, "" if nothing does."""
    mine, theirs = method_hyperparameters(method), method_hyperparameters(default)
    other = [name for name in mine if mine[name] != theirs[name]]
    silent = [name for name in other if replace(method, **{name: theirs[name]}).variant == method.variant]  # type: ignore[type-var]
    return "-".join(f"{name.replace('_', '-')}-{format_hyperparameter(mine[name])}" for name in silent)


def format_hyperparameter(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def method_hyperparameters(method: Method) -> dict[str, Any]:
    return asdict(method)  # type: ignore[call-overload, no-any-return]


def missing_data_reason(config: RunConfig, data_dirs: DataDirs) -> str:
    """Why a setting's data cannot be used, and how to get it; "" where it is here. Nothing is fetched."""
    source = find_dataset_source(config.data.dataset)
    try:
        path = locate_dataset(config.data.dataset, data_dirs)
    except RequestError as error:
        return str(error)
    in_folders = source.is_resizable and source.inspect is None
    lost = [name for name in config.data.domains if in_folders and not (path / name).is_dir()]
    if lost:
        return f"domain '{lost[0]}' of data set '{config.data.dataset}' is not here ({path}): {source.setup_hint}"
    return ""


def require_matching_configs(plan: SweepPlan, data_dirs: DataDirs) -> None:
    """Refuse directories in which runs under other conditions lie."""
    found = []
    for cell in plan.runs:
        if not cell.files.has_content() or is_locked(cell.files.path):
            continue
        cell.files.check_file_types()
        found += [
            (cell, d.text) for d in config_differences(load_latest_run_config(cell.files, data_dirs), cell.config)[:1]
        ]
    if found:
        cell, text = found[0]
        raise RequestError(
            f"{len(found)} runs of this study are there under other conditions, the first: {text} ({cell.files.path}): "
            "move them away, or choose another --runs-dir"
        )
