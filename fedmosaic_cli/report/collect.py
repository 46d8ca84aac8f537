"""Collect finished runs into a DataFrame, with a reason for each run that is skipped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.data.data_dirs import no_progress
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS, effective_hyperparameters, store_method_info
from fedmosaic_cli.report.noise_notes import noise_key
from fedmosaic_cli.storage.files import sha256, to_json_bytes
from fedmosaic_cli.storage.runs import CONFIG_FILE, MODELS_DIR, SUMMARY_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.data.data_dirs import ProgressCallback

# Two runs with equal values in these columns are duplicates.
IDENTITY_COLUMNS = ["group", "protocol", "method", "variant", "hyperparameters", "noise", "seed"]
RUN_COLUMNS = [
    *IDENTITY_COLUMNS,
    *("accuracy", "per_client", "caveats", "bits", "plugins", "digest", "device", "conditions"),
    *("privacy", "diagnosis", "certificates", "exchange", "path"),
]
# Facts that limit how far a run can be compared with others.
CAVEAT_DESCRIPTIONS = {
    "†": "includes a run that was resumed under other conditions (--allow-nonidentical)",
    "‡": "includes a run that excluded diverged clients from rounds (--on-nan skip)",
    "§": "includes a run that kept the previous consensus in rounds with too few valid messages (defence.min_clients)",
    "¶": "includes a run that lost sites in some rounds and continued without them",
}
CAVEAT_SUMMARY_KEYS = {"†": "nonidentical", "‡": "left_out", "§": "degraded", "¶": "lost"}
# Subdirectories of a run that contain many files and no runs.
SKIPPED_SUBDIRECTORIES = {MODELS_DIR, "checkpoints", "tensorboard"}


@dataclass(frozen=True)
class SkippedRun:
    """A run that is not in the tables, and the reason."""

    path: Path
    reason: str


def collect_runs(runs_dir: Path, on_progress: ProgressCallback = no_progress) -> tuple[pd.DataFrame, list[SkippedRun]]:
    """Read all finished runs below a directory.

    Returns:
        A DataFrame with one row per run, and the skipped runs. `conditions` is what runs must share to be compared and
        `protocol` its digest; `per_client` is a tuple of accuracies or None; `noise` is the requested privacy noise as
        JSON or ""; `privacy`, `diagnosis`, `certificates` and `exchange` are sections of the summary; `bits` is None
        if raw data moved.

    Raises:
        RequestError: `runs_dir` is not a directory.
    """
    if not runs_dir.is_dir():
        problem = "not a directory" if runs_dir.exists() else "no such directory"
        raise RequestError(f"{problem} ({runs_dir}): create runs with 'fedmosaic train --preset quickstart'")
    directories, unreadable = find_run_directories(runs_dir)
    frame, skipped = collect_run_directories(directories, on_progress)
    return frame, [*unreadable, *skipped]


def collect_run_directories(
    directories: Sequence[Path], on_progress: ProgressCallback = no_progress
) -> tuple[pd.DataFrame, list[SkippedRun]]:
    """Read the given run directories. See `collect_runs` for the result."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    skipped: list[SkippedRun] = []
    for number, files in enumerate(map(RunDirectory, directories), start=1):
        on_progress("reading runs", number, len(directories))
        try:
            if not os.path.lexists(files.path / SUMMARY_FILE):
                raise RequestError(f"not finished, {SUMMARY_FILE} is missing")
            if not files.is_finished():
                raise RequestError(f"{SUMMARY_FILE} is not a file")
            rows.append({**summary_row(files.read_summary()), "path": files.path})
        except RequestError as error:
            skipped.append(SkippedRun(files.path, str(error)))
        except OSError as error:
            skipped.append(SkippedRun(files.path, f"cannot be read: {error.strerror}"))
    frame = pd.DataFrame(rows, columns=RUN_COLUMNS)
    # Check shards first: of two duplicates, the one on the common shards must stay.
    for find_rejected in (runs_on_other_shards, duplicate_runs):
        reasons = find_rejected(frame)
        skipped += [SkippedRun(frame.path[index], reason) for index, reason in reasons.items()]
        frame = frame.drop(index=list(reasons))
    return frame.reset_index(drop=True), skipped


