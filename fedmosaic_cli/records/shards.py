"""A partition on disk: a manifest, an index file a client, the public set's index, and the counts to look at."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.data.partition import Partition, Shard, nothing, test_fraction
from fedmosaic_cli.data.schemes import least_size
from fedmosaic_cli.data.settings import DataSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.files import new_directory, read_json, sha256, to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.place import Watch

    Index = NDArray[np.int64]
    Arrays = dict[str, NDArray[Any]]
    Pictures = Callable[[dict[str, Any]], dict[str, bytes]]

SCHEMA = 2
MANIFEST = "manifest.json"
PUBLIC = "public.npz"
PARTS = ("train", "test", "val")
# What says where the shards were made and what else lies beside them; the digest stands for the partition alone.
NOT_IN_DIGEST = ("digest", "export", "found_at", "remarks")


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
        return self.manifest["export"] is not None

    def test_sizes(self) -> list[int]:
        return [client["test"]["size"] for client in self.manifest["clients"]]


def default_path(name: str, seed: int) -> Path:
    """Where shards go when nobody says otherwise."""
    return Path("shards") / f"{name}-s{seed}"


def client_file(client: int) -> str:
    return f"client-{client:03d}.npz"


def describe(dataset: Dataset, partition: Partition, found_at: str = "") -> dict[str, Any]:
    """The manifest: everything that one may want to know without opening another file, and a digest of it all."""
    settings = partition.settings
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": dataset.name,
        "scheme": settings.scheme,
        "protocol": settings.protocol,
        "tested_on": tested_on(dataset, settings),
        "parameters": parameters_of(dataset, settings),
        "settings": settings.model_dump(mode="json"),
        "seed": partition.seed,
        "class_names": list(dataset.class_names),
        "image_shape": list(dataset.images.shape[1:]),
        "examples": len(dataset),
        "source_fingerprint": dataset.fingerprint,
        "remarks": list(dataset.remarks),
        "clients": [describe_client(dataset, shard) for shard in partition.shards],
        "public": {
            "size": len(partition.public),
            "class_counts": class_counts(dataset.labels[partition.public], dataset),
            "sha256": arrays_digest({"index": partition.public}),
        },
    }
    held = sum(len(part) for shard in partition.shards for part in shard.parts().values()) + len(partition.public)
    manifest["left_out"] = len(dataset) - held
    return {**manifest, "digest": manifest_digest(manifest), "export": None, "found_at": found_at}


def parameters_of(dataset: Dataset, settings: DataSettings) -> dict[str, Any]:
    """What decided the split, with the share for testing where one was held out."""
    parameters: dict[str, Any] = settings.parameters()
    if "test_fraction" in parameters and (dataset.test is None or settings.protocol == "pfllib"):
        parameters["test_fraction"] = test_fraction(settings)
    if "min_size" in parameters:
        parameters["min_size"] = least_size(settings, len(dataset) - (settings.public_size or 0))
    return parameters


def tested_on(dataset: Dataset, settings: DataSettings) -> str:
    """Where test examples come from, in words."""
    if settings.protocol == "pfllib":
        merged = "" if dataset.test is None else ", after training and test part were thrown together"
        return f"a part of each client's share, drawn anyhow{merged}"
    if settings.protocol == "fedbn":
        return f"all of the client's domain in {dataset.test_origin}"
    if dataset.test is None:
        return "a part of each client's share, with its mix of classes"
    if settings.scheme == "natural":
        return "each client's own test part"
    return f"{dataset.test_origin}, dealt by each client's mix of classes"


def describe_client(dataset: Dataset, shard: Shard) -> dict[str, Any]:
    """A client's entry: its parts, their sizes and classes as the client sees them, and a digest of its file."""
    parts = {
        part: {"size": len(index), "class_counts": class_counts(shard.labels(part, dataset), dataset)}
        for part, index in shard.parts().items()
    }
    entry: dict[str, Any] = {"id": shard.client, "domain": shard.domain, "labels_flipped": shard.flipped, **parts}
    if shard.noisy_labels is not None:
        truth = replace(shard, noisy_labels=None).labels("train", dataset)
        entry["noisy_labels"] = int((truth != shard.noisy_labels).sum())
    return {**entry, "sha256": arrays_digest(index_arrays(shard))}


def class_counts(labels: Index, dataset: Dataset) -> list[int]:
    counts: list[int] = np.bincount(labels, minlength=dataset.num_classes).tolist()
    return counts


def index_arrays(shard: Shard) -> Arrays:
    """What a client's file always holds."""
    noise = {} if shard.noisy_labels is None else {"noisy_labels": shard.noisy_labels}
    return {**shard.parts(), **noise}


