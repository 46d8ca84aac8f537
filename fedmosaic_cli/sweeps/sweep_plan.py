"""From a study to its runs: where each belongs, what is there, the commands that make the rest. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.config.resume_changes import differences
from fedmosaic_cli.config.run_config import resolve_run
from fedmosaic_cli.data.datasets import find_source, locate
from fedmosaic_cli.errors import RequestError, unknown
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.runner.prepare import configuration_of, is_done, run_directory
from fedmosaic_cli.storage.files import sha256
from fedmosaic_cli.storage.lock import is_held
from fedmosaic_cli.storage.runs import RunFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.sweeps.studies import Row, Scale, Scenario, Study


class State(StrEnum):
    """How far a run is."""

    DONE = "done"
    BEGUN = "begun"
    TO_DO = "to do"
    HELD = "held by another process"


@dataclass(frozen=True)
class Order:
    """What holds for all runs of a request. `changes` are assignments that are laid over every setting."""

    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    runs_dir: Path = Path("runs")
    options: tuple[str, ...] = ()
    """Options that every command gets: where data lies, what computes."""


@dataclass(frozen=True)
class Cell:
    """One run of a study. `label` stands behind the method's name in its directory, where nothing else tells."""

    scenario: Scenario
    row: Row
    config: RunConfig
    label: str
    files: RunFiles

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.row.title}, seed {self.config.seed}"

    def state(self) -> State:
        """How far it is now."""
        if is_done(self.files, self.config):
            return State.DONE
        if is_held(self.files.path):
            return State.HELD
        return State.BEGUN if self.files.exists() else State.TO_DO


@dataclass(frozen=True)
class Job:
    """Cells of one row of one setting, which one command makes one after the other."""

    cells: tuple[Cell, ...]
    order: Order

    @property
    def title(self) -> str:
        return f"{self.cells[0].scenario.name}, {self.cells[0].row.title}"

    def arguments(self) -> list[str]:
        """The command, as one would type it behind `fedmosaic`."""
        cell = self.cells[0]
        scenario, row = cell.scenario, cell.row
        words = ["train"] if row.method == "fedmosaic" else ["baseline", row.method]
        words += ["--preset", scenario.preset]
        for assignment in (*scenario.assignments, *self.order.changes, *row.assignments):
            words += ["--set", assignment]
        words += ["--name", scenario.name] if scenario.name != scenario.preset else []
        words += ["--label", cell.label] if cell.label else []
        words += ["--seeds", ",".join(str(each.config.seed) for each in self.cells)]
        elsewhere = self.order.runs_dir != default_runs_dir()
        return [*words, *(["--runs-dir", str(self.order.runs_dir)] if elsewhere else []), *self.order.options]


@dataclass(frozen=True)
class Program:
    """All runs of a study that can be made here, in the order in which they are, and why others cannot."""

    cells: tuple[Cell, ...]
    order: Order
    left_out: tuple[str, ...] = field(default=())

    def jobs(self, states: dict[Path, State], apart: bool = False) -> list[Job]:
        """What remains, setting by setting, a job a row; runs that somebody else is making are jobs of their own.

        With `apart` every run is: there are many places for them.
        """
        rows: dict[tuple[Scenario, Row, State | Path], list[Cell]] = {}
        for cell in self.cells:
            state = states[cell.files.path]
            if state is not State.DONE:
                held = State.HELD if state is State.HELD else State.TO_DO
                rows.setdefault((cell.scenario, cell.row, cell.files.path if apart else held), []).append(cell)
        return [Job(tuple(cells), self.order) for cells in rows.values()]

    def states(self) -> dict[Path, State]:
        """How far every run is now, by its directory."""
        return {cell.files.path: cell.state() for cell in self.cells}


