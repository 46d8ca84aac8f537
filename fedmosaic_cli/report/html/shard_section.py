"""Who holds what: the numbers behind the map of clients and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedmosaic_cli.storage.shard_manifest import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup

    ShardDistributions = list[dict[str, Any]]

MAX_CLASS_COUNTS = 1_000_000
"""So many numbers for all shards together: some four million bytes."""
COUNT_BUDGET_EXCEEDED = "there was no room for it"


def shard_distributions(groups: Sequence[ComparisonGroup]) -> tuple[list[ShardDistributions], list[str]]:
    """For each setting its shards, one entry a seed, as far as there is room; and what is missing, in words."""
    found, missing, room = [], [], MAX_CLASS_COUNTS
    for setting in groups:
        entries = []
        for seed, digest in seeds_and_digests(setting):
            where = f"{setting.label}, seed {seed}"
            manifest = valid_manifest(setting, digest)
            if manifest is None:
                missing.append(f"{where}: no run kept a manifest of its shards that can be read")
                continue
            room -= len(manifest.class_names) * (len(manifest.clients) + 1)
            if room < 0:
                missing.append(f"{where}: {COUNT_BUDGET_EXCEEDED}")
            else:
                entries.append({"seed": seed, **shard_distribution(manifest)})
        found.append(entries)
    return found, missing


def seeds_and_digests(group: ComparisonGroup) -> list[tuple[int, str]]:
    return sorted({(int(seed), str(digest)) for seed, digest in zip(group.runs.seed, group.runs.digest, strict=True)})


def valid_manifest(group: ComparisonGroup, digest: str) -> ShardManifest | None:
    """The manifest, if it is one: it may be anybody's file."""
    try:
        manifest = ShardManifest.model_validate(group.manifests_by_digest.get(digest))
    except ValidationError:
        return None
    counts = [manifest.public.class_counts, *(client.train.class_counts for client in manifest.clients)]
    fits = all(part is None or len(part) == len(manifest.class_names) for part in counts)
    return manifest if fits and manifest.clients else None


def shard_distribution(manifest: ShardManifest) -> dict[str, Any]:
    """Training examples by client and class, and those of the public set, whose classes nobody need know."""
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
