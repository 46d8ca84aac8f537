"""Finding finished runs: a line each, and a reason for every one that is left out."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.data.data_dirs import no_progress
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS, method_schema
from fedmosaic_cli.report.noise_notes import noise_key
from fedmosaic_cli.storage.files import sha256, to_json_bytes
from fedmosaic_cli.storage.runs import CONFIG_FILE, MODELS_DIR, SUMMARY_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.data.data_dirs import ProgressCallback

RUN_COLUMNS = [
    *("setting", "protocol", "method", "variant", "hyperparameters", "noise", "seed"),
    *("accuracy", "per_client", "caveats", "bits", "digest", "device", "terms", "block", "diagnosis", "path"),
]
# Two runs that agree in these are the same run, made twice.
IDENTITY_COLUMNS = RUN_COLUMNS[:7]
# What one should know of a run before comparing it with others.
CAVEAT_DESCRIPTIONS = {
    "†": "with a run that went on under other conditions than it began (--allow-nonidentical)",
    "‡": "with a run in which clients that diverged were left out of rounds (--on-nan skip)",
    "§": "with a run in which rounds had too few valid messages and kept the consensus of before (defence.min_clients)",
    "¶": "with a run in which sites were lost in some rounds, and went on without them",
}
CAVEAT_SUMMARY_KEYS = {"†": "nonidentical", "‡": "left_out", "§": "degraded", "¶": "lost"}
# Below a run directory these hold nothing that is a run, and very many files.
SKIPPED_SUBDIRECTORIES = {MODELS_DIR, "checkpoints", "tensorboard"}


@dataclass(frozen=True)
class SkippedRun:
    """A run that is not in the tables, and why."""

    path: Path
    reason: str


def collect_runs(runs_dir: Path, on_progress: ProgressCallback = no_progress) -> tuple[pd.DataFrame, list[SkippedRun]]:
    """One line a finished run below `runs_dir`, and the runs that are left out.

    `terms` is what runs must have in common to be compared, `protocol` a digest of it; `per_client` are accuracies by
    client, None where a summary has none; `noise` is what was asked for in messages, as JSON, "" where nothing was, and
    `block` what it came to; `diagnosis` is what came of co-training, None where a summary does not tell; `bits` is
    what all clients sent and received, None where raw data moved.
    """
    if not runs_dir.is_dir():
        what = "not a directory" if runs_dir.exists() else "no such directory"
        raise RequestError(
            f"{what} ({runs_dir}): name one with runs, or make some with 'fedmosaic train --preset quickstart'"
        )
    folders, skipped = find_run_directories(runs_dir)
    frame, others = collect_run_directories(folders, on_progress)
    return frame, [*skipped, *others]


def collect_run_directories(
    directories: Sequence[Path], on_progress: ProgressCallback = no_progress
) -> tuple[pd.DataFrame, list[SkippedRun]]:
    """The same of these run directories."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    skipped: list[SkippedRun] = []
    for number, files in enumerate(map(RunDirectory, directories), start=1):
        on_progress("reading runs", number, len(directories))
        try:
            lines.append({**summary_row(load_finished_summary(files)), "path": files.path})
        except RequestError as error:
            skipped.append(SkippedRun(files.path, str(error)))
        except OSError as error:
            skipped.append(SkippedRun(files.path, f"cannot be read: {error.strerror}"))
    frame = pd.DataFrame(lines, columns=RUN_COLUMNS)
    # Shards first: of two runs with one name, the one that can be compared is to stay.
    for leave_out in (runs_on_other_shards, duplicate_runs):
        reasons = leave_out(frame)
        skipped += [SkippedRun(frame.path[line], reason) for line, reason in reasons.items()]
        frame = frame.drop(index=list(reasons))
    return frame.reset_index(drop=True), skipped


