"""A partition on disk: a manifest, an index file a client, the public set's index, and the counts to look at."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.io.npz_files import read_arrays
from fedmosaic_cli.data.partitioning.partition import Partition, Shard, nothing
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import check_room, new_directory, put, read_json, read_sealed, sealed, sha256
from fedmosaic_cli.storage.shard_manifest import (
    PARTS,
    SCHEMA,
    Manifest,
    arrays_digest,
    distribution_csv,
    index_arrays,
    manifest_digest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import Watch
    from fedmosaic_cli.data.dataset import Dataset

    Index = NDArray[np.int64]
    Arrays = dict[str, NDArray[Any]]
    Pictures = Callable[[dict[str, Any]], dict[str, bytes]]

MANIFEST = "manifest.json"
PUBLIC = "public.npz"
# What a manifest that makes no sense may end in.
NONSENSE = (KeyError, TypeError, AttributeError, ValueError, OverflowError, ValidationError)


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

    @property
    def exported(self) -> bool:
        """Whether the examples themselves are in the shards."""
        return self.manifest["export"] is True

    def test_sizes(self) -> list[int]:
        return [client["test"]["size"] for client in self.manifest["clients"]]


def default_path(name: str, seed: int) -> Path:
    """Where shards go when nobody says otherwise."""
    return Path("shards") / f"{name}-s{seed}"


def client_file(client: int) -> str:
    return f"client-{client:03d}.npz"


def save(shards: Shards, dataset: Dataset, pictures: Pictures, export: bool, watch: Watch) -> Shards:
    """Write the shards, whole or not at all. Shards that are there already must be the same.

    `pictures` draws files from a manifest. With `export` the examples are written too, so that another machine can
    train on the shards without the data set; the public set's labels are not.
    """
    if is_taken(shards.path):
        return the_same(shards, export)
    manifest: dict[str, Any] = {**shards.manifest, "export": export, "files": {}}
    if export:  # where the data lay is nobody's business on another machine
        manifest["found_at"] = ""
        held = len(dataset) - manifest["left_out"]
        check_room(shards.path, held * dataset.images[0].nbytes, "make room or choose another --out")
    try:
        with new_directory(shards.path) as folder:
            for number, shard in enumerate(shards.partition.shards, start=1):
                watch("writing shards", number, len(shards.partition.shards))
                examples = client_examples(dataset, shard) if export else {}
                add(folder / client_file(shard.client), to_npz({**index_arrays(shard), **examples}), manifest)
            examples = public_examples(dataset, shards.partition.public) if export else {}
            add(folder / PUBLIC, to_npz({"index": shards.partition.public, **examples}), manifest)
            add(folder / "distribution.csv", distribution_csv(manifest), manifest)
            for name, content in pictures(manifest).items():
                add(folder / name, content, manifest)
            put(folder / MANIFEST, sealed(manifest))
    except OSError:
        if is_taken(shards.path):  # another process was faster
            return the_same(shards, export)
        raise
    return Shards(shards.path, manifest, shards.partition)


def client_examples(dataset: Dataset, shard: Shard) -> Arrays:
    """The examples of a client, with the labels that it believes in."""
    arrays: Arrays = {}
    for part, index in shard.parts().items():
        arrays |= {f"{part}_images": dataset.images[index], f"{part}_labels": shard.labels(part, dataset)}
    return arrays


def public_examples(dataset: Dataset, public: Index) -> Arrays:
    return {"images": dataset.images[public]}


def add(path: Path, content: bytes, manifest: dict[str, Any]) -> None:
    """Write a file of the shards, and its digest into the manifest."""
    put(path, content)
    manifest["files"][path.name] = sha256(content)


def to_npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    content: dict[str, Any] = arrays
    np.savez(buffer, **content)
    return buffer.getvalue()


def is_taken(path: Path) -> bool:
    """Whether there is something under this name that must not be written over."""
    if path.resolve() == Path.cwd():
        raise RequestError(f"shards need a directory of their own ({path}): name one that does not exist yet")
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def the_same(wanted: Shards, export: bool) -> Shards:
    """Shards that are there already, if they are the wanted ones."""
    if not (wanted.path / MANIFEST).is_file():
        raise RequestError(f"there is something else under this name ({wanted.path}): choose another --out")
    there = load(wanted.path)
    if there.digest != wanted.digest:
        raise RequestError(f"other shards are here already ({wanted.path}): choose another --out")
    if export and not there.exported:
        raise RequestError(f"the same shards are here without the examples ({wanted.path}): choose another --out")
    return there


def load(path: Path) -> Shards:
    """Read shards and check that they are what was written."""
    described = read_description(path)
    manifest, settings = described.manifest, described.partition.settings
    try:
        shards = tuple(load_client(path, entry, manifest) for entry in manifest["clients"])
        partition = replace(described.partition, shards=shards)
        if [shard.client for shard in shards] != list(range(settings.clients or 0)):
            raise damaged(path)
        check_disjoint(path, partition, manifest["examples"])
        check_public(described)
        for shard, entry in zip(shards, manifest["clients"], strict=True):
            for name, index in shard.parts().items():
                check_counts(entry[name], index, manifest)
        return Shards(path, manifest, partition)
    except NONSENSE:
        raise damaged(path) from None


def read_description(path: Path) -> Shards:
    """What the manifest tells and what is public, without any client's file."""
    if not (path / MANIFEST).is_file():
        raise RequestError(
            f"no shards here ({path}): make them with 'fedmosaic partition --scheme dirichlet --out {path}'"
        )
    manifest = read_json(path / MANIFEST)
    try:
        schema = manifest["schema"]
        if type(schema) is not int:
            raise damaged(path)
        if schema != SCHEMA:
            raise RequestError(f"schema {schema} is not {SCHEMA} ({path / MANIFEST}): make the shards anew")
        manifest = read_sealed(path / MANIFEST)
        if manifest["digest"] != manifest_digest(manifest):
            raise damaged(path)
        Manifest.model_validate(manifest)
        settings = DataSettings(**manifest["settings"])
        public = load_arrays(path / PUBLIC, ["index"], manifest)["index"]
        check_digest(path / PUBLIC, {"index": public}, manifest["public"]["sha256"])
        return Shards(path, manifest, Partition(settings, manifest["seed"], (), public))
    except NONSENSE:
        raise damaged(path) from None


