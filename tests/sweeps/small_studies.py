"""A study of two methods and three seeds, and what it makes that must not depend on where it is made."""

from __future__ import annotations

from pathlib import Path

# Five clients, a network of one layer: most of the time is start-up.
SMALL = ("--methods", "fedct", "--data-dir", "nothing-here", "--set", "train.local_steps=1", "--no-figures")
STUDY = ("misleading", *SMALL, "--seeds", "0,1,2", "--set", "train.rounds=2")
DECIDED = ("rounds.jsonl", "summary.json", "config.yaml", "models/*")


def results_in(folder: Path) -> dict[str, bytes]:
    """The files of all runs that are the same wherever and in whichever order they are made."""
    runs = folder / "runs"
    found = [path for name in DECIDED for path in runs.glob(f"*/*/*/{name}") if path.is_file()]
    return {str(path.relative_to(runs)): path.read_bytes() for path in found}
