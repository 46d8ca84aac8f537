"""A partition on disk: a manifest, an index file a client, the public set's index, and the counts to look at."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.io.npz_files import read_npz
from fedmosaic_cli.data.partitioning.partition import Partition, Shard, empty_indices
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import (
    atomic_directory,
    read_checksummed_json,
    read_json,
    require_free_space,
    sha256,
    to_checksummed_json,
    write_new_file,
)
from fedmosaic_cli.storage.shard_manifest import (
    SHARD_SCHEMA,
    SPLITS,
    ShardManifest,
    arrays_digest,
    distribution_csv,
    manifest_digest,
    shard_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]
    ArrayDict = dict[str, NDArray[Any]]
    PlotFunction = Callable[[dict[str, Any]], dict[str, bytes]]

SHARD_MANIFEST_FILE = "manifest.json"
PUBLIC_FILE = "public.npz"
# What a manifest that makes no sense may end in.
INVALID_MANIFEST_ERRORS = (KeyError, TypeError, AttributeError, ValueError, OverflowError, ValidationError)


@dataclass(frozen=True)
class ShardSet:
    """A partition together with its manifest, and where it lies."""

    path: Path
    manifest: dict[str, Any]
    partition: Partition

    @property
    def digest(self) -> str:
        digest: str = self.manifest["digest"]
        return digest

    @property
    def has_examples(self) -> bool:
        """Whether the examples themselves are in the shards."""
        return self.manifest["export"] is True

    def test_sizes(self) -> list[int]:
        return [client["test"]["size"] for client in self.manifest["clients"]]


def default_shards_path(name: str, seed: int) -> Path:
    """Where shards go when nobody says otherwise."""
    return Path("shards") / f"{name}-s{seed}"


def client_file_name(client: int) -> str:
    return f"client-{client:03d}.npz"


def write_shards(
    shards: ShardSet, dataset: Dataset, draw_plots: PlotFunction, export: bool, on_progress: ProgressCallback
) -> ShardSet:
    """Write the shards, whole or not at all. Shards that are there already must be the same.

    `pictures` draws files from a manifest. With `export` the examples are written too, so that another machine can
    train on the shards without the data set; the public set's labels are not.
    """
    if is_occupied(shards.path):
        return require_same_shards(shards, export)
    manifest: dict[str, Any] = {**shards.manifest, "export": export, "files": {}}
    if export:  # where the data lay is nobody's business on another machine
        manifest["found_at"] = ""
        held = len(dataset) - manifest["left_out"]
        require_free_space(shards.path, held * dataset.images[0].nbytes, "make room or choose another --out")
    try:
        with atomic_directory(shards.path) as folder:
            for number, shard in enumerate(shards.partition.shards, start=1):
                on_progress("writing shards", number, len(shards.partition.shards))
                examples = client_example_arrays(dataset, shard) if export else {}
                write_shard_file(
                    folder / client_file_name(shard.client), to_npz_bytes({**shard_arrays(shard), **examples}), manifest
                )
            examples = public_example_arrays(dataset, shards.partition.public) if export else {}
            write_shard_file(
                folder / PUBLIC_FILE, to_npz_bytes({"index": shards.partition.public, **examples}), manifest
            )
            write_shard_file(folder / "distribution.csv", distribution_csv(manifest), manifest)
            for name, content in draw_plots(manifest).items():
                write_shard_file(folder / name, content, manifest)
            write_new_file(folder / SHARD_MANIFEST_FILE, to_checksummed_json(manifest))
    except OSError:
        if is_occupied(shards.path):  # another process was faster
            return require_same_shards(shards, export)
        raise
    return ShardSet(shards.path, manifest, shards.partition)


def client_example_arrays(dataset: Dataset, shard: Shard) -> ArrayDict:
    """The examples of a client, with the labels that it believes in."""
    arrays: ArrayDict = {}
    for part, index in shard.splits().items():
        arrays |= {f"{part}_images": dataset.images[index], f"{part}_labels": shard.split_labels(part, dataset)}
    return arrays


def public_example_arrays(dataset: Dataset, public: IntArray) -> ArrayDict:
    return {"images": dataset.images[public]}


def write_shard_file(path: Path, content: bytes, manifest: dict[str, Any]) -> None:
    """Write a file of the shards, and its digest into the manifest."""
    write_new_file(path, content)
    manifest["files"][path.name] = sha256(content)


def to_npz_bytes(arrays: ArrayDict) -> bytes:
    buffer = io.BytesIO()
    content: dict[str, Any] = arrays
    np.savez(buffer, **content)
    return buffer.getvalue()


def is_occupied(path: Path) -> bool:
    """Whether there is something under this name that must not be written over."""
    if path.resolve() == Path.cwd():
        raise RequestError(f"shards need a directory of their own ({path}): name one that does not exist yet")
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def require_same_shards(wanted: ShardSet, export: bool) -> ShardSet:
    """Shards that are there already, if they are the wanted ones."""
    if not (wanted.path / SHARD_MANIFEST_FILE).is_file():
        raise RequestError(f"there is something else under this name ({wanted.path}): choose another --out")
    there = read_shards(wanted.path)
    if there.digest != wanted.digest:
        raise RequestError(f"other shards are here already ({wanted.path}): choose another --out")
    if export and not there.has_examples:
        raise RequestError(f"the same shards are here without the examples ({wanted.path}): choose another --out")
    return there


def read_shards(path: Path) -> ShardSet:
    """Read shards and check that they are what was written."""
    described = read_shard_header(path)
    manifest, settings = described.manifest, described.partition.settings
    try:
        shards = tuple(read_client_shard(path, entry, manifest) for entry in manifest["clients"])
        partition = replace(described.partition, shards=shards)
        if [shard.client for shard in shards] != list(range(settings.clients or 0)):
            raise damaged_manifest_error(path)
        check_disjoint(path, partition, manifest["examples"])
        check_public_set(described)
        for shard, entry in zip(shards, manifest["clients"], strict=True):
            for name, index in shard.splits().items():
                check_class_counts(entry[name], index, manifest)
        return ShardSet(path, manifest, partition)
    except INVALID_MANIFEST_ERRORS:
        raise damaged_manifest_error(path) from None


def read_shard_header(path: Path) -> ShardSet:
    """What the manifest tells and what is public, without any client's file."""
    if not (path / SHARD_MANIFEST_FILE).is_file():
        raise RequestError(
            f"no shards here ({path}): make them with 'fedmosaic partition --scheme dirichlet --out {path}'"
        )
    manifest = read_json(path / SHARD_MANIFEST_FILE)
    try:
        schema = manifest["schema"]
        if type(schema) is not int:
            raise damaged_manifest_error(path)
        if schema != SHARD_SCHEMA:
            raise RequestError(
                f"schema {schema} is not {SHARD_SCHEMA} ({path / SHARD_MANIFEST_FILE}): make the shards anew"
            )
        manifest = read_checksummed_json(path / SHARD_MANIFEST_FILE)
        if manifest["digest"] != manifest_digest(manifest):
            raise damaged_manifest_error(path)
        ShardManifest.model_validate(manifest)
        settings = DataSettings(**manifest["settings"])
        public = read_shard_arrays(path / PUBLIC_FILE, ["index"], manifest)["index"]
        check_arrays_digest(path / PUBLIC_FILE, {"index": public}, manifest["public"]["sha256"])
        return ShardSet(path, manifest, Partition(settings, manifest["seed"], (), public))
    except INVALID_MANIFEST_ERRORS:
        raise damaged_manifest_error(path) from None