def find_run_directories(runs_dir: Path) -> tuple[list[Path], list[SkippedRun]]:
    """Everything below `runs_dir` that looks like a run, in the order of the paths, and what nobody may look into.

    Links are followed; what is reached twice is there once.
    """
    found: list[Path] = []
    skipped: list[SkippedRun] = []
    seen: set[str] = set()

    def refused(error: OSError) -> None:
        skipped.append(SkippedRun(Path(error.filename), f"cannot be read: {error.strerror}"))

    for folder, below, names in os.walk(runs_dir, followlinks=True, onerror=refused):
        place = os.path.realpath(folder)
        if place in seen:
            below.clear()
            continue
        seen.add(place)
        # A directory under a file's name is found among those below.
        is_run = not {CONFIG_FILE, SUMMARY_FILE}.isdisjoint((*names, *below))
        below[:] = sorted(name for name in below if not (is_run and name in SKIPPED_SUBDIRECTORIES))
        if is_run:
            found.append(Path(folder))
    return found, skipped


def load_finished_summary(files: RunDirectory) -> dict[str, Any]:
    """The summary of a run that is finished."""
    if not os.path.lexists(files.path / SUMMARY_FILE):
        raise RequestError(f"not finished, {SUMMARY_FILE} is missing")
    if not files.is_finished():
        raise RequestError(f"{SUMMARY_FILE} is not a file")
    return files.read_summary()


def effective_hyperparameters(summary: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a run that its method reads: others do not tell two runs apart."""
    values = summary["hyperparameters"]
    idle = method_schema(summary["method"]).unused_hyperparameters(values)
    return {name: value for name, value in values.items() if name not in idle}


def summary_row(summary: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a run. Runs of one protocol differ in method and seed only, so they may be compared."""
    if summary["method"] not in METHODS:
        raise RequestError(f"unknown method '{summary['method']}'")
    terms = comparison_conditions(summary)
    per_client, bits = summary["accuracy"].get("per_client"), summary.get("bits", {})
    both = bits.get("up"), bits.get("down")
    return {
        "setting": summary["preset"],
        "protocol": sha256(to_json_bytes(terms))[:6],
        "method": summary["method"],
        "variant": summary["variant"],
        "hyperparameters": json.dumps(effective_hyperparameters(summary), sort_keys=True),
        "noise": noise_key(summary),
        "seed": summary["seed"],
        "accuracy": float(summary["accuracy"]["client_mean"]),
        "per_client": None if per_client is None else tuple(map(float, per_client)),
        "caveats": "".join(mark for mark, key in CAVEAT_SUMMARY_KEYS.items() if summary.get(key)),
        "bits": None if None in both else sum(both),
        "digest": summary["shards"].get("digest", ""),
        "device": summary.get("device", ""),
        "terms": terms,
        "block": summary.get("privacy"),
        "diagnosis": summary.get("diagnosis"),
    }


def comparison_conditions(summary: dict[str, Any]) -> dict[str, Any]:
    """What runs must have in common to share a column."""
    return {
        **{key: summary[key] for key in ("dataset", "scheme", "rounds", "model", "train")},
        "data": summary["shards"]["parameters"],
        "clients": summary.get("clients", {}),
        "evaluation": {"clients": summary["evaluation"]["clients"]},
        # Noise is told beside the method; who attacks and who defends is the same for all.
        **{key: summary[key] for key in ("attack", "defence") if summary.get(key)},
    }


def duplicate_runs(frame: pd.DataFrame) -> dict[int, str]:
    """The lines of runs that are there already, with the reason to leave them out."""
    reasons = {}
    first: dict[tuple[Any, ...], Path] = {}
    for number, identity, path in zip(
        frame.index, frame[IDENTITY_COLUMNS].itertuples(index=False), frame.path, strict=True
    ):
        kept = first.setdefault(tuple(identity), path)
        if kept is not path:
            reasons[int(number)] = f"a run of the same configuration and seed is in the tables already, {kept}"
    return reasons


def runs_on_other_shards(frame: pd.DataFrame) -> dict[int, str]:
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
