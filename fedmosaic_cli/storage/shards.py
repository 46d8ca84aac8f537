"""A partition on disk: a manifest, one index file per client, the index of the public set, and class counts.

Exported shards also contain the examples: `<split>_images` and `<split>_labels` in a client's file, `images` in the
public file, which never contains labels.
"""

from __future__ import annotations

import io
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.io.npz_files import read_npz
from fedmosaic_cli.data.partitioning.partition import Partition, Shard, empty_indices
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import (
    atomic_directory,
    make_directories,
    read_checksummed_json,
    read_json,
    require_free_space,
    require_no_link,
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
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import ProgressCallback

    IntArray = NDArray[np.int64]
    ArrayDict = dict[str, NDArray[Any]]

SHARD_MANIFEST_FILE = "manifest.json"
PUBLIC_FILE = "public.npz"
UNKNOWN_LABEL = -1
RECREATE_HINT = "recreate the shards with fedmosaic partition"
# Exceptions that a manifest with impossible content can cause.
INVALID_MANIFEST_ERRORS = (KeyError, TypeError, AttributeError, ValueError, OverflowError, ValidationError)


@dataclass(frozen=True)
class ShardSet:
    """A partition with its manifest and its path."""

    path: Path
    manifest: dict[str, Any]
    partition: Partition

    @property
    def digest(self) -> str:
        digest: str = self.manifest["digest"]
        return digest

    @property
    def has_examples(self) -> bool:
        """Whether the shards contain the examples."""
        return self.manifest["export"] is True

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of an image as models see it: [channels, height, width]."""
        height, width, channels = self.manifest["image_shape"]
        return channels, height, width

    def test_sizes(self) -> list[int]:
        return [client["test"]["size"] for client in self.manifest["clients"]]


def default_shards_path(name: str, seed: int) -> Path:
    return Path("shards") / f"{name}-s{seed}"


def client_file_name(client: int) -> str:
    return f"client-{client:03d}.npz"


def write_shards(shards: ShardSet, dataset: Dataset, export: bool, on_progress: ProgressCallback) -> ShardSet:
    """Write the shards atomically; existing shards must be the same.

    Args:
        shards: The partition, its manifest and the target path.
        dataset: The data set of the partition.
        export: Also write the examples, so that another machine can train without the data set. Only this user can
            read them.
        on_progress: Called after each client.
    """
    if is_occupied(shards.path):
        return require_same_shards(shards, export)
    manifest: dict[str, Any] = {**shards.manifest, "export": export, "files": {}}
    if export:  # the path of the data is meaningless on another machine
        manifest["found_at"] = ""
        held = len(dataset) - manifest["left_out"]
        require_free_space(shards.path, held * dataset.images[0].nbytes, "free some space or choose another --out")
    make_directories(shards.path.parent)
    try:
        with private_files() if export else nullcontext(), atomic_directory(shards.path) as folder:
            for number, shard in enumerate(shards.partition.shards, start=1):
                on_progress("writing shards", number, len(shards.partition.shards))
                arrays = {**shard_arrays(shard), **(client_example_arrays(dataset, shard) if export else {})}
                write_shard_file(folder / client_file_name(shard.client), to_npz_bytes(arrays), manifest)
            public = shards.partition.public
            arrays = {"index": public, **({"images": dataset.images[public]} if export else {})}
            write_shard_file(folder / PUBLIC_FILE, to_npz_bytes(arrays), manifest)
            write_shard_file(folder / "distribution.csv", distribution_csv(manifest), manifest)
            write_new_file(folder / SHARD_MANIFEST_FILE, to_checksummed_json(manifest))
    except OSError:
        if is_occupied(shards.path):  # another process was faster
            return require_same_shards(shards, export)
        raise
    return ShardSet(shards.path, manifest, shards.partition)


def client_example_arrays(dataset: Dataset, shard: Shard) -> ArrayDict:
    """Return the examples of a client with the labels that it sees."""
    arrays: ArrayDict = {}
    for part, index in shard.splits().items():
        arrays |= {f"{part}_images": dataset.images[index], f"{part}_labels": shard.split_labels(part, dataset)}
    return arrays


def write_shard_file(path: Path, content: bytes, manifest: dict[str, Any]) -> None:
    """Write a file and add its digest to the manifest."""
    write_new_file(path, content)
    manifest["files"][path.name] = sha256(content)


def to_npz_bytes(arrays: ArrayDict) -> bytes:
    buffer = io.BytesIO()
    content: dict[str, Any] = arrays
    np.savez(buffer, **content)
    return buffer.getvalue()


def is_occupied(path: Path) -> bool:
    """Return whether a path exists and is not an empty directory."""
    if path.resolve() == Path.cwd():
        raise RequestError(f"shards need a separate directory ({path}): choose one that does not exist yet")
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def require_same_shards(wanted: ShardSet, export: bool) -> ShardSet:
    """Return the existing shards if they are the wanted ones."""
    if not (wanted.path / SHARD_MANIFEST_FILE).is_file():
        raise RequestError(f"the directory contains other files ({wanted.path}): choose another --out")
    existing = read_shards(wanted.path)
    if existing.digest != wanted.digest:
        raise RequestError(f"the directory contains other shards ({wanted.path}): choose another --out")
    if export and not existing.has_examples:
        raise RequestError(
            f"the directory contains the same shards without examples ({wanted.path}): choose another --out"
        )
    return existing


def read_shards(path: Path) -> ShardSet:
    """Read shards and check every digest, size and index."""
    header = read_shard_header(path)
    manifest, settings = header.manifest, header.partition.settings
    try:
        shards = tuple(read_client_shard(path, entry, manifest) for entry in manifest["clients"])
        partition = replace(header.partition, shards=shards)
        if [shard.client for shard in shards] != list(range(settings.clients or 0)):
            raise damaged_manifest_error(path)
        check_disjoint(path, partition, manifest["examples"])
        check_public_set(header)
        for shard, entry in zip(shards, manifest["clients"], strict=True):
            for name, index in shard.splits().items():
                check_class_counts(entry[name], index, manifest)
        return ShardSet(path, manifest, partition)
    except INVALID_MANIFEST_ERRORS:
        raise damaged_manifest_error(path) from None


def read_shard_header(path: Path) -> ShardSet:
    """Read the manifest and the public set, but no client file."""
    require_no_link(path / SHARD_MANIFEST_FILE)
    if not (path / SHARD_MANIFEST_FILE).is_file():
        raise RequestError(
            f"no shards found ({path}): create them with 'fedmosaic partition --scheme dirichlet --out {path}'"
        )
    manifest = read_json(path / SHARD_MANIFEST_FILE)
    try:
        schema = manifest["schema"]
        if type(schema) is not int:
            raise damaged_manifest_error(path)
        if schema != SHARD_SCHEMA:
            raise RequestError(f"schema {schema} is not {SHARD_SCHEMA} ({path / SHARD_MANIFEST_FILE}): {RECREATE_HINT}")
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
    """Check the size of the public set and, if they are known, its class counts."""
    entry, size = shards.manifest["public"], len(shards.partition.public)
    if not entry["size"] == size == shards.partition.settings.public_size:
        raise damaged_manifest_error(shards.path)
    if entry["class_counts"] is not None:
        check_class_counts(entry, shards.partition.public, shards.manifest)


def damaged_manifest_error(path: Path) -> RequestError:
    return RequestError(f"the manifest does not match its digest ({path / SHARD_MANIFEST_FILE}): {RECREATE_HINT}")


def read_client_shard(path: Path, entry: dict[str, Any], manifest: dict[str, Any]) -> Shard:
    names = [name for name in SPLITS if name in entry]
    noise = ["noisy_labels"] if "noisy_labels" in entry else []
    arrays = read_shard_arrays(path / client_file_name(entry["id"]), names + noise, manifest)
    check_arrays_digest(path / client_file_name(entry["id"]), arrays, entry["sha256"])
    labels = arrays.get("noisy_labels")
    if labels is not None and (labels.dtype != np.int64 or labels.shape != arrays["train"].shape):
        raise ValueError("noisy_labels does not match train")
    if labels is not None:
        check_label_range(labels, manifest)
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
    """Read the named arrays of a file after checking its digest in the manifest."""
    require_no_link(path)
    try:
        if sha256(path.read_bytes() if path.is_file() or not path.exists() else b"") != manifest["files"][path.name]:
            raise ValueError("digest mismatch")
        return read_npz(path, lambda _: names, allowance_bytes=0)
    except FileNotFoundError:
        raise RequestError(f"shard file is missing ({path}): {RECREATE_HINT}") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive can cause any exception
        raise RequestError(f"shard file is damaged ({path}): {RECREATE_HINT}") from None


def check_arrays_digest(path: Path, arrays: ArrayDict, digest: str) -> None:
    if arrays_digest(arrays) != digest:
        raise RequestError(f"shard file does not match the manifest ({path}): {RECREATE_HINT}")


def check_class_counts(entry: dict[str, Any], indices: IntArray, manifest: dict[str, Any]) -> None:
    """Check the size and the class counts of a split."""
    counts = entry["class_counts"]
    if not entry["size"] == len(indices) == sum(counts) or len(counts) != len(manifest["class_names"]):
        raise ValueError("split size does not match the manifest")


def check_disjoint(path: Path, partition: Partition, num_examples: int) -> None:
    """Check that all indices are in range, sorted and used once; name the first that is not, with its files."""
    parts = {PUBLIC_FILE: partition.public}
    for shard in partition.shards:
        parts |= {f"{client_file_name(shard.client)} ({name})": index for name, index in shard.splits().items()}
    for name, index in parts.items():
        # Compared, not subtracted: the difference of two large integers may overflow.
        if index.dtype != np.int64 or index.ndim != 1 or np.any(index[1:] <= index[:-1]):
            raise RequestError(f"indices are not sorted whole numbers in {name} ({path}): {RECREATE_HINT}")
        if len(index) and not 0 <= index[0] <= index[-1] < num_examples:
            wrong = index[-1] if index[0] >= 0 else index[0]
            raise RequestError(
                f"index {wrong} in {name} is not one of {num_examples} examples ({path}): {RECREATE_HINT}"
            )
    everything = np.sort(np.concatenate(list(parts.values())))
    repeated = everything[1:][everything[1:] == everything[:-1]]
    if len(repeated):
        owners = [name for name, index in parts.items() if repeated[0] in index]
        raise RequestError(f"example {repeated[0]} is in both {owners[0]} and {owners[1]} ({path}): {RECREATE_HINT}")


def check_label_range(labels: NDArray[Any], manifest: dict[str, Any]) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(manifest["class_names"]):
        raise ValueError("labels are out of range")


def check_exported_examples(
    images: NDArray[Any], labels: NDArray[Any], num_examples: int, manifest: dict[str, Any]
) -> None:
    """Check types, shapes and label range of exported examples."""
    shape = (num_examples, *manifest["image_shape"])
    if images.dtype != np.uint8 or images.shape != shape or labels.shape != (num_examples,) or labels.dtype != np.int64:
        raise ValueError("examples do not match the manifest")
    check_label_range(labels, manifest)


def load_exported_shards(shards: ShardSet) -> tuple[Dataset, Partition]:
    """Return the examples of exported shards as a data set, and the partition with indices into it."""
    manifest = shards.manifest
    try:
        public = read_shard_arrays(shards.path / PUBLIC_FILE, ["images"], manifest)["images"]
        check_exported_examples(public, np.zeros(len(public), dtype=np.int64), len(shards.partition.public), manifest)
        images: list[NDArray[Any]] = [public]
        labels: list[NDArray[Any]] = [np.full(len(public), UNKNOWN_LABEL)]
        renumbered, offset = [], len(public)
        for shard in shards.partition.shards:
            names = [f"{split}_{array}" for split in shard.splits() for array in ("images", "labels")]
            arrays = read_shard_arrays(shards.path / client_file_name(shard.client), names, manifest)
            indices: dict[str, Any] = {}
            for split, index in shard.splits().items():
                check_exported_examples(arrays[f"{split}_images"], arrays[f"{split}_labels"], len(index), manifest)
                images.append(arrays[f"{split}_images"])
                labels.append(arrays[f"{split}_labels"])
                indices["validation" if split == "val" else split] = np.arange(offset, offset + len(index))
                offset += len(index)
            # The exported labels already contain flips and noise.
            renumbered.append(replace(shard, **indices, has_flipped_labels=False, noisy_labels=None))
        dataset = Dataset(
            manifest["dataset"], np.concatenate(images), np.concatenate(labels), tuple(manifest["class_names"])
        )
    except (KeyError, TypeError, ValueError):
        raise RequestError(
            f"the manifest does not match its examples ({shards.path / SHARD_MANIFEST_FILE}): {RECREATE_HINT} --export"
        ) from None
    return dataset, replace(shards.partition, shards=tuple(renumbered), public=np.arange(len(public)))