def check_public_set(shards: ShardSet) -> None:
    """The public set is as large as it should be, and its classes are counted where somebody knows them."""
    described, size = shards.manifest["public"], len(shards.partition.public)
    if not described["size"] == size == shards.partition.settings.public_size:
        raise damaged_manifest_error(shards.path)
    if described["class_counts"] is not None:
        check_class_counts(described, shards.partition.public, shards.manifest)


def damaged_manifest_error(path: Path) -> RequestError:
    return RequestError(f"the manifest does not match its digest ({path / SHARD_MANIFEST_FILE}): make the shards anew")


def read_client_shard(path: Path, entry: dict[str, Any], manifest: dict[str, Any]) -> Shard:
    names = [name for name in SPLITS if name in entry]
    noise = ["noisy_labels"] if "noisy_labels" in entry else []
    arrays = read_shard_arrays(path / client_file_name(entry["id"]), names + noise, manifest)
    check_arrays_digest(path / client_file_name(entry["id"]), arrays, entry["sha256"])
    labels = arrays.get("noisy_labels")
    if labels is not None and (labels.dtype != np.int64 or labels.shape != arrays["train"].shape):
        raise ValueError("labels for other examples")
    if labels is not None and len(labels) and not 0 <= labels.min() <= labels.max() < len(manifest["class_names"]):
        raise ValueError("labels of other classes")
    return Shard(
        client=entry["id"],
        train=arrays["train"],
        test=arrays["test"],
        validation=arrays.get("val", empty_indices()),
        domain=entry["domain"],
        has_flipped_labels=entry["labels_flipped"],
        noisy_labels=labels,
    )


