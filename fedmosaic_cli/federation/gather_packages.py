"""Shards from the descriptions of packed sites: a manifest and the public set. The examples stay at the sites."""

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
    make_directories,
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
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedmosaic_cli.federation.site_package import PackageDescription, PublicSet

MANIFEST_SEED = 0


def gathered_manifest(
    packages: Mapping[Path, PackageDescription], public_set: PublicSet, dataset_name: str
) -> dict[str, Any]:
    """Return the manifest of shards whose client files stay at the sites."""
    require_all_clients(packages)
    require_matching_packages(packages, public_set)
    ordered = sorted(packages.values(), key=lambda package: package.client)
    settings = DataSettings(dataset="npz", scheme="natural", clients=len(ordered), public_size=len(public_set.images))
    settings = resolve_data_settings(settings, DataDirs())  # reads no file, since all values are given
    files = {PUBLIC_FILE: public_set.sha256} | {client_file_name(one.client): one.file_sha256 for one in ordered}
    num_held = len(public_set.images) + sum(split.size for one in ordered for split in one.splits().values())
    examples = (len(ordered) + 1) * INDEX_BLOCK_SIZE
    manifest: dict[str, Any] = {
        "schema": SHARD_SCHEMA,
        "dataset": dataset_name,
        "scheme": settings.scheme,
        "protocol": settings.protocol,
        "tested_on": "each client's own test part",
        "parameters": settings.used_parameters(),
        "settings": settings.to_record(),
        "seed": MANIFEST_SEED,
        "class_names": ordered[0].class_names,
        "image_shape": ordered[0].image_shape,
        "examples": examples,
        "source_fingerprint": sha256(json.dumps(files, sort_keys=True).encode()),
        "remarks": missing_class_remarks(ordered),
        "clients": [client_entry(one) for one in ordered],
        "public": {
            "size": len(public_set.images),
            "class_counts": None,
            "sha256": arrays_digest({"index": np.arange(len(public_set.images))}),
        },
        "left_out": examples - num_held,
    }
    manifest |= {"digest": manifest_digest(manifest), "export": True, "files": files, "found_at": ""}
    return manifest


def client_entry(package: PackageDescription) -> dict[str, Any]:
    splits = {name: split.model_dump() for name, split in package.splits().items()}
    return {"id": package.client, "domain": None, "labels_flipped": False, **splits, "sha256": package.sha256}


def missing_class_remarks(packages: list[PackageDescription]) -> list[str]:
    """Return a remark for each class without a training example."""
    counts = np.sum([package.train.class_counts for package in packages], axis=0)
    names = [name for name, count in zip(packages[0].class_names, counts, strict=True) if not count]
    return [f"no client has a training example of '{name}'" for name in names]


def require_all_clients(packages: Mapping[Path, PackageDescription]) -> None:
    """Raise `RequestError` unless clients 0, 1, ... are described once each."""
    paths: dict[int, Path] = {}
    for path, package in packages.items():
        if package.client in paths:
            raise RequestError(
                f"two descriptions of client {package.client} ({paths[package.client]}, {path}): "
                "one of the sites must pack its data with another --client"
            )
        paths[package.client] = path
    missing = sorted(set(range(len(paths))) - set(paths))
    if missing:
        raise RequestError(
            f"clients are {', '.join(map(str, sorted(paths)))}, without client {missing[0]} (fedmosaic federation "
            f"gather): add its description, or number the {len(paths)} clients from 0 to {len(paths) - 1}"
        )


def require_matching_packages(packages: Mapping[Path, PackageDescription], public_set: PublicSet) -> None:
    """Raise `RequestError` unless all packages have the same classes, image shape and public set."""
    first_path, first = next(iter(packages.items()))
    for path, package in packages.items():
        if package.class_names != first.class_names:
            raise RequestError(
                f"{path} has other classes than {first_path}, or another order (--classes): pack all with the same"
            )
        if package.public_sha256 != public_set.sha256:
            raise RequestError(f"{path} was packed with another public set (--public): pack it again with this one")
        if tuple(package.image_shape) != public_set.image_shape:
            raise RequestError(f"{path} has images of another shape than the public set (--public): pack it again")


def save_gathered_shards(path: Path, manifest: dict[str, Any], public_set: PublicSet) -> ShardSet:
    """Write manifest and public set, both or none, for this user only. Existing shards must be the same."""
    if is_occupied(path):
        existing = read_shard_header(path)
        if existing.digest != manifest["digest"]:
            raise RequestError(f"other shards exist here ({path}): choose another --out")
        return existing
    require_free_space(path, len(public_set.npz_bytes), "free some space, or choose another --out")
    make_directories(path.parent)
    with private_files(), atomic_directory(path) as folder:
        write_new_file(folder / PUBLIC_FILE, public_set.npz_bytes)
        write_new_file(folder / SHARD_MANIFEST_FILE, to_checksummed_json(manifest))
    return read_shard_header(path)
