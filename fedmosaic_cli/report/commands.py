"""How to fill what is missing: the commands, as somebody would type them."""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING

from fedmosaic_cli.config.conditions import conditions_of, default_runs_dir
from fedmosaic_cli.config.run import stored_run
from fedmosaic_cli.data.place import Place
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.records.runs import RunFiles
from fedmosaic_cli.report.settings import paper_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.settings import Key, Setting

MOST_TRIES = 5
"""So many configurations are read, if one after the other is damaged."""
EVERY_BASELINE = {(name, "") for name in METHODS if name != "fedmosaic"}
Missing = dict["Key", tuple[int, ...]]
"""The seeds that are missing of each method."""


def commands_for(conditions: Sequence[str], folder: Path, missing: Missing) -> list[str]:
    """The commands that make what is missing, under these conditions. `folder` is where runs of the setting lie."""
    by_seeds: dict[tuple[int, ...], list[Key]] = {}
    for key in sorted(missing, key=paper_order):
        by_seeds.setdefault(missing[key], []).append(key)
    commands = []
    for seeds, keys in by_seeds.items():
        for (door, kind), variants in doors(keys).items():
            words = ["fedmosaic", *door, *conditions, *kind, "--seeds", ",".join(map(str, seeds))]
            words += [] if folder.parent == default_runs_dir() else ["--runs-dir", str(folder.parent)]
            # Something lies there that is in no table: not finished, or damaged.
            begun = any((folder / name / f"seed-{seed}").exists() for name in variants for seed in seeds)
            commands.append(shlex.join([*words, "--resume"] if begun else words))
    return commands


def doors(keys: Iterable[Key]) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """One command for all baselines, and one for every kind of FedMosaic: its first words, its own options, and the
    directories of its runs."""
    keys = list(keys)
    names = [method for method, _ in keys if method != "fedmosaic"]
    kinds = [kind for method, kind in keys if method == "fedmosaic"]
    every = set(keys) >= EVERY_BASELINE
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    if names:
        found[("baseline", *(["all"] if every else names)), ()] = names
    return found | {(("train",), ("--expertise", kind)): [f"fedmosaic-{kind}"] for kind in kinds}


@cache  # a setting may stand in several tables
def conditions_in(setting: Setting) -> list[str]:
    """The options under which the runs of a setting were made, but for methods and seeds."""
    place = Place()
    for path in setting.runs.path.head(MOST_TRIES):
        files = RunFiles(path)
        try:
            return conditions_of(stored_run(files.config, place), files.environment(), place)
        except (RequestError, OSError, ValueError):  # names that no file can have are ValueErrors
            continue
    return ["--preset", setting.name]


def folder_for(setting: Setting) -> Path:
    """The directory that more runs of a setting belong into, beside those that are there.

    A setting that shares its name with others gets a directory of its own, as their runs may have the same place.
    """
    first: Path = setting.runs.path.iloc[0]
    variant, seed = setting.runs.variant.iloc[0], setting.runs.seed.iloc[0]
    usual = first.parts[-3:] == (setting.name, variant, f"seed-{seed}")
    above = first.parents[2] if usual else first.parent
    alone = setting.label == setting.name or above.name == setting.slug
    return (above if alone else above / setting.slug) / setting.name
