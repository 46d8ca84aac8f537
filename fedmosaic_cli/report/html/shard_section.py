"""Who holds what: the numbers behind the map of clients and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedmosaic_cli.storage.shard_manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison import Setting

    Distributions = list[dict[str, Any]]

MOST_COUNTS = 1_000_000
"""So many numbers for all shards together: some four million bytes."""
NO_ROOM = "there was no room for it"


def distributions(settings: Sequence[Setting]) -> tuple[list[Distributions], list[str]]:
    """For each setting its shards, one entry a seed, as far as there is room; and what is missing, in words."""
    found, missing, room = [], [], MOST_COUNTS
    for setting in settings:
        entries = []
        for seed, digest in seeds_and_digests(setting):
            where = f"{setting.label}, seed {seed}"
            manifest = manifest_of(setting, digest)
            if manifest is None:
                missing.append(f"{where}: no run kept a manifest of its shards that can be read")
                continue
            room -= len(manifest.class_names) * (len(manifest.clients) + 1)
            if room < 0:
                missing.append(f"{where}: {NO_ROOM}")
            else:
                entries.append({"seed": seed, **distribution(manifest)})
        found.append(entries)
    return found, missing


def seeds_and_digests(setting: Setting) -> list[tuple[int, str]]:
    return sorted(
        {(int(seed), str(digest)) for seed, digest in zip(setting.runs.seed, setting.runs.digest, strict=True)}
    )


def manifest_of(setting: Setting, digest: str) -> Manifest | None:
    """The manifest, if it is one: it may be anybody's file."""
    try:
        manifest = Manifest.model_validate(setting.manifests.get(digest))
    except ValidationError:
        return None
    counts = [manifest.public.class_counts, *(client.train.class_counts for client in manifest.clients)]
    fits = all(part is None or len(part) == len(manifest.class_names) for part in counts)
    return manifest if fits and manifest.clients else None


def distribution(manifest: Manifest) -> dict[str, Any]:
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