def save(shards: Shards, dataset: Dataset, pictures: Pictures, export: bool, watch: Watch) -> Shards:
    """Write the shards, whole or not at all. Shards that are there already must be the same.

    `pictures` draws files from a manifest. With `export` the examples are written too, so that another machine can
    train on the shards without the data set; the public set's labels are not.
    """
    if is_taken(shards.path):
        return the_same(shards, export)
    manifest = shards.manifest
    if export:
        # Where the data lay is nobody's business on another machine.
        manifest = {**manifest, "export": {}, "found_at": ""}
    try:
        with new_directory(shards.path) as folder:
            for number, shard in enumerate(shards.partition.shards, start=1):
                watch("writing shards", number, len(shards.partition.shards))
                examples = client_examples(dataset, shard) if export else {}
                write_npz(folder / client_file(shard.client), index_arrays(shard), examples, manifest["export"])
            examples = public_examples(dataset, shards.partition.public) if export else {}
            write_npz(folder / PUBLIC, {"index": shards.partition.public}, examples, manifest["export"])
            (folder / "distribution.csv").write_bytes(distribution_csv(manifest))
            for name, content in pictures(manifest).items():
                (folder / name).write_bytes(content)
            (folder / MANIFEST).write_bytes(to_json(manifest))
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


def write_npz(path: Path, index: Arrays, examples: Arrays, digests: dict[str, str] | None) -> None:
    """One file of the shards; the digest of its examples goes into `digests`."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**index, **examples}
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getvalue())
    if digests is not None:
        digests[path.name] = arrays_digest(examples)


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
    if not (path / MANIFEST).is_file():
        raise RequestError(
            f"no shards here ({path}): make them with 'fedmosaic partition --scheme dirichlet --out {path}'"
        )
    manifest = read_json(path / MANIFEST)
    damaged = RequestError(f"the manifest does not match its digest ({path / MANIFEST}): make the shards anew")
    try:
        if manifest["schema"] != SCHEMA:
            raise RequestError(f"schema {manifest['schema']} is not {SCHEMA} ({path / MANIFEST}): make the shards anew")
        if manifest["digest"] != manifest_digest(manifest):
            raise damaged
        settings = DataSettings(**manifest["settings"])
        shards = tuple(load_client(path, entry) for entry in manifest["clients"])
        public = load_arrays(path / PUBLIC, ["index"], manifest["public"]["sha256"])["index"]
        partition = Partition(settings, manifest["seed"], shards, public)
        check_disjoint(path, partition, manifest["examples"])
        return Shards(path, {"export": None, **manifest}, partition)
    except (KeyError, TypeError, AttributeError, ValueError, ValidationError):
        raise damaged from None


def load_client(path: Path, entry: dict[str, Any]) -> Shard:
    names = [name for name in PARTS if name in entry]
    noise = ["noisy_labels"] if "noisy_labels" in entry else []
    arrays = load_arrays(path / client_file(entry["id"]), names + noise, entry["sha256"])
    return Shard(
        client=entry["id"],
        train=arrays["train"],
        test=arrays["test"],
        validation=arrays.get("val", nothing()),
        domain=entry["domain"],
        flipped=entry["labels_flipped"],
        noisy_labels=arrays.get("noisy_labels"),
    )


def load_arrays(path: Path, names: list[str], digest: str) -> Arrays:
    """The named arrays of one file, checked against their digest."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in names}
    except FileNotFoundError:
        raise RequestError(f"shard file is missing ({path}): make the shards anew") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive fails in any way it likes
        raise RequestError(f"shard file is damaged ({path}): make the shards anew") from None
    if arrays_digest(arrays) != digest:
        raise RequestError(f"shard file does not match the manifest ({path}): make the shards anew")
    return arrays


def check_disjoint(path: Path, partition: Partition, examples: int) -> None:
    """No index out of range, out of order, or in two places; the first that is gets named with its owners."""
    parts = {PUBLIC: partition.public}
    for shard in partition.shards:
        parts |= {f"{client_file(shard.client)} ({name})": index for name, index in shard.parts().items()}
    for name, index in parts.items():
        if index.dtype != np.int64 or index.ndim != 1 or np.any(np.diff(index) <= 0):
            raise RequestError(f"indices are not sorted whole numbers in {name} ({path}): make the shards anew")
        if len(index) and not 0 <= index[0] <= index[-1] < examples:
            wrong = index[-1] if index[0] >= 0 else index[0]
            raise RequestError(
                f"index {wrong} in {name} is not one of {examples} examples ({path}): make the shards anew"
            )
    times = np.bincount(np.concatenate(list(parts.values())), minlength=1)
    if times.max() > 1:
        twice = int(np.argmax(times > 1))
        owners = [name for name, index in parts.items() if twice in index]
        raise RequestError(f"example {twice} is in both {owners[0]} and {owners[1]} ({path}): make the shards anew")


def arrays_digest(arrays: Arrays) -> str:
    """Stands for names, types, shapes and values."""
    parts = []
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts += [repr((name, little.dtype.str, little.shape)).encode(), np.ascontiguousarray(little).tobytes()]
    return sha256(b"|".join(parts))


def manifest_digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key not in NOT_IN_DIGEST}
    return sha256(json.dumps(content, sort_keys=True).encode())


def distribution_csv(manifest: dict[str, Any]) -> bytes:
    """The examples of each client, by class."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["client", "domain", *manifest["class_names"]])
    for client, counts in zip(manifest["clients"], client_counts(manifest), strict=True):
        table.writerow([client["id"], client["domain"] or "", *counts])
    return text.getvalue().encode()


def client_counts(manifest: dict[str, Any]) -> list[list[int]]:
    """All parts together, by client and class."""
    return [
        np.sum([client[part]["class_counts"] for part in PARTS if part in client], axis=0).tolist()
        for client in manifest["clients"]
    ]
