"""What is written down of a partition: who holds how much of what, and digests that stand for all of it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.data.partitioning.partition import Partition, Shard, effective_test_fraction
from fedmosaic_cli.data.partitioning.public_set import public_pool_size
from fedmosaic_cli.data.partitioning.schemes import min_client_size
from fedmosaic_cli.storage.files import sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]
    ArrayDict = dict[str, NDArray[Any]]

SHARD_SCHEMA = 3
SPLITS = ("train", "test", "val")
# What says where the shards were made and what else lies beside them; the digest stands for the partition alone.
EXCLUDED_FROM_DIGEST = ("digest", "export", "files", "found_at", "remarks")
MAX_CLASSES = 65_536
MAX_PIXELS = 10**9
JsonScalar = str | int | float | bool | None
ClassCounts = list[Annotated[int, Field(ge=0)]]


class SplitEntry(BaseModel):
    """How many examples, of which classes."""

    model_config = ConfigDict(strict=True)

    size: Annotated[int, Field(ge=1)]
    class_counts: ClassCounts


class PublicSetEntry(BaseModel):
    """The one part that may be empty, and of which nobody need know the classes."""

    model_config = ConfigDict(strict=True)

    size: Annotated[int, Field(ge=0)]
    class_counts: ClassCounts | None


class ClientEntry(BaseModel):
    """What is read of a client's entry."""

    model_config = ConfigDict(strict=True)

    id: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    domain: str | None
    labels_flipped: bool
    train: SplitEntry
    test: SplitEntry
    val: SplitEntry | None = None
    noisy_labels: Annotated[int, Field(ge=0)] = 0
    sha256: str


class ShardManifest(BaseModel):
    """What is read of a manifest, which may be anybody's: a digest tells of damage, not of sense."""

    model_config = ConfigDict(strict=True)

    dataset: str
    scheme: str
    protocol: str
    tested_on: str
    parameters: dict[str, JsonScalar | list[JsonScalar]]
    seed: Annotated[int, Field(ge=0)]
    class_names: Annotated[list[str], Field(min_length=2, max_length=MAX_CLASSES)]
    image_shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]
    examples: Annotated[int, Field(ge=1, le=10**12)]
    left_out: Annotated[int, Field(ge=0)]
    source_fingerprint: str
    clients: list[ClientEntry]
    public: PublicSetEntry
    export: bool
    files: dict[str, str]
    found_at: str

    @field_validator("image_shape")
    @classmethod
    def check_image_shape(cls, shape: list[int]) -> list[int]:
        if prod(shape) > MAX_PIXELS:
            raise ValueError("no image has so many pixels")
        return shape


def build_shard_manifest(dataset: Dataset, partition: Partition, found_at: str = "") -> dict[str, Any]:
    """The manifest: everything that one may want to know without opening another file, and a digest of it all."""
    settings = partition.settings
    manifest: dict[str, Any] = {
        "schema": SHARD_SCHEMA,
        "dataset": dataset.name,
        "scheme": settings.scheme,
        "protocol": settings.protocol,
        "tested_on": test_data_description(dataset, settings),
        "parameters": partition_parameters(dataset, settings),
        "settings": settings.to_record(),
        "seed": partition.seed,
        "class_names": list(dataset.class_names),
        "image_shape": list(dataset.images.shape[1:]),
        "examples": len(dataset),
        "source_fingerprint": dataset.fingerprint,
        "remarks": list(dataset.warnings),
        "clients": [client_manifest_entry(dataset, shard) for shard in partition.shards],
        "public": {
            "size": len(partition.public),
            "class_counts": class_counts(dataset.labels[partition.public], dataset),
            "sha256": arrays_digest({"index": partition.public}),
        },
    }
    held = sum(len(part) for shard in partition.shards for part in shard.splits().values()) + len(partition.public)
    manifest["left_out"] = len(dataset) - held
    beside = {"export": False, "files": {}, "found_at": found_at}
    return {**manifest, "digest": manifest_digest(manifest), **beside}


def partition_parameters(dataset: Dataset, settings: DataSettings) -> dict[str, Any]:
    """What decided the split, with the share for testing where one was held out."""
    parameters: dict[str, Any] = settings.used_parameters()
    if "test_fraction" in parameters and (dataset.test_mask is None or settings.protocol == "pfllib"):
        parameters["test_fraction"] = effective_test_fraction(settings)
    if "min_size" in parameters:
        parameters["min_size"] = min_client_size(settings, len(dataset) - public_pool_size(settings))
    return parameters


def test_data_description(dataset: Dataset, settings: DataSettings) -> str:
    """Where test examples come from, in words."""
    if settings.protocol == "pfllib":
        merged = "" if dataset.test_mask is None else ", after training and test part were thrown together"
        return f"a part of each client's share, drawn anyhow{merged}"
    if settings.protocol == "fedbn":
        return f"all of the client's domain in {dataset.test_set_description}"
    if dataset.test_mask is None:
        return "a part of each client's share, with its mix of classes"
    if settings.scheme == "natural":
        return "each client's own test part"
    return f"{dataset.test_set_description}, dealt by each client's mix of classes"


def client_manifest_entry(dataset: Dataset, shard: Shard) -> dict[str, Any]:
    """A client's entry: its parts, their sizes and classes as the client sees them, and a digest of its file."""
    parts = {
        part: {"size": len(index), "class_counts": class_counts(shard.split_labels(part, dataset), dataset)}
        for part, index in shard.splits().items()
    }
    entry: dict[str, Any] = {
        "id": shard.client,
        "domain": shard.domain,
        "labels_flipped": shard.has_flipped_labels,
        **parts,
    }
    if shard.noisy_labels is not None:
        truth = replace(shard, noisy_labels=None).split_labels("train", dataset)
        entry["noisy_labels"] = int((truth != shard.noisy_labels).sum())
    return {**entry, "sha256": arrays_digest(shard_arrays(shard))}


def class_counts(labels: IntArray, dataset: Dataset) -> list[int]:
    counts: list[int] = np.bincount(labels, minlength=dataset.num_classes).tolist()
    return counts


def shard_arrays(shard: Shard) -> ArrayDict:
    """What a client's file always holds."""
    noise = {} if shard.noisy_labels is None else {"noisy_labels": shard.noisy_labels}
    return {**shard.splits(), **noise}


def arrays_digest(arrays: ArrayDict) -> str:
    """Stands for names, types, shapes and values."""
    parts = []
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts += [repr((name, little.dtype.str, little.shape)).encode(), np.ascontiguousarray(little).tobytes()]
    return sha256(b"|".join(parts))


def manifest_digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key not in EXCLUDED_FROM_DIGEST}
    return sha256(json.dumps(content, sort_keys=True).encode())


def distribution_csv(manifest: dict[str, Any]) -> bytes:
    """The examples of each client, by class."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["client", "domain", *manifest["class_names"]])
    for client, counts in zip(manifest["clients"], class_counts_by_client(manifest), strict=True):
        table.writerow([client["id"], client["domain"] or "", *counts])
    return text.getvalue().encode()


def class_counts_by_client(manifest: dict[str, Any]) -> list[list[int]]:
    """All parts together, by client and class."""
    return [
        np.sum([client[part]["class_counts"] for part in SPLITS if part in client], axis=0).tolist()
        for client in manifest["clients"]
    ]
