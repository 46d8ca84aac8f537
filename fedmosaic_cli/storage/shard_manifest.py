"""The manifest of a partition: sizes and class counts per client, and digests of everything."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.data.partitioning.fixed_size import num_tests_per_client
from fedmosaic_cli.data.partitioning.partition import Partition, Shard, effective_test_fraction
from fedmosaic_cli.data.partitioning.public_set import public_pool_size
from fedmosaic_cli.data.partitioning.schemes import min_client_size
from fedmosaic_cli.data.partitioning.splits import uses_official_tests
from fedmosaic_cli.safe_text import to_csv_cell
from fedmosaic_cli.schema import Record
from fedmosaic_cli.storage.files import sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]
    ArrayDict = dict[str, NDArray[Any]]

SHARD_SCHEMA = 3
SPLITS = ("train", "test", "val")
# The digest identifies the partition, not where it was created or which other files are stored with it.
EXCLUDED_FROM_DIGEST = ("digest", "export", "files", "found_at", "remarks")
MAX_CLASSES = 65_536
MAX_PIXELS = 10**9
JsonScalar = str | int | float | bool | None
ClassCounts = list[Annotated[int, Field(ge=0)]]


class SplitEntry(Record):
    model_config = ConfigDict(extra="ignore")  # entries of site packages are copied into a manifest

    size: Annotated[int, Field(ge=1)]
    class_counts: ClassCounts


class PublicSetEntry(Record):
    """The public set, which may be empty and whose labels may be unknown."""

    size: Annotated[int, Field(ge=0)]
    class_counts: ClassCounts | None


class ClientEntry(Record):
    id: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    domain: str | None
    labels_flipped: bool
    train: SplitEntry
    test: SplitEntry
    val: SplitEntry | None = None
    noisy_labels: Annotated[int, Field(ge=0)] = 0
    sha256: str


class ShardManifest(Record):
    """The keys of a manifest that are read. A valid digest does not prove that the content makes sense."""

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
            raise ValueError("image_shape has too many pixels")
        return shape


def build_shard_manifest(dataset: Dataset, partition: Partition, found_at: str = "") -> dict[str, Any]:
    """Return the manifest of a partition, with its digest."""
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
    return {**manifest, "digest": manifest_digest(manifest), "export": False, "files": {}, "found_at": found_at}


def partition_parameters(dataset: Dataset, settings: DataSettings) -> dict[str, Any]:
    """Return the settings that determined the partition, with defaults filled in."""
    parameters: dict[str, Any] = settings.used_parameters()
    if num_tests_per_client(dataset, settings):
        parameters["test_examples_per_client"] = num_tests_per_client(dataset, settings)
    if "test_fraction" in parameters and not uses_official_tests(dataset, settings):
        parameters["test_fraction"] = effective_test_fraction(settings)
    if "min_size" in parameters:
        parameters["min_size"] = min_client_size(settings, len(dataset) - public_pool_size(settings))
    return parameters


def test_data_description(dataset: Dataset, settings: DataSettings) -> str:
    """Describe where test examples come from. The text is part of the digest and must not change."""
    size = settings.test_examples_per_client
    if settings.examples_per_client is None:
        text = full_test_description(dataset, settings)
    else:
        text = fixed_size_test_description(dataset, settings)
        size = num_tests_per_client(dataset, settings) or None
    return text if size is None else f"{text}, {size} per client"


def full_test_description(dataset: Dataset, settings: DataSettings) -> str:
    """Describe the tests of a partition that distributes all examples."""
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


def fixed_size_test_description(dataset: Dataset, settings: DataSettings) -> str:
    """Describe the tests of a partition with a fixed number of training examples per client."""
    is_drawn = num_tests_per_client(dataset, settings) > 0 and settings.scheme == "dirichlet"
    if uses_official_tests(dataset, settings):
        if is_drawn:
            return f"{dataset.test_set_description}, drawn by each client's class distribution"
        return full_test_description(dataset, settings)
    merged = "" if dataset.test_mask is None else " in the merged training and test splits"
    if is_drawn:
        return f"other examples{merged}, drawn by each client's class distribution"
    return f"the other examples of each client's share{merged}"


def client_manifest_entry(dataset: Dataset, shard: Shard) -> dict[str, Any]:
    """Return a client's entry: split sizes, counts of the labels that the client sees, and a digest."""
    entry: dict[str, Any] = {
        "id": shard.client,
        "domain": shard.domain,
        "labels_flipped": shard.has_flipped_labels,
        **{
            split: {"size": len(indices), "class_counts": class_counts(shard.split_labels(split, dataset), dataset)}
            for split, indices in shard.splits().items()
        },
    }
    if shard.noisy_labels is not None:
        truth = replace(shard, noisy_labels=None).split_labels("train", dataset)
        entry["noisy_labels"] = int((truth != shard.noisy_labels).sum())
    return {**entry, "sha256": arrays_digest(shard_arrays(shard))}


def class_counts(labels: IntArray, dataset: Dataset) -> list[int]:
    counts: list[int] = np.bincount(labels, minlength=dataset.num_classes).tolist()
    return counts


def shard_arrays(shard: Shard) -> ArrayDict:
    """Return the arrays that every client file contains."""
    noise = {} if shard.noisy_labels is None else {"noisy_labels": shard.noisy_labels}
    return {**shard.splits(), **noise}


def arrays_digest(arrays: ArrayDict) -> str:
    """Return a digest of names, types, shapes and values."""
    parts = []
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts += [repr((name, little.dtype.str, little.shape)).encode(), np.ascontiguousarray(little).tobytes()]
    return sha256(b"|".join(parts))


def manifest_digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key not in EXCLUDED_FROM_DIGEST}
    return sha256(json.dumps(content, sort_keys=True).encode())


def distribution_csv(manifest: dict[str, Any]) -> bytes:
    """Return the number of examples per client and class as CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["client", "domain", *map(to_csv_cell, manifest["class_names"])])
    for client, counts in zip(manifest["clients"], class_counts_by_client(manifest), strict=True):
        table.writerow([client["id"], to_csv_cell(client["domain"] or ""), *counts])
    return text.getvalue().encode()


def class_counts_by_client(manifest: dict[str, Any]) -> list[list[int]]:
    """Return the number of examples of all splits per client and class."""
    return [
        np.sum([client[part]["class_counts"] for part in SPLITS if part in client], axis=0).tolist()
        for client in manifest["clients"]
    ]


def train_sizes(manifest: dict[str, Any]) -> dict[int, int]:
    """Return the number of training examples per client."""
    return {client["id"]: client["train"]["size"] for client in manifest["clients"]}
