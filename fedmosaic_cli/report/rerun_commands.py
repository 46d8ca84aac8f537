"""How to fill what is missing: the commands, as somebody would type them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.rerun_args import cli_args_for, default_runs_dir
from fedmosaic_cli.config.run_config import load_run_config, run_config_from_dict
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.comparison import paper_sort_key
from fedmosaic_cli.report.noise_notes import noise_options
from fedmosaic_cli.storage.runs import CONFIG_FILE, ENVIRONMENT_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set
    from pathlib import Path

    import pandas as pd

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

MAX_CONFIG_ATTEMPTS = 5
"""So many configurations are read, if one after the other is damaged."""
ALL_BASELINES = {(name, "") for name in METHODS if name != "fedmosaic"}
MissingSeeds = dict["MethodKey", tuple[int, ...]]
"""The seeds that are missing of each method."""


@dataclass(frozen=True)
class RunDestination:
    """Under which conditions runs of a setting are made, the directory they belong into, and those that are there."""

    options: Sequence[str]
    directory: Path
    existing_runs: Set[Path] = frozenset()
    noise_options_by_method: Mapping[MethodKey, tuple[str, ...]] = field(default_factory=dict)
    """The options of the rows that have noise in their messages."""
    directory_labels: Mapping[MethodKey, str] = field(default_factory=dict)
    """The words behind the method's name in the directories of rows that have one."""


def missing_run_commands(destination: RunDestination, missing: MissingSeeds) -> list[str]:
    """The commands that make what is missing in a setting."""
    by_seeds: dict[tuple[int, ...], list[MethodKey]] = {}
    for key in sorted(missing, key=paper_sort_key):
        by_seeds.setdefault(missing[key], []).append(key)
    commands = []
    for seeds, keys in by_seeds.items():
        for (door, kind), variants in group_commands(
            keys, destination.noise_options_by_method, destination.directory_labels
        ).items():
            words = ["fedmosaic", *door, *destination.options, *kind, "--seeds", ",".join(map(str, seeds))]
            places = [destination.directory / name / f"seed-{seed}" for name in variants for seed in seeds]
            if not destination.existing_runs.isdisjoint(places):  # by runs with other hyper-parameters
                words += ["--runs-dir", str(destination.directory.parent / f"{destination.directory.name}-more")]
            else:
                words += (
                    []
                    if destination.directory.parent == default_runs_dir()
                    else ["--runs-dir", str(destination.directory.parent)]
                )
                # What lies there and is in no table is not finished, or damaged.
                words += ["--resume"] if any(place.exists() for place in places) else []
            commands.append(shlex.join(words))
    return commands


def group_commands(
    keys: Iterable[MethodKey],
    noise_options_by_method: Mapping[MethodKey, tuple[str, ...]],
    directory_labels: Mapping[MethodKey, str],
) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """One command for all baselines, and one for every kind of FedMosaic and for rows with hyper-parameters of their
    own: its first words, its own options, and the directories of its runs."""
    keys = list(keys)
    plain = [method for method, detail in keys if not detail]
    every = set(keys) >= ALL_BASELINES
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    if plain:
        found[("baseline", *(["all"] if every else plain)), ()] = plain
    for method, detail in keys:
        values = [f"methods.{method}.{part}" for part in detail.split(", ") if "=" in part]
        label = directory_labels.get((method, detail), "")
        own = (
            *(word for value in values for word in ("--set", value)),
            *noise_options_by_method.get((method, detail), ()),
            *(("--tag", label) if label else ()),
        )
        if method == "fedmosaic":
            kind = detail.partition(",")[0]
            found[("train",), ("--expertise", kind, *own)] = [variant_directory_name(f"fedmosaic-{kind}", label)]
        elif own:
            found[("baseline", method), own] = [variant_directory_name(method, label)]
    return found


def variant_directory_name(variant: str, label: str) -> str:
    return "-".join(filter(None, (variant, label)))


def directory_label(runs: pd.DataFrame) -> str:
    """The word behind the method's name in the directory of these runs, "" where there is none."""
    variant, folder = str(runs.variant.iloc[0]), runs.path.iloc[0].parent.name
    return folder.removeprefix(f"{variant}-") if folder.startswith(f"{variant}-") else ""


def group_destination(group: ComparisonGroup) -> RunDestination:
    """Where more runs of a setting belong."""
    noises = {key: options for key, runs in group.runs_by_method.items() if (options := noise_options(runs))}
    labels = {key: label for key, runs in group.runs_by_method.items() if (label := directory_label(runs))}
    return RunDestination(rerun_options(group), group_directory(group), frozenset(group.runs.path), noises, labels)


@cache  # a setting may stand in several tables
def rerun_options(group: ComparisonGroup) -> list[str]:
    """The options under which the runs of a setting were made, but for methods and seeds."""
    place = DataDirs()
    for path, digest in zip(group.runs.path[:MAX_CONFIG_ATTEMPTS], group.runs.digest, strict=False):
        files = RunDirectory(path)
        try:
            return cli_args_for(
                recover_run_config(files, place), {"shards_digest": digest, **load_environment(files)}, place
            )
        except (RequestError, OSError, ValueError):  # names that no file can have are ValueErrors
            continue
    return ["--preset", group.name]


def recover_run_config(files: RunDirectory, data_dirs: DataDirs) -> RunConfig:
    """The configuration of a run: from its file or, where that was changed, from all else that tells of it."""
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


def load_environment(files: RunDirectory) -> dict[str, Any]:
    """What env.json tells, if nobody changed it."""
    try:
        files.verify_files(ENVIRONMENT_FILE)
        return files.read_environment()
    except (RequestError, OSError):
        return {}


def group_directory(group: ComparisonGroup) -> Path:
    """The directory that more runs of a setting belong into, beside those that are there.

    A setting that shares its name with others gets a directory of its own, as their runs may have the same place.
    """
    first: Path = group.runs.path.iloc[0]
    variant, seed = group.runs.variant.iloc[0], group.runs.seed.iloc[0]
    usual = first.parts[-3:] == (
        group.name,
        variant_directory_name(variant, directory_label(group.runs)),
        f"seed-{seed}",
    )
    above = first.parents[2] if usual else first.parent
    alone = group.label == group.name or above.name == group.slug
    return (above if alone else above / group.slug) / group.name
