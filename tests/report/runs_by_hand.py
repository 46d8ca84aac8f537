"""Run directories with the files that a report reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmosaic_cli.storage.files import sha256, to_checksummed_json

CLASSES = ("cat", "dog")


def summary_of(setting: str, variant: str, seed: int, accuracies: Sequence[float], **changes: Any) -> dict[str, Any]:
    """Return the summary of a finished run."""
    return {
        "schema": 1,
        "preset": setting,
        "dataset": "digits",
        "scheme": "dirichlet",
        "method": variant.partition("-")[0],
        "variant": variant,
        "hyperparameters": {},
        "seed": seed,
        "rounds": 30,
        "model": {"name": "mlp"},
        "train": {"lr": 0.1},
        "accuracy": {"client_mean": sum(accuracies) / len(accuracies), "per_client": list(accuracies)},
        "bits": {"up": 800, "down": 200},
        "device": "cpu",
        "evaluation": {"clients": "each on its own test part"},
        **changes,
    }


def manifest_of(
    train: Sequence[Sequence[int]],
    *,
    classes: Sequence[str] = CLASSES,
    domains: Sequence[str] = (),
    flipped: Sequence[int] = (),
    public: Sequence[int] = (3, 5),
    seed: int = 0,
    parameters: dict[str, Any] | None = None,
    digest: str = "",
) -> dict[str, Any]:
    """Return a shard manifest with the given numbers of training examples per client and class."""
    content = {
        "schema": 3,
        "dataset": "digits",
        "scheme": "dirichlet",
        "protocol": "official",
        "tested_on": "a part of each client's share",
        "parameters": parameters or {},
        "seed": seed,
        "class_names": list(classes),
        "image_shape": [8, 8, 1],
        "examples": 1000,
        "left_out": 0,
        "source_fingerprint": "none",
        "clients": [
            {
                "id": client,
                "domain": domains[client] if domains else None,
                "labels_flipped": client in flipped,
                "train": part_of(counts),
                "test": part_of([1] * len(classes)),
                "sha256": "0",
            }
            for client, counts in enumerate(train)
        ],
        "public": {**part_of(public), "sha256": "0"},
        "export": False,
        "files": {},
        "found_at": "",
    }
    return {**content, "digest": digest or sha256(json.dumps(content, sort_keys=True).encode())}


def part_of(counts: Sequence[int]) -> dict[str, Any]:
    return {"size": max(1, sum(counts)), "class_counts": list(counts)}


def write_run(
    folder: Path,
    summary: dict[str, Any],
    manifest: dict[str, Any],
    rows: Sequence[dict[str, Any]] = (),
    config: str = "",
) -> Path:
    """Write the files of a finished run."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "shards.json").write_bytes(to_checksummed_json(manifest))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def few_each(clients: int) -> list[list[int]]:
    """Return class counts: client i has i + 1 cats and one dog."""
    return [[client + 1, 1] for client in range(clients)]


@dataclass
class Bench:
    """Writes runs with logs. The accuracy in round r is `accuracy` + r / 100. From round 2 on, each client sends and
    receives 800 bits per round and has lambda (client + 1) / 10."""

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
        manifest = manifest or manifest_of(few_each(clients), parameters=data)
        lines = [
            change(self.row(variant, accuracy, number, client))
            for number in range(1, rounds + 1)
            for client in range(clients)
        ]
        summary = summary_of(
            setting,
            variant,
            seed,
            [line["accuracy"] for line in lines[-clients:]],
            rounds=rounds,
            hyperparameters=hyperparameters or {},
            shards={"parameters": data, "digest": manifest["digest"]},
        )
        place = name or f"{setting}-{data}".replace("/", "_")
        return write_run(self.folder / place / variant / f"{hyperparameters}-seed-{seed}", summary, manifest, lines)

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
