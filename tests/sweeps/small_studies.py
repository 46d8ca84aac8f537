"""A study of two methods and three seeds, and its results that must not depend on the machine."""

from __future__ import annotations

from pathlib import Path

# Five clients and one layer: most of the time is start-up.
SMALL = ("--methods", "fedct", "--data-dir", "nothing-here", "--set", "train.local_steps=1", "--no-figures")
STUDY = ("misleading", *SMALL, "--seeds", "0,1,2", "--set", "train.rounds=2")
DETERMINISTIC_FILES = ("rounds.jsonl", "summary.json", "config.yaml", "models/*")


def results_in(folder: Path) -> dict[str, bytes]:
    """The files of all runs that depend neither on the machine nor on the order of execution."""
    runs = folder / "runs"
    paths = [path for name in DETERMINISTIC_FILES for path in runs.glob(f"*/*/*/{name}") if path.is_file()]
    return {str(path.relative_to(runs)): path.read_bytes() for path in paths}
