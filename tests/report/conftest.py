"""Fixtures that write run directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.runs_by_hand import manifest_of, summary_of, write_run


class Runs:
    """Writes finished runs below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, setting, variant, seed, accuracy, domains=(), **changes):
        """Write a run whose clients have these accuracies; a number means a single client."""
        accuracies = accuracy if isinstance(accuracy, list) else [accuracy]
        digest = changes.pop("digest", f"{seed:x}{setting.encode().hex()}".ljust(64, "0"))
        place = changes.pop("place", f"{setting.replace('/', '-')}/{variant}/seed-{seed}")
        shards = {"digest": digest, "parameters": changes.pop("parameters", {"alpha": 1.0})}
        summary = summary_of(setting, variant, seed, accuracies, **{"shards": shards, **changes})
        manifest = manifest_of([[1, 1]] * len(accuracies), domains=domains, seed=seed, digest=digest)
        return write_run(self.folder / place, summary, manifest)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Write runs into `runs` below an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return Runs(Path("runs"))