def planned(study: Study, scale: Scale, order: Order, place: Place) -> Program:
    """The runs of a study. Settings whose data is not here, and methods that cannot be played there, are left out."""
    check_methods(study, order.methods)
    cells: dict[Path, Cell] = {}
    left_out: list[str] = []
    misfits: dict[str, list[str]] = {}
    for plain in study.scenarios[scale]:
        scenario = renamed(plain, order.changes)
        made = [
            cell_of(scenario, row, seed, order, place) for row in study.rows_of(order.methods) for seed in order.seeds
        ]
        absent = missing_data(made[0].config, place)
        if absent:
            left_out.append(f"{scenario.name}, {absent}")
            continue
        for cell in made:
            why = cell.config.misfit()
            if why is None:
                cells.setdefault(cell.files.path, cell)
            else:
                names = misfits.setdefault(f"{cell.config.method.title} {why.needs}, but {why.but}", [])
                names += [] if scenario.name in names else [scenario.name]
    left_out += [f"{reason} ({', '.join(names)})" for reason, names in misfits.items()]
    program = Program(tuple(cells.values()), order, tuple(left_out))
    check_unchanged(program, place)
    return program


def check_methods(study: Study, methods: Sequence[str]) -> None:
    """Refuse methods that are none, or have no row here."""
    rows = list(dict.fromkeys(row.method for row in study.rows))
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS, "--methods", "'fedmosaic baseline --list' shows all")
        if name not in rows:
            raise RequestError(f"'{name}' has no row in this study (--methods): there is {', '.join(rows)}")


def renamed(scenario: Scenario, changes: Sequence[str]) -> Scenario:
    """The setting under a name of its own, if anything is other than the study has it."""
    if not changes:
        return scenario
    return replace(scenario, name=f"{scenario.name}-changed-{sha256(chr(10).join(changes).encode())[:6]}")


def cell_of(scenario: Scenario, row: Row, seed: int, order: Order, place: Place) -> Cell:
    """One run. Its hyper-parameters decide where it lies, so that studies which share it find it there."""
    layers = Layers()
    layers.add_all(load_preset(scenario.preset).layers)
    for assignment in (*scenario.assignments, *order.changes):
        layers.set(assignment)
    usual = resolve_run(scenario.name, layers, row.method, seed, place).method
    for assignment in row.assignments:
        layers.set(assignment)
    config = resolve_run(scenario.name, layers, row.method, seed, place)
    label = label_of(config.method, usual)
    return Cell(scenario, row, config, label, RunFiles(run_directory(order.runs_dir, config, label)))


def label_of(method: Method, usual: Method) -> str:
    """What tells a method from the usual one beside its variant, "" if nothing does."""
    mine, theirs = as_values(method), as_values(usual)
    other = [name for name in mine if mine[name] != theirs[name]]
    silent = [name for name in other if replace(method, **{name: theirs[name]}).variant == method.variant]  # type: ignore[type-var]
    return "-".join(f"{name.replace('_', '-')}-{spelt(mine[name])}" for name in silent)


def spelt(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_values(method: Method) -> dict[str, Any]:
    return asdict(method)  # type: ignore[call-overload, no-any-return]


def missing_data(config: RunConfig, place: Place) -> str:
    """Why a setting's data cannot be used, and how to get it; "" where it is here. Nothing is fetched."""
    source = find_source(config.data.dataset)
    try:
        path = locate(config.data.dataset, place)
    except RequestError as error:
        return str(error)
    in_folders = source.resizable and source.look is None
    lost = [name for name in config.data.domains if in_folders and not (path / name).is_dir()]
    if lost:
        return f"domain '{lost[0]}' of data set '{config.data.dataset}' is not here ({path}): {source.how_to_get}"
    return ""


def check_unchanged(program: Program, place: Place) -> None:
    """Refuse directories in which runs under other conditions lie."""
    found = []
    for cell in program.cells:
        if not cell.files.exists() or is_held(cell.files.path):
            continue
        cell.files.check_kinds()
        found += [(cell, d.text) for d in differences(configuration_of(cell.files, place), cell.config)[:1]]
    if found:
        cell, text = found[0]
        raise RequestError(
            f"{len(found)} runs of this study are there under other conditions, the first: {text} ({cell.files.path}): "
            "move them away, or choose another --runs-dir"
        )
