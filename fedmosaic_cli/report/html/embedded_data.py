"""Data that the page embeds as JSON: curves of the runs, and class counts of the shards, up to a size limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.plots.figure_data import valid_manifest
from fedmosaic_cli.report.round_logs import load_round_curves
from fedmosaic_cli.storage.runs import ROUNDS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.round_logs import Matrix
    from fedmosaic_cli.storage.shard_manifest import ShardManifest

    LogProgressCallback = Callable[[int, int], None]
    ShardDistributions = list[dict[str, Any]]

METRIC_TITLES = {
    "accuracy": "Accuracy",
    "lambda": "Trust (lambda)",
    "loss_private": "Private loss",
    "loss_public": "Public loss",
    "test_loss": "Test loss",
    "agreement": "Agreement with the consensus",
    "pseudo_label_accuracy": "Pseudo-label accuracy (oracle)",
    "majority_accuracy": "Accuracy of the unweighted majority (oracle)",
    "public_share": "Share of the public set in the training loss",
    "vote_agreement": "Agreement of the vote with the consensus",
    "weight_share": "Share of the total voting weight",
    "reputation": "Reputation",
}
MAX_CURVE_BYTES = 20_000_000
"""JSON size of the curves of all runs."""
MAX_TOTAL_LOG_BYTES = 300_000_000
"""Size of the logs that are read, which takes about ten seconds."""
MAX_KEPT_ROUNDS, MIN_KEPT_ROUNDS, MAX_POINTS_PER_METRIC = 100, 20, 60_000
"""Rounds kept per run, and points kept per metric over all clients of a run."""
CURVE_BUDGET_EXCEEDED = "left out to limit the size of the page"
MAX_CLASS_COUNTS = 1_000_000
"""Class counts of all shards, about four megabytes."""


@dataclass(frozen=True)
class EmbeddedCurves:
    """The curves of runs as JSON, the reasons why others are left out, and the number of runs with left-out rounds."""

    json_by_path: dict[Path, str]
    omitted: dict[Path, str]
    num_subsampled: int


def embed_curves(
    groups: Sequence[ComparisonGroup], on_progress: LogProgressCallback | None = None, max_bytes: int = MAX_CURVE_BYTES
) -> EmbeddedCurves:
    """Read the curves of the runs that fit into the size limits, the first seed of each method first."""
    paths = run_paths_by_seed_order(groups)
    readable, omitted = select_logs_by_size(paths, MAX_TOTAL_LOG_BYTES)
    json_by_path: dict[Path, str] = {}
    remaining_bytes, num_subsampled = max_bytes, 0
    for number, path in enumerate(readable):
        if on_progress:
            on_progress(number, len(readable))
        if remaining_bytes <= 0:
            omitted[path] = CURVE_BUDGET_EXCEEDED
            continue
        try:
            curves = load_round_curves(path)
        except (RequestError, OSError) as error:
            omitted[path] = str(error)
            continue
        text, is_subsampled = curves_to_json(curves)
        remaining_bytes -= len(text)
        if remaining_bytes < 0:
            omitted[path] = CURVE_BUDGET_EXCEEDED
        else:
            json_by_path[path] = text
            num_subsampled += is_subsampled
    if on_progress:
        on_progress(len(readable), len(readable))
    return EmbeddedCurves(json_by_path, omitted, num_subsampled)


def run_paths_by_seed_order(groups: Iterable[ComparisonGroup]) -> list[Path]:
    """All runs: the first seed of each method, then the second, and so on."""
    ranked = [
        (rank, path)
        for group in groups
        for runs in group.runs_by_method.values()
        for rank, path in enumerate(runs.sort_values("seed").path)
    ]
    return [path for _, path in sorted(ranked, key=lambda entry: entry[0])]


def select_logs_by_size(paths: Sequence[Path], max_bytes: int) -> tuple[list[Path], dict[Path, str]]:
    """The runs whose logs fit into `max_bytes`, and the reasons why others are left out."""
    readable, omitted = [], {}
    for path in paths:
        try:
            max_bytes -= (path / ROUNDS_FILE).stat().st_size
        except OSError as error:
            omitted[path] = f"the log cannot be read, {error.strerror} ({path / ROUNDS_FILE})"
            continue
        if max_bytes >= 0:
            readable.append(path)
        else:
            omitted[path] = CURVE_BUDGET_EXCEEDED
    return readable, omitted


def curves_to_json(curves: dict[str, Matrix]) -> tuple[str, bool]:
    """The curves as JSON, with one list per client or one for all equal clients, and whether rounds are left out."""
    num_rounds, num_clients = next(iter(curves.values())).shape
    kept = subsampled_rounds(num_rounds, num_clients)
    parts = []
    for name in METRIC_TITLES:
        matrix = curves.get(name)
        if matrix is None or not np.isfinite(matrix).any():
            continue
        if np.array_equal(matrix, matrix[:, :1].repeat(num_clients, axis=1), equal_nan=True):
            matrix = matrix[:, :1]
        parts.append(f'"{name}":[{",".join(map(floats_to_json, matrix[kept].T))}]')
    rounds = ",".join(map(str, kept + 1))
    return f'{{"rounds":[{rounds}],"clients":{num_clients},"values":{{{",".join(parts)}}}}}', len(kept) < num_rounds


def subsampled_rounds(num_rounds: int, num_clients: int) -> NDArray[np.int64]:
    """Indices of the rounds to keep: the first, the last, and evenly spaced rounds between them."""
    max_rounds = min(MAX_KEPT_ROUNDS, max(MIN_KEPT_ROUNDS, MAX_POINTS_PER_METRIC // num_clients))
    if num_rounds <= max_rounds:
        return np.arange(num_rounds)
    return np.unique(np.linspace(0, num_rounds - 1, max_rounds).round().astype(np.int64))


def floats_to_json(values: NDArray[np.float64]) -> str:
    """A JSON list with four significant digits; NaN and infinity are null. One format string makes it fast."""
    text = ",".join(["%.4g"] * len(values)) % tuple(values.tolist())
    if not np.isfinite(values).all():
        text = ",".join(part if part[-1].isdigit() else "null" for part in text.split(","))
    return f"[{text}]"


def shard_distributions(groups: Sequence[ComparisonGroup]) -> tuple[list[ShardDistributions], list[str]]:
    """The class distributions of each group, one entry per seed, and notes on those that are missing."""
    distributions, notes, remaining = [], [], MAX_CLASS_COUNTS
    for group in groups:
        entries = []
        for seed, digest in sorted(set(zip(map(int, group.runs.seed), map(str, group.runs.digest), strict=True))):
            manifest = valid_manifest(group, digest)
            if manifest is None:
                notes.append(f"{group.label}, seed {seed}: no run contains a valid shard manifest")
                continue
            remaining -= len(manifest.class_names) * (len(manifest.clients) + 1)
            if remaining < 0:
                notes.append(f"{group.label}, seed {seed}: left out to limit the size of the page")
            else:
                entries.append({"seed": seed, **shard_distribution(manifest)})
        distributions.append(entries)
    return distributions, notes


def shard_distribution(manifest: ShardManifest) -> dict[str, Any]:
    """Training examples per client and class, and class counts of the public set (None if unknown)."""
    return {
        "classes": manifest.class_names,
        "clients": [client.id for client in manifest.clients],
        "domains": [client.domain or "" for client in manifest.clients],
        "flipped": [client.labels_flipped for client in manifest.clients],
        "noisy": [client.noisy_labels for client in manifest.clients],
        "train": [client.train.class_counts for client in manifest.clients],
        "tests": [client.test.size for client in manifest.clients],
        "public": manifest.public.class_counts,
        "public_size": manifest.public.size,
    }
