"""Run directories written by hand: as few files as a report reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmosaic_cli.files import sealed, sha256

CLASSES = ["cat", "dog"]


def manifest_of(clients: int, parameters: dict[str, Any], flipped=(), public=(3, 5), seed=0) -> dict[str, Any]:
    """The manifest of shards in which client i has i + 1 cats and one dog to train on."""
    content = {
        "schema": 3,
        "dataset": "digits",
        "scheme": "dirichlet",
        "protocol": "official",
        "tested_on": "a part of each client's share",
        "parameters": parameters,
        "seed": seed,
        "class_names": CLASSES,
        "image_shape": [1, 8, 8],
        "examples": 1000,
        "left_out": 0,
        "source_fingerprint": "none",
        "clients": [
            {
                "id": client,
                "domain": None,
                "labels_flipped": client in flipped,
                "train": {"size": client + 2, "class_counts": [client + 1, 1]},
                "test": {"size": 2, "class_counts": [1, 1]},
                "sha256": "0",
            }
            for client in range(clients)
        ],
        "public": {"size": sum(public), "class_counts": list(public), "sha256": "0"},
        "export": False,
        "files": {},
        "found_at": "",
    }
    return {**content, "digest": sha256(json.dumps(content, sort_keys=True).encode())}


@dataclass
class Bench:
    """Where runs are written. Accuracy of client c in round r is `accuracy` + r / 100; bits are 800 a round and client
    each way from round 2 on; lambda is (client + 1) / 10 from round 2 on."""

    folder: Path

    def write(
        self,
        variant: str = "fedmosaic-entropy",
        seed: int = 0,
        accuracy: float = 0.5,
        *,
        setting: str = "quick",
        rounds: int = 3,
        clients: int = 2,
        data: dict[str, Any] | None = None,
        hyperparameters: dict[str, Any] | None = None,
        manifest: dict[str, Any] | None = None,
        change=lambda row: row,
        name: str = "",
    ) -> Path:
        data = {"public_size": 8, "public_alpha": None, "protocol": "official", **(data or {})}
        manifest = manifest or manifest_of(clients, data)
        lines = [
            change(self.row(variant, accuracy, number, client))
            for number in range(1, rounds + 1)
            for client in range(clients)
        ]
        last = [line["accuracy"] for line in lines[-clients:]]
        summary = {
            "schema": 1,
            "preset": setting,
            "dataset": "digits",
            "scheme": "dirichlet",
            "method": variant.partition("-")[0],
            "variant": variant,
            "hyperparameters": hyperparameters or {},
            "seed": seed,
            "rounds": rounds,
            "model": {"name": "mlp"},
            "train": {"lr": 0.1},
            "shards": {"parameters": data, "digest": manifest["digest"]},
            "accuracy": {"client_mean": sum(last) / clients, "per_client": last},
            "bits": {"up": 1, "down": 1},
            "evaluation": {"clients": "each on its own test part"},
        }
        path = (
            self.folder / (name or f"{setting}-{data}".replace("/", "_")) / variant / f"{hyperparameters}-seed-{seed}"
        )
        path.mkdir(parents=True)
        (path / "config.yaml").write_text("")
        (path / "summary.json").write_text(json.dumps(summary))
        (path / "shards.json").write_bytes(sealed(manifest))
        (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    @staticmethod
    def row(variant: str, accuracy: float, number: int, client: int) -> dict[str, Any]:
        method = variant.partition("-")[0]
        together = method in ("fedmosaic", "fedct") and number > 1
        sends = method not in ("local", "centralized") and number > 1
        bits = None if method == "centralized" else 800 * sends
        row = {
            "round": number,
            "client": client,
            "lambda": None if method != "fedmosaic" else (client + 1) / 10 * together,
            "loss_private": 1 / number,
            "loss_public": 2 / number + client if together else None,
            "accuracy": accuracy + number / 100,
            "test_loss": 1.0,
            "bits_up": bits,
            "bits_down": bits,
        }
        return {**row, "agreement": 1 - 0.4 / number, "pseudo_label_accuracy": 0.5} if together else row