def find_run_directories(runs_dir: Path) -> tuple[list[Path], list[SkippedRun]]:
    """Find run directories in path order, also behind symbolic links, and directories that cannot be read."""
    run_directories: list[Path] = []
    unreadable: list[SkippedRun] = []
    visited: set[str] = set()

    def record_error(error: OSError) -> None:
        unreadable.append(SkippedRun(Path(error.filename), f"cannot be read: {error.strerror}"))

    for directory, subdirectories, names in os.walk(runs_dir, followlinks=True, onerror=record_error):
        real_path = os.path.realpath(directory)
        if real_path in visited:
            subdirectories.clear()
            continue
        visited.add(real_path)
        # A directory named like a run file also marks a run, so that it is reported as damaged.
        is_run = not {CONFIG_FILE, SUMMARY_FILE}.isdisjoint((*names, *subdirectories))
        subdirectories[:] = sorted(name for name in subdirectories if not (is_run and name in SKIPPED_SUBDIRECTORIES))
        if is_run:
            run_directories.append(Path(directory))
    return run_directories, unreadable


def store_plugin_info(summary: dict[str, Any]) -> None:
    """Keep the description of a plug-in method, which its run stored."""
    content = summary.get("method_info")
    try:
        if content is None or content["name"] != summary["method"]:
            raise ValueError("it is missing")
        store_method_info(content)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"unknown method '{summary['method']}', and its description is unusable: {error}") from None


def summary_row(summary: dict[str, Any]) -> dict[str, Any]:
    """Convert a run summary to a row of the DataFrame."""
    if summary.get("unreported"):
        num_clients = len(summary["unreported"])
        raise RequestError(f"the sites of {num_clients} clients do not report their accuracy")
    if summary["method"] not in METHODS:
        store_plugin_info(summary)
    hyperparameters = effective_hyperparameters(summary["method"], summary["hyperparameters"])
    conditions = {
        **{key: summary[key] for key in ("dataset", "scheme", "rounds", "model", "train")},
        "data": summary["shards"]["parameters"],
        "clients": summary.get("clients", {}),
        "evaluation": {"clients": summary["evaluation"]["clients"]},
        # Privacy noise belongs to the method; attacks and defences apply to all methods.
        **{key: summary[key] for key in ("attack", "defence") if summary.get(key)},
    }
    per_client, bits = summary["accuracy"].get("per_client"), summary.get("bits", {})
    bits_up_down = bits.get("up"), bits.get("down")
    return {
        "group": summary["preset"],
        "protocol": sha256(to_json_bytes(conditions))[:6],
        "method": summary["method"],
        "variant": summary["variant"],
        "hyperparameters": json.dumps(hyperparameters, sort_keys=True),
        "noise": noise_key(summary),
        "seed": summary["seed"],
        "accuracy": float(summary["accuracy"]["client_mean"]),
        "per_client": None if per_client is None else tuple(map(float, per_client)),
        "caveats": "".join(symbol for symbol, key in CAVEAT_SUMMARY_KEYS.items() if summary.get(key)),
        "bits": None if None in bits_up_down else sum(bits_up_down),
        # Plug-in data sets and models, without which no command can make more runs.
        "plugins": ", ".join(sorted(key for key in summary.get("plugins", {}) if not key.startswith("methods."))),
        "digest": summary["shards"].get("digest", ""),
        "device": summary.get("device", ""),
        "conditions": conditions,
        "privacy": summary.get("privacy"),
        "diagnosis": summary.get("diagnosis"),
        "certificates": summary.get("certificates"),
        "exchange": summary.get("exchange"),
    }


def duplicate_runs(frame: pd.DataFrame) -> dict[int, str]:
    """Map the rows of duplicate runs to the reason to skip them. The first run of each kind stays."""
    reasons = {}
    first: dict[tuple[Any, ...], Path] = {}
    identities = frame[IDENTITY_COLUMNS].itertuples(index=False)
    for index, identity, path in zip(frame.index, identities, frame.path, strict=True):
        kept = first.setdefault(tuple(identity), path)
        if kept is not path:
            reasons[int(index)] = f"a run of the same configuration and seed is in the tables already, {kept}"
    return reasons


def runs_on_other_shards(frame: pd.DataFrame) -> dict[int, str]:
    """Map the rows of runs on other shards than most runs of their group and seed to the reason to skip them."""
    reasons = {}
    for (group, _, seed), runs in frame.groupby(["group", "protocol", "seed"], sort=False):
        counts = runs.digest.value_counts(sort=False)
        common = counts.index[int(counts.argmax())]  # the first one on a tie
        for index in runs.index[runs.digest != common]:
            reasons[int(index)] = (
                f"its shards ({runs.digest[index][:6] or 'no digest'}) are not those of the other runs of {group} "
                f"with seed {seed} ({common[:6] or 'no digest'})"
            )
    return reasons
