"""Shards out of what sites describe: a manifest and the public set. The examples stay where they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.data_dirs import Place
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.resolve_settings import resolve
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.site_package import NUMBERS
from fedmosaic_cli.storage.files import check_room, new_directory, put, sealed, sha256
from fedmosaic_cli.storage.shard_manifest import SCHEMA, arrays_digest, manifest_digest
from fedmosaic_cli.storage.shards import MANIFEST, PUBLIC, Shards, client_file, is_taken, read_description

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedmosaic_cli.federation.site_package import Packed, PublicSet

SEED = 0


def gather(found: Mapping[Path, Packed], public: PublicSet, name: str) -> dict[str, Any]:
    """The manifest of shards that lie with their sites."""
    check_clients(found)
    check_alike(found, public)
    packed = sorted(found.values(), key=lambda one: one.client)
    settings = DataSettings(dataset="npz", scheme="natural", clients=len(packed), public_size=len(public.images))
    settings = resolve(settings, Place())  # nothing is left open, so no file is looked at
    files = {PUBLIC: public.sha256} | {client_file(one.client): one.file_sha256 for one in packed}
    held = len(public.images) + sum(part.size for one in packed for part in one.parts().values())
    examples = (len(packed) + 1) * NUMBERS
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": name,
        "scheme": settings.scheme,
        "protocol": settings.protocol,
        "tested_on": "each client's own test part",
        "parameters": settings.parameters(),
        "settings": settings.recorded(),
        "seed": SEED,
        "class_names": packed[0].class_names,
        "image_shape": packed[0].image_shape,
        "examples": examples,
        "source_fingerprint": sha256(json.dumps(files, sort_keys=True).encode()),
        "remarks": remarks_of(packed),
        "clients": [entry_of(one) for one in packed],
        "public": {
            "size": len(public.images),
            "class_counts": None,
            "sha256": arrays_digest({"index": np.arange(len(public.images))}),
        },
        "left_out": examples - held,
    }
    manifest |= {"digest": manifest_digest(manifest), "export": True, "files": files, "found_at": ""}
    return manifest


def entry_of(packed: Packed) -> dict[str, Any]:
    parts = {name: part.model_dump() for name, part in packed.parts().items()}
    return {"id": packed.client, "domain": None, "labels_flipped": False, **parts, "sha256": packed.sha256}


def remarks_of(packed: list[Packed]) -> list[str]:
    """Classes that nobody could learn or teach."""
    counts = np.sum([one.train.class_counts for one in packed], axis=0)
    names = [name for name, count in zip(packed[0].class_names, counts, strict=True) if not count]
    return [f"no client has a training example of '{name}'" for name in names]


def check_clients(found: Mapping[Path, Packed]) -> None:
    """Everybody is there, once."""
    paths: dict[int, Path] = {}
    for path, packed in found.items():
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


def check_alike(found: Mapping[Path, Packed], public: PublicSet) -> None:
    """All speak of the same classes, images and public set."""
    first_path, first = next(iter(found.items()))
    for path, packed in found.items():
        if packed.class_names != first.class_names:
            raise RequestError(
                f"{path} has other classes than {first_path}, or in another order (--classes): pack anew, all alike"
            )
        if packed.public_sha256 != public.sha256:
            raise RequestError(f"{path} was packed with another public set (--public): pack it anew with this one")
        if tuple(packed.image_shape) != public.shape:
            raise RequestError(f"{path} has images of another shape than the public set (--public): pack it anew")


def save_gathered(path: Path, manifest: dict[str, Any], public: PublicSet) -> Shards:
    """Write manifest and public set, both or none. Shards that are there already must be the same."""
    if is_taken(path):
        there = read_description(path)
        if there.digest != manifest["digest"]:
            raise RequestError(f"other shards are here already ({path}): choose another --out")
        return there
    check_room(path, len(public.content), "make room or choose another --out")
    with new_directory(path) as folder:
        put(folder / PUBLIC, public.content)
        put(folder / MANIFEST, sealed(manifest))
    return read_description(path)
