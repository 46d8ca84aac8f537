"""Finding finished runs: a line each, and a reason for every one that is left out."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.data.place import unseen
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.files import sha256, to_json
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.records.runs import CONFIG, MODELS, SUMMARY, RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from fedmosaic_cli.data.place import Watch

COLUMNS = [
    *("setting", "protocol", "method", "variant", "hyperparameters", "seed"),
    *("accuracy", "per_client", "caveats", "bits", "digest", "device", "terms", "path"),
]
# Two runs that agree in these are the same run, made twice.
IDENTITY = COLUMNS[:6]
# What one should know of a run before comparing it with others.
CAVEATS = {
    "†": "with a run that went on under other conditions than it began (--allow-nonidentical)",
    "‡": "with a run in which clients that diverged were left out of rounds (--on-nan skip)",
}
# Below a run directory these hold nothing that is a run, and very many files.
NO_RUNS_INSIDE = {MODELS, "checkpoints", "tensorboard"}


@dataclass(frozen=True)
class Skipped:
    """A run that is not in the tables, and why."""

    path: Path
    reason: str


def collect(runs_dir: Path, watch: Watch = unseen) -> tuple[pd.DataFrame, list[Skipped]]:
    """One line a finished run below `runs_dir`, and the runs that are left out.

    `terms` is what runs must have in common to be compared, `protocol` a digest of it; `per_client` are accuracies by
    client, None where a summary has none; `bits` is what all clients sent and received, None where raw data moved.
    """
    import pandas as pd

    if not runs_dir.is_dir():
        raise RequestError(f"no runs here ({runs_dir}): make some with 'fedmosaic train --preset quickstart'")
    lines, skipped = [], []
    folders = list(run_directories(runs_dir))
    for number, files in enumerate(map(RunFiles, folders), start=1):
        watch("reading runs", number, len(folders))
        try:
            if not files.finished():
                raise RequestError(f"not finished, {SUMMARY} is missing")
            lines.append({**line_of(files.summary()), "path": files.path})
        except RequestError as error:
            skipped.append(Skipped(files.path, str(error)))
        except OSError as error:
            skipped.append(Skipped(files.path, f"cannot be read: {error.strerror}"))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            skipped.append(Skipped(files.path, f"{SUMMARY} is damaged: {type(error).__name__} {error}"))
    frame = pd.DataFrame(lines, columns=COLUMNS)
    for leave_out in (repeated, on_other_shards):
        reasons = leave_out(frame)
        skipped += [Skipped(frame.path[line], reason) for line, reason in reasons.items()]
        frame = frame.drop(index=list(reasons))
    return frame.reset_index(drop=True), skipped


def run_directories(runs_dir: Path) -> Iterator[Path]:
    """Everything below `runs_dir` that looks like a run, in the order of the paths."""
    for folder, below, names in os.walk(runs_dir):
        is_run = CONFIG in names or SUMMARY in names
        below[:] = sorted(name for name in below if not (is_run and name in NO_RUNS_INSIDE))
        if is_run:
            yield Path(folder)


def line_of(summary: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a run. Runs of one protocol differ in method and seed only, so they may be compared."""
    terms = terms_of(summary)
    per_client, bits = summary["accuracy"].get("per_client"), summary.get("bits", {})
    line: dict[str, Any] = {
        "setting": str(summary["preset"]),
        "protocol": sha256(to_json(terms))[:6],
        "method": str(summary["method"]),
        "variant": str(summary["variant"]),
        "hyperparameters": json.dumps(dict(summary["hyperparameters"]), sort_keys=True),
        "seed": int(summary["seed"]),
        "accuracy": float(summary["accuracy"]["client_mean"]),
        "per_client": None if per_client is None else tuple(map(float, per_client)),
        "caveats": "†" * bool(summary.get("nonidentical")) + "‡" * bool(summary.get("left_out")),
        "bits": None if None in (both := (bits.get("up"), bits.get("down"))) else sum(map(int, both)),
        "digest": str(summary["shards"].get("digest", "")),
        "device": str(summary.get("device", "")),
        "terms": terms,
    }
    wrong = [value for value in (line["accuracy"], *(line["per_client"] or ())) if not 0 <= value <= 1]
    if wrong:
        raise ValueError(f"accuracy {wrong[0]} is no fraction")
    if line["method"] not in METHODS:
        raise ValueError(f"unknown method '{line['method']}'")
    return line


def terms_of(summary: dict[str, Any]) -> dict[str, Any]:
    """What runs must have in common to share a column."""
    return {
        "dataset": str(summary["dataset"]),
        "scheme": str(summary["scheme"]),
        "rounds": summary["rounds"],
        "data": dict(summary["shards"]["parameters"]),
        "model": dict(summary["model"]),
        "train": dict(summary["train"]),
        "clients": dict(summary.get("clients", {})),
        "evaluation": {"clients": summary["evaluation"]["clients"]},
    }


def repeated(frame: pd.DataFrame) -> dict[int, str]:
    """The lines of runs that are there already, with the reason to leave them out."""
    reasons = {}
    first: dict[tuple[Any, ...], Path] = {}
    for number, identity, path in zip(frame.index, frame[IDENTITY].itertuples(index=False), frame.path, strict=True):
        kept = first.setdefault(tuple(identity), path)
        if kept is not path:
            reasons[int(number)] = f"a run of the same configuration and seed is in the tables already, {kept}"
    return reasons


def on_other_shards(frame: pd.DataFrame) -> dict[int, str]:
    """The lines of runs whose clients hold something else than those of the runs they would be compared with."""
    reasons = {}
    for (setting, _, seed), runs in frame.groupby(["setting", "protocol", "seed"], sort=False):
        counts = runs.digest.value_counts(sort=False)
        # Where as many runs have one as the other, those found first stay.
        common = counts.index[int(counts.argmax())]
        for number in runs.index[runs.digest != common]:
            reasons[int(number)] = (
                f"its shards ({runs.digest[number][:6] or 'no digest'}) are not those of the other runs of {setting} "
                f"with seed {seed} ({common[:6] or 'no digest'})"
            )
    return reasons
