"""Shards out of what sites describe: a manifest and the public set. The examples stay where they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.site_package import INDEX_BLOCK_SIZE
from fedmosaic_cli.storage.files import (
    atomic_directory,
    require_free_space,
    sha256,
    to_checksummed_json,
    write_new_file,
)
from fedmosaic_cli.storage.shard_manifest import SHARD_SCHEMA, arrays_digest, manifest_digest
from fedmosaic_cli.storage.shards import (
    PUBLIC_FILE,
    SHARD_MANIFEST_FILE,
    ShardSet,
    client_file_name,
    is_occupied,
    read_shard_header,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedmosaic_cli.federation.site_package import PublicSet, SitePackage

MANIFEST_SEED = 0


def merged_manifest(packages: Mapping[Path, SitePackage], public_set: PublicSet, dataset_name: str) -> dict[str, Any]:
    """The manifest of shards that lie with their sites."""
    require_all_clients(packages)
    require_matching_packages(packages, public_set)
    packed = sorted(packages.values(), key=lambda one: one.client)
    settings = DataSettings(dataset="npz", scheme="natural", clients=len(packed), public_size=len(public_set.images))
    settings = resolve_data_settings(settings, DataDirs())  # nothing is left open, so no file is looked at
    files = {PUBLIC_FILE: public_set.sha256} | {client_file_name(one.client): one.file_sha256 for one in packed}
    held = len(public_set.images) + sum(part.size for one in packed for part in one.splits().values())
    examples = (len(packed) + 1) * INDEX_BLOCK_SIZE
    manifest: dict[str, Any] = {
        "schema": SHARD_SCHEMA,
        "dataset": dataset_name,
        "scheme": settings.scheme,
        "protocol": settings.protocol,
        "tested_on": "each client's own test part",
        "parameters": settings.used_parameters(),
        "settings": settings.to_record(),
        "seed": MANIFEST_SEED,
        "class_names": packed[0].class_names,
        "image_shape": packed[0].image_shape,
        "examples": examples,
        "source_fingerprint": sha256(json.dumps(files, sort_keys=True).encode()),
        "remarks": missing_class_remarks(packed),
        "clients": [client_entry(one) for one in packed],
        "public": {
            "size": len(public_set.images),
            "class_counts": None,
            "sha256": arrays_digest({"index": np.arange(len(public_set.images))}),
        },
        "left_out": examples - held,
    }
    manifest |= {"digest": manifest_digest(manifest), "export": True, "files": files, "found_at": ""}
    return manifest


def client_entry(package: SitePackage) -> dict[str, Any]:
    parts = {name: part.model_dump() for name, part in package.splits().items()}
    return {"id": package.client, "domain": None, "labels_flipped": False, **parts, "sha256": package.sha256}


def missing_class_remarks(packages: list[SitePackage]) -> list[str]:
    """Classes that nobody could learn or teach."""
    counts = np.sum([one.train.class_counts for one in packages], axis=0)
    names = [name for name, count in zip(packages[0].class_names, counts, strict=True) if not count]
    return [f"no client has a training example of '{name}'" for name in names]


def require_all_clients(packages: Mapping[Path, SitePackage]) -> None:
    """Everybody is there, once."""
    paths: dict[int, Path] = {}
    for path, packed in packages.items():
        if packed.client in paths:
            raise RequestError(
                f"both describe client {packed.client} ({paths[packed.client]}, {path}): "
                "have one of the sites pack its data under another --client"
            )
        paths[packed.client] = path
    missing = sorted(set(range(len(paths))) - set(paths))
    if missing:
        raise RequestError(
            f"clients are {', '.join(map(str, sorted(paths)))}, without client {missing[0]} (fedmosaic federation "
            f"gather): add its description, or number the {len(paths)} from 0 to {len(paths) - 1}"
        )


def require_matching_packages(packages: Mapping[Path, SitePackage], public_set: PublicSet) -> None:
    """All speak of the same classes, images and public set."""
    first_path, first = next(iter(packages.items()))
    for path, packed in packages.items():
        if packed.class_names != first.class_names:
            raise RequestError(
                f"{path} has other classes than {first_path}, or in another order (--classes): pack anew, all alike"
            )
        if packed.public_sha256 != public_set.sha256:
            raise RequestError(f"{path} was packed with another public set (--public): pack it anew with this one")
        if tuple(packed.image_shape) != public_set.image_shape:
            raise RequestError(f"{path} has images of another shape than the public set (--public): pack it anew")


def save_merged_shards(path: Path, manifest: dict[str, Any], public_set: PublicSet) -> ShardSet:
    """Write manifest and public set, both or none. Shards that are there already must be the same."""
    if is_occupied(path):
        there = read_shard_header(path)
        if there.digest != manifest["digest"]:
            raise RequestError(f"other shards are here already ({path}): choose another --out")
        return there
    require_free_space(path, len(public_set.npz_bytes), "make room or choose another --out")
    with atomic_directory(path) as folder:
        write_new_file(folder / PUBLIC_FILE, public_set.npz_bytes)
        write_new_file(folder / SHARD_MANIFEST_FILE, to_checksummed_json(manifest))
    return read_shard_header(path)
