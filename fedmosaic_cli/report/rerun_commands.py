"""How to fill what is missing: the commands, as somebody would type them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.rerun_args import conditions_of, default_runs_dir
from fedmosaic_cli.config.run_config import recorded_run, stored_run
from fedmosaic_cli.data.data_dirs import Place
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.comparison import paper_order
from fedmosaic_cli.report.noise_notes import noise_options
from fedmosaic_cli.storage.runs import CONFIG, ENVIRONMENT, RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set
    from pathlib import Path

    import pandas as pd

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.report.comparison import Key, Setting

MOST_TRIES = 5
"""So many configurations are read, if one after the other is damaged."""
EVERY_BASELINE = {(name, "") for name in METHODS if name != "fedmosaic"}
Missing = dict["Key", tuple[int, ...]]
"""The seeds that are missing of each method."""


@dataclass(frozen=True)
class Where:
    """Under which conditions runs of a setting are made, the directory they belong into, and those that are there."""

    conditions: Sequence[str]
    folder: Path
    taken: Set[Path] = frozenset()
    noises: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    """The options of the rows that have noise in their messages."""
    labels: Mapping[Key, str] = field(default_factory=dict)
    """The words behind the method's name in the directories of rows that have one."""


def commands_for(where: Where, missing: Missing) -> list[str]:
    """The commands that make what is missing in a setting."""
    by_seeds: dict[tuple[int, ...], list[Key]] = {}
    for key in sorted(missing, key=paper_order):
        by_seeds.setdefault(missing[key], []).append(key)
    commands = []
    for seeds, keys in by_seeds.items():
        for (door, kind), variants in doors(keys, where.noises, where.labels).items():
            words = ["fedmosaic", *door, *where.conditions, *kind, "--seeds", ",".join(map(str, seeds))]
            places = [where.folder / name / f"seed-{seed}" for name in variants for seed in seeds]
            if not where.taken.isdisjoint(places):  # by runs with other hyper-parameters
                words += ["--runs-dir", str(where.folder.parent / f"{where.folder.name}-more")]
            else:
                words += [] if where.folder.parent == default_runs_dir() else ["--runs-dir", str(where.folder.parent)]
                # What lies there and is in no table is not finished, or damaged.
                words += ["--resume"] if any(place.exists() for place in places) else []
            commands.append(shlex.join(words))
    return commands


def doors(
    keys: Iterable[Key], noises: Mapping[Key, tuple[str, ...]], labels: Mapping[Key, str]
) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """One command for all baselines, and one for every kind of FedMosaic and for rows with hyper-parameters of their
    own: its first words, its own options, and the directories of its runs."""
    keys = list(keys)
    plain = [method for method, detail in keys if not detail]
    every = set(keys) >= EVERY_BASELINE
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    if plain:
        found[("baseline", *(["all"] if every else plain)), ()] = plain
    for method, detail in keys:
        values = [f"methods.{method}.{part}" for part in detail.split(", ") if "=" in part]
        label = labels.get((method, detail), "")
        own = (
            *(word for value in values for word in ("--set", value)),
            *noises.get((method, detail), ()),
            *(("--label", label) if label else ()),
        )
        if method == "fedmosaic":
            kind = detail.partition(",")[0]
            found[("train",), ("--expertise", kind, *own)] = [labelled(f"fedmosaic-{kind}", label)]
        elif own:
            found[("baseline", method), own] = [labelled(method, label)]
    return found


def labelled(variant: str, label: str) -> str:
    return "-".join(filter(None, (variant, label)))


def label_of(runs: pd.DataFrame) -> str:
    """The word behind the method's name in the directory of these runs, "" where there is none."""
    variant, folder = str(runs.variant.iloc[0]), runs.path.iloc[0].parent.name
    return folder.removeprefix(f"{variant}-") if folder.startswith(f"{variant}-") else ""


def where_of(setting: Setting) -> Where:
    """Where more runs of a setting belong."""
    noises = {key: options for key, runs in setting.methods.items() if (options := noise_options(runs))}
    labels = {key: label for key, runs in setting.methods.items() if (label := label_of(runs))}
    return Where(conditions_in(setting), folder_for(setting), frozenset(setting.runs.path), noises, labels)


@cache  # a setting may stand in several tables
def conditions_in(setting: Setting) -> list[str]:
    """The options under which the runs of a setting were made, but for methods and seeds."""
    place = Place()
    for path, digest in zip(setting.runs.path[:MOST_TRIES], setting.runs.digest, strict=False):
        files = RunFiles(path)
        try:
            return conditions_of(configuration(files, place), {"shards_digest": digest, **surroundings(files)}, place)
        except (RequestError, OSError, ValueError):  # names that no file can have are ValueErrors
            continue
    return ["--preset", setting.name]


def configuration(files: RunFiles, place: Place) -> RunConfig:
    """The configuration of a run: from its file or, where that was changed, from all else that tells of it."""
    try:
        files.check(CONFIG)
        return stored_run(files.config, place)
    except (RequestError, OSError):
        summary, manifest = files.summary(), files.shards()
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
        return recorded_run(content, str(files.path), place)


def surroundings(files: RunFiles) -> dict[str, Any]:
    """What env.json tells, if nobody changed it."""
    try:
        files.check(ENVIRONMENT)
        return files.environment()
    except (RequestError, OSError):
        return {}


def folder_for(setting: Setting) -> Path:
    """The directory that more runs of a setting belong into, beside those that are there.

    A setting that shares its name with others gets a directory of its own, as their runs may have the same place.
    """
    first: Path = setting.runs.path.iloc[0]
    variant, seed = setting.runs.variant.iloc[0], setting.runs.seed.iloc[0]
    usual = first.parts[-3:] == (setting.name, labelled(variant, label_of(setting.runs)), f"seed-{seed}")
    above = first.parents[2] if usual else first.parent
    alone = setting.label == setting.name or above.name == setting.slug
    return (above if alone else above / setting.slug) / setting.name
