"""Run directories written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedmosaic_cli.files import sealed


class Runs:
    """Writes finished runs below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, setting, variant, seed, accuracy, domains=(), **changes):
        """A run whose clients have these accuracies; a number stands for a single client."""
        marks = accuracy if isinstance(accuracy, list) else [accuracy]
        digest = changes.pop("digest", f"{seed:x}{setting.encode().hex()}".ljust(64, "0"))
        place = changes.pop("place", f"{setting.replace('/', '-')}/{variant}/seed-{seed}")
        parameters = changes.pop("parameters", {"alpha": 1.0})
        summary = {
            "schema": 1,
            "preset": setting,
            "dataset": "digits",
            "scheme": "dirichlet",
            "method": variant.split("-")[0],
            "variant": variant,
            "hyperparameters": {},
            "seed": seed,
            "rounds": 30,
            "model": {"name": "mlp"},
            "train": {"lr": 0.1},
            "shards": {"digest": digest, "parameters": parameters},
            "accuracy": {"client_mean": sum(marks) / len(marks), "per_client": marks},
            "bits": {"up": 800, "down": 200},
            "device": "cpu",
            "evaluation": {"clients": "each on its own test part"},
            **changes,
        }
        folder = self.folder / place
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("")
        (folder / "summary.json").write_text(json.dumps(summary))
        clients = [{"id": number, "domain": domain} for number, domain in enumerate(domains)]
        (folder / "shards.json").write_bytes(sealed({"digest": digest, "clients": clients}))
        return folder


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")