def read_shard_arrays(path: Path, names: list[str], manifest: dict[str, Any]) -> ArrayDict:
    """The named arrays of one file, which is the one that the manifest tells of."""
    try:
        if sha256(path.read_bytes() if path.is_file() or not path.exists() else b"") != manifest["files"][path.name]:
            raise ValueError("another file")
        return read_npz(path, lambda _: names, allowance_bytes=0)
    except FileNotFoundError:
        raise RequestError(f"shard file is missing ({path}): make the shards anew") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive fails in any way it likes
        raise RequestError(f"shard file is damaged ({path}): make the shards anew") from None


def check_arrays_digest(path: Path, arrays: ArrayDict, digest: str) -> None:
    if arrays_digest(arrays) != digest:
        raise RequestError(f"shard file does not match the manifest ({path}): make the shards anew")


def check_class_counts(entry: dict[str, Any], indices: IntArray, manifest: dict[str, Any]) -> None:
    """A part is as large as the manifest says, and its classes are counted."""
    counts = entry["class_counts"]
    if not entry["size"] == len(indices) == sum(counts) or len(counts) != len(manifest["class_names"]):
        raise ValueError("a part of another size")


def check_disjoint(path: Path, partition: Partition, num_examples: int) -> None:
    """No index out of range, out of order, or in two places; the first that is gets named with its owners."""
    parts = {PUBLIC_FILE: partition.public}
    for shard in partition.shards:
        parts |= {f"{client_file_name(shard.client)} ({name})": index for name, index in shard.splits().items()}
    for name, index in parts.items():
        # Compared, not subtracted: a difference of two very large numbers may be any number.
        if index.dtype != np.int64 or index.ndim != 1 or np.any(index[1:] <= index[:-1]):
            raise RequestError(f"indices are not sorted whole numbers in {name} ({path}): make the shards anew")
        if len(index) and not 0 <= index[0] <= index[-1] < num_examples:
            wrong = index[-1] if index[0] >= 0 else index[0]
            raise RequestError(
                f"index {wrong} in {name} is not one of {num_examples} examples ({path}): make the shards anew"
            )
    everything = np.sort(np.concatenate(list(parts.values())))
    repeated = everything[1:][everything[1:] == everything[:-1]]
    if len(repeated):
        twice = int(repeated[0])
        owners = [name for name, index in parts.items() if twice in index]
        raise RequestError(f"example {twice} is in both {owners[0]} and {owners[1]} ({path}): make the shards anew")