def check_public(shards: Shards) -> None:
    """The public set is as large as it should be, and its classes are counted where somebody knows them."""
    described, size = shards.manifest["public"], len(shards.partition.public)
    if not described["size"] == size == shards.partition.settings.public_size:
        raise damaged(shards.path)
    if described["class_counts"] is not None:
        check_counts(described, shards.partition.public, shards.manifest)


def damaged(path: Path) -> RequestError:
    return RequestError(f"the manifest does not match its digest ({path / MANIFEST}): make the shards anew")


def load_client(path: Path, entry: dict[str, Any], manifest: dict[str, Any]) -> Shard:
    names = [name for name in PARTS if name in entry]
    noise = ["noisy_labels"] if "noisy_labels" in entry else []
    arrays = load_arrays(path / client_file(entry["id"]), names + noise, manifest)
    check_digest(path / client_file(entry["id"]), arrays, entry["sha256"])
    labels = arrays.get("noisy_labels")
    if labels is not None and (labels.dtype != np.int64 or labels.shape != arrays["train"].shape):
        raise ValueError("labels for other examples")
    if labels is not None and len(labels) and not 0 <= labels.min() <= labels.max() < len(manifest["class_names"]):
        raise ValueError("labels of other classes")
    return Shard(
        client=entry["id"],
        train=arrays["train"],
        test=arrays["test"],
        validation=arrays.get("val", nothing()),
        domain=entry["domain"],
        flipped=entry["labels_flipped"],
        noisy_labels=labels,
    )


def load_arrays(path: Path, names: list[str], manifest: dict[str, Any]) -> Arrays:
    """The named arrays of one file, which is the one that the manifest tells of."""
    try:
        if sha256(path.read_bytes() if path.is_file() or not path.exists() else b"") != manifest["files"][path.name]:
            raise ValueError("another file")
        return read_arrays(path, lambda _: names, always_allowed=0)
    except FileNotFoundError:
        raise RequestError(f"shard file is missing ({path}): make the shards anew") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive fails in any way it likes
        raise RequestError(f"shard file is damaged ({path}): make the shards anew") from None


def check_digest(path: Path, arrays: Arrays, digest: str) -> None:
    if arrays_digest(arrays) != digest:
        raise RequestError(f"shard file does not match the manifest ({path}): make the shards anew")


def check_counts(described: dict[str, Any], index: Index, manifest: dict[str, Any]) -> None:
    """A part is as large as the manifest says, and its classes are counted."""
    counts = described["class_counts"]
    if not described["size"] == len(index) == sum(counts) or len(counts) != len(manifest["class_names"]):
        raise ValueError("a part of another size")


def check_disjoint(path: Path, partition: Partition, examples: int) -> None:
    """No index out of range, out of order, or in two places; the first that is gets named with its owners."""
    parts = {PUBLIC: partition.public}
    for shard in partition.shards:
        parts |= {f"{client_file(shard.client)} ({name})": index for name, index in shard.parts().items()}
    for name, index in parts.items():
        # Compared, not subtracted: a difference of two very large numbers may be any number.
        if index.dtype != np.int64 or index.ndim != 1 or np.any(index[1:] <= index[:-1]):
            raise RequestError(f"indices are not sorted whole numbers in {name} ({path}): make the shards anew")
        if len(index) and not 0 <= index[0] <= index[-1] < examples:
            wrong = index[-1] if index[0] >= 0 else index[0]
            raise RequestError(
                f"index {wrong} in {name} is not one of {examples} examples ({path}): make the shards anew"
            )
    everything = np.sort(np.concatenate(list(parts.values())))
    repeated = everything[1:][everything[1:] == everything[:-1]]
    if len(repeated):
        twice = int(repeated[0])
        owners = [name for name, index in parts.items() if twice in index]
        raise RequestError(f"example {twice} is in both {owners[0]} and {owners[1]} ({path}): make the shards anew")
