"""The runs that a table lacks, and the commands that make them."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.key_names import display_assignment
from fedmosaic_cli.config.rerun_args import automatic_tag_for, cli_args_for, default_runs_dir
from fedmosaic_cli.config.run_config import load_run_config, run_config_from_dict
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import ALL_BASELINES, METHODS, method_info
from fedmosaic_cli.report.comparison import file_name_part, paper_sort_key, preset_layers
from fedmosaic_cli.report.noise_notes import noise_options
from fedmosaic_cli.storage.runs import CONFIG_FILE, ENVIRONMENT_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set
    from pathlib import Path

    import pandas as pd

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.comparison_table import TableCell, TableColumn, TableRow

DEFAULT_SEEDS = (0, 1, 2)
"""The seeds to request for a column without runs, as in the paper."""
MAX_CONFIG_ATTEMPTS = 5
"""The number of configurations to try if the first ones are damaged."""
BASELINE_KEYS = {(name, "") for name in ALL_BASELINES}


@dataclass(frozen=True)
class RunDestination:
    """The options that the runs of a group share, their parent directory, and the options and tags of some rows."""

    options: Sequence[str]
    directory: Path
    existing_runs: Set[Path] = frozenset()
    noise_options_by_method: Mapping[MethodKey, tuple[str, ...]] = field(default_factory=dict)
    tags: Mapping[MethodKey, str] = field(default_factory=dict)
    tag_options: Callable[[MethodKey], tuple[str, ...]] = lambda _: ()
    """The option for rows whose tag is not the automatic one."""


def add_missing_run_commands(
    columns: Sequence[TableColumn], rows: tuple[TableRow, ...]
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """Return the rows with a command in each cell that lacks runs, and the fewest commands that make all runs."""
    missing = [
        {row.method_key: seeds for row in rows if (seeds := missing_seeds(column, columns, row, row.cells[number]))}
        for number, column in enumerate(columns)
    ]
    destinations = [column_destination(column, columns) for column in columns]

    def with_command(row: TableRow, number: int) -> TableCell:
        if row.method_key not in missing[number]:
            return row.cells[number]
        seeds = {row.method_key: missing[number][row.method_key]}
        return replace(row.cells[number], command=missing_run_commands(destinations[number], seeds)[0])

    filled = tuple(
        replace(row, cells=tuple(with_command(row, number) for number in range(len(columns)))) for row in rows
    )
    # All domains of a group lack the same runs, so each group is requested once.
    per_group = {
        column.group.label if column.group else column.preset: (destination, seeds)
        for column, destination, seeds in zip(columns, destinations, missing, strict=True)
    }
    commands = [missing_run_commands(destination, seeds) for destination, seeds in per_group.values()]
    return filled, tuple(command for group_commands in commands for command in group_commands)


def missing_seeds(
    column: TableColumn, columns: Sequence[TableColumn], row: TableRow, cell: TableCell
) -> tuple[int, ...]:
    """Return the seeds that a cell lacks.

    Plug-ins are never requested.
    Rows with other hyper-parameters or with noise are not requested for groups that have no run of them. A column
    without any runs lacks the rows that the paper has.
    """
    if column.group is None:
        return DEFAULT_SEEDS if cell.published else ()
    if row.method_key[0] not in METHODS or column.group.runs.plugins.astype(bool).any():
        return ()  # only the user knows where a plug-in is
    runs = column.group.runs_by_method.get(row.method_key)
    if runs is not None:
        present = set(runs.seed)
        return tuple(seed for seed in column.group.seeds if seed not in present)
    runs_elsewhere = [other.group.runs_by_method.get(row.method_key) for other in columns if other.group]
    has_noise = any(runs is not None and runs.noise.astype(bool).any() for runs in runs_elsewhere)
    is_requested = "=" not in row.method_key[1] and not has_noise and is_runnable(column.group, row)
    return column.group.seeds if is_requested else ()


def is_runnable(group: ComparisonGroup, row: TableRow) -> bool:
    """Return whether a row without noise can be run under the group's preset.

    Baselines always can. A preset with noise excludes other methods; attacks and defences need shared labels.
    """
    info = method_info(row.method_key[0])
    if info.family == "baseline":
        return True
    layers = preset_layers(group.preset)
    if layers and layers.values.get("privacy", {}).get("labels", "off") != "off":
        return False
    return info.shares_labels or group.conditions.keys().isdisjoint({"attack", "defence"})


def column_destination(column: TableColumn, columns: Sequence[TableColumn]) -> RunDestination:
    """Return where to make runs of a column. A preset without runs goes beside the other groups of the table."""
    if column.group:
        return group_destination(column.group)
    others = [group_destination(other.group).directory.parent for other in columns if other.group]
    return RunDestination(["--preset", column.preset], (others[0] if others else default_runs_dir()) / column.preset)


def group_destination(group: ComparisonGroup) -> RunDestination:
    """Return where to make more runs of a group."""
    noise = {key: options for key, runs in group.runs_by_method.items() if (options := noise_options(runs))}
    tags = {key: tag for key, runs in group.runs_by_method.items() if (tag := directory_tag(runs))}
    return RunDestination(
        rerun_options(group),
        group_directory(group),
        group.all_paths,
        noise,
        tags,
        lambda key: tag_options(group, key),
    )


def tag_options(group: ComparisonGroup, key: MethodKey) -> tuple[str, ...]:
    """Return the option `--tag` that a row needs so that more runs of it get the tag of those that exist."""
    runs = group.runs_by_method.get(key)
    if runs is None:
        return ()
    tag, automatic = directory_tag(runs), None
    if not tag and "=" not in key[1] and not noise_options(runs):
        return ()
    with suppress(RequestError, OSError, ValueError):
        automatic = automatic_tag_for(
            recover_run_config(RunDirectory(runs.path.iloc[0]), DataDirs()), rerun_options(group)
        )
    return () if tag == automatic else ("--tag", tag)


def group_directory(group: ComparisonGroup) -> Path:
    """Return the directory for more runs of a group, beside its first run.

    A group that shares its name with others gets a separate directory, because their run directories could collide.
    """
    first: Path = group.runs.path.iloc[0]
    run_name = join_names(group.runs.variant.iloc[0], directory_tag(group.runs))
    has_default_layout = first.parts[-3:] == (group.name, run_name, f"seed-{group.runs.seed.iloc[0]}")
    parent = first.parents[2] if has_default_layout else first.parent
    separate_name = file_name_part(group.full_name)
    is_separate = not group.suffix or parent.name == separate_name
    return (parent if is_separate else parent / separate_name) / group.name


def directory_tag(runs: pd.DataFrame) -> str:
    """Return the `--tag` part of the directory name of the runs, "" without one."""
    prefix, name = f"{runs.variant.iloc[0]}-", runs.path.iloc[0].parent.name
    return name.removeprefix(prefix) if name.startswith(prefix) else ""


def join_names(variant: str, tag: str) -> str:
    return f"{variant}-{tag}" if tag else variant


def missing_run_commands(destination: RunDestination, missing: Mapping[MethodKey, tuple[int, ...]]) -> list[str]:
    """Return the commands that make the missing seeds of each method."""
    by_seeds: dict[tuple[int, ...], list[MethodKey]] = {}
    for key in sorted(missing, key=paper_sort_key):
        by_seeds.setdefault(missing[key], []).append(key)
    directory = destination.directory
    commands = []
    for seeds, keys in by_seeds.items():
        for (command, options), variants in group_commands(keys, destination).items():
            words = ["fedmosaic", *command, *destination.options, *options, "--seeds", ",".join(map(str, seeds))]
            paths = [directory / variant / f"seed-{seed}" for variant in variants for seed in seeds]
            if not destination.existing_runs.isdisjoint(paths):  # runs with other hyper-parameters
                words += ["--runs-dir", str(directory.parent / f"{directory.name}-more")]
            elif directory.parent != default_runs_dir():
                words += ["--runs-dir", str(directory.parent)]
            commands.append(shlex.join(words))
    return commands


def group_commands(
    keys: Sequence[MethodKey], destination: RunDestination
) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """Map commands and their options to the directory names of their runs. One command covers all plain baselines."""
    baselines = [method for method, detail in keys if not detail]
    commands: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    if baselines:
        commands[("baseline", *(["all"] if set(keys) >= BASELINE_KEYS else baselines)), ()] = baselines
    for method, detail in keys:
        tag = destination.tags.get((method, detail), "")
        options = (
            *(
                word
                for part in detail.split(", ")
                if "=" in part
                for word in ("--set", display_assignment(f"methods.{method}.{part}"))
            ),
            *destination.noise_options_by_method.get((method, detail), ()),
            *destination.tag_options((method, detail)),
        )
        if method == "fedmosaic":
            expertise = detail.partition(",")[0]
            commands[("train",), ("--expertise", expertise, *options)] = [join_names(f"fedmosaic-{expertise}", tag)]
        elif options:
            commands[("baseline", method), options] = [join_names(method, tag)]
    return commands


@cache  # several tables may contain the group
def rerun_options(group: ComparisonGroup) -> list[str]:
    """Return the options that the runs of a group were made with, except methods and seeds."""
    data_dirs = DataDirs()
    for path, digest in zip(group.runs.path[:MAX_CONFIG_ATTEMPTS], group.runs.digest, strict=False):
        files = RunDirectory(path)
        try:
            config = recover_run_config(files, data_dirs)
            environment: dict[str, Any] = {}
            with suppress(RequestError, OSError):  # the file was changed
                files.verify_files(ENVIRONMENT_FILE)
                environment = files.read_environment()
            return cli_args_for(config, {"shards_digest": digest, **environment}, data_dirs)
        except (RequestError, OSError, ValueError):  # a name that is not a valid file name is a ValueError
            continue
    return ["--preset", group.name]


def recover_run_config(files: RunDirectory, data_dirs: DataDirs) -> RunConfig:
    """Load the configuration of a run, or rebuild it from the summary and manifest if the file was changed."""
    try:
        files.verify_files(CONFIG_FILE)
        return load_run_config(files.config_path, data_dirs)
    except (RequestError, OSError):
        summary, manifest = files.read_summary(), files.read_shard_manifest()
        content = {
            **{key: summary[key] for key in ("method", "seed", "model")},
            "setting": summary["preset"],
            "partition_seed": manifest.get("seed"),
            "data": manifest.get("settings"),
            "train": {**summary["train"], "rounds": summary["rounds"]},
            **{name: summary.get(name, {}) for name in ("clients", "attack", "defence")},
            "privacy": summary.get("privacy_settings", {}),
            "methods": {summary["method"]: summary["hyperparameters"]},
        }
        return run_config_from_dict(content, str(files.path), data_dirs)
