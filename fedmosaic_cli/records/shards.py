"""A partition on disk: a manifest, an index file a client, the public set's index, and the counts to look at."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.data.partition import Partition, Shard
from fedmosaic_cli.data.settings import DataSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.records.files import new_directory, read_json, sha256, write, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset

    Index = NDArray[np.int64]
    Draw = Callable[[list[list[int]], Sequence[str], str], bytes]

SCHEMA = 1
MANIFEST = "manifest.json"
PUBLIC = "public.npz"


@dataclass(frozen=True)
class Shards:
    """A partition together with its manifest, and where it lies."""

    path: Path
    manifest: dict[str, Any]
    partition: Partition

    @property
    def digest(self) -> str:
        digest: str = self.manifest["digest"]
        return digest

    def test_sizes(self) -> list[int]:
        return [client["test"]["size"] for client in self.manifest["clients"]]


def default_path(name: str, seed: int) -> Path:
    """Where shards go when nobody says otherwise."""
    return Path("shards") / f"{name}-s{seed}"


def client_file(client: int) -> str:
    return f"client-{client:03d}.npz"


def describe(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """The manifest: everything that one may want to know without opening another file, and a digest of it all."""

    def part(index: Index, flipped: bool = False) -> dict[str, Any]:
        counts = dataset.class_counts(index)
        return {"size": len(index), "class_counts": counts[::-1] if flipped else counts}

    manifest = {
        "schema": SCHEMA,
        "dataset": dataset.name,
        "scheme": partition.settings.scheme,
        "parameters": partition.settings.parameters(),
        "settings": partition.settings.model_dump(mode="json"),
        "seed": partition.seed,
        "class_names": list(dataset.class_names),
        "source_fingerprint": dataset.fingerprint,
        "clients": [
            {
                "id": shard.client,
                "domain": shard.domain,
                "labels_flipped": shard.flipped,
                "train": part(shard.train, shard.flipped),
                "test": part(shard.test, shard.flipped),
                "sha256": index_digest(shard.train, shard.test),
            }
            for shard in partition.shards
        ],
        "public": {**part(partition.public), "sha256": index_digest(partition.public)},
    }
    held = sum(len(shard.train) + len(shard.test) for shard in partition.shards) + len(partition.public)
    manifest["left_out"] = len(dataset) - held
    return {**manifest, "digest": manifest_digest(manifest)}


def save(path: Path, dataset: Dataset, partition: Partition, draw: Draw) -> Shards:
    """Write the shards under `path`, whole or not at all. Shards that are there already must be the same."""
    shards = Shards(path, describe(dataset, partition), partition)
    if is_taken(path):
        return the_same(shards)
    counts = client_counts(shards.manifest)
    title = f"{dataset.name}, {partition.settings.scheme}: examples of {len(counts)} clients"
    try:
        with new_directory(path) as folder:
            for shard in partition.shards:
                write(folder / client_file(shard.client), to_npz(train=shard.train, test=shard.test))
            write(folder / PUBLIC, to_npz(index=partition.public))
            write(folder / "distribution.csv", distribution_csv(shards.manifest))
            write(folder / "distribution.png", draw(counts, dataset.class_names, title))
            write_json(folder / MANIFEST, shards.manifest)
    except OSError:
        if is_taken(path):  # another process was faster
            return the_same(shards)
        raise
    return shards


def is_taken(path: Path) -> bool:
    """Whether there is something under this name that must not be written over."""
    if path.resolve() == Path.cwd():
        raise RequestError(f"shards need a directory of their own ({path}): name one that does not exist yet")
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def the_same(wanted: Shards) -> Shards:
    """Shards that are there already, if they are the wanted ones."""
    if not (wanted.path / MANIFEST).is_file():
        raise RequestError(f"there is something else under this name ({wanted.path}): choose another --out")
    if load(wanted.path).digest != wanted.digest:
        raise RequestError(f"other shards are here already ({wanted.path}): choose another --out")
    return wanted


def load(path: Path) -> Shards:
    """Read shards and check that they are what was written."""
    if not (path / MANIFEST).is_file():
        raise RequestError(f"no shards here ({path}): make them with 'fedmosaic partition --out {path}'")
    manifest = read_json(path / MANIFEST)
    damaged = RequestError(f"the manifest does not match its digest ({path / MANIFEST}): make the shards anew")
    try:
        if manifest["schema"] != SCHEMA:
            raise RequestError(f"schema {manifest['schema']} is not {SCHEMA} ({path / MANIFEST}): make the shards anew")
        claimed = manifest["digest"]
        if claimed != manifest_digest({key: value for key, value in manifest.items() if key != "digest"}):
            raise damaged
        settings = DataSettings(**manifest["settings"])
        shards = tuple(load_client(path, entry) for entry in manifest["clients"])
        public = load_indices(path / PUBLIC, ["index"], manifest["public"]["sha256"])[0]
        return Shards(path, manifest, Partition(settings, manifest["seed"], shards, public))
    except (KeyError, TypeError, AttributeError, ValidationError):
        raise damaged from None


def load_client(path: Path, entry: dict[str, Any]) -> Shard:
    train, test = load_indices(path / client_file(entry["id"]), ["train", "test"], entry["sha256"])
    return Shard(entry["id"], train, test, entry["domain"], entry["labels_flipped"])


def load_indices(path: Path, names: list[str], digest: str) -> list[Index]:
    """The index arrays of one file."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as content:
            arrays = [content[name] for name in names]
    except FileNotFoundError:
        raise RequestError(f"shard file is missing ({path}): make the shards anew") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise RequestError(f"shard file is damaged ({path}): make the shards anew") from None
    if index_digest(*arrays) != digest:
        raise RequestError(f"shard file does not match the manifest ({path}): make the shards anew")
    return arrays


def to_npz(**arrays: Index) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def index_digest(*arrays: Index) -> str:
    return sha256(b"|".join(np.ascontiguousarray(array, dtype="<i8").tobytes() for array in arrays))


def manifest_digest(manifest: dict[str, Any]) -> str:
    return sha256(json.dumps(manifest, sort_keys=True).encode())


def distribution_csv(manifest: dict[str, Any]) -> bytes:
    """The examples of each client, by class."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["client", "domain", *manifest["class_names"]])
    for client, counts in zip(manifest["clients"], client_counts(manifest), strict=True):
        table.writerow([client["id"], client["domain"] or "", *counts])
    return text.getvalue().encode()


def client_counts(manifest: dict[str, Any]) -> list[list[int]]:
    """Training and test examples together, by client and class."""
    return [
        [sum(pair) for pair in zip(client["train"]["class_counts"], client["test"]["class_counts"], strict=True)]
        for client in manifest["clients"]
    ]
