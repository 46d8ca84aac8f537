"""A site's own data as a client file of exported shards, and its description for the coordinator.

Every example of exported shards has a unique index. Sites number their examples independently: the public set starts
at 0, client k at (k + 1) * 2^23 with its training examples, then its test examples, then its validation examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.data.datasets.npz import to_image_array
from fedmosaic_cli.data.io.npz_files import read_npz
from fedmosaic_cli.data.partitioning.partition import Shard, empty_indices
from fedmosaic_cli.data.site_data import duplicate_positions, match_public_shape
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import (
    make_directories,
    read_checksummed_json,
    read_regular_file,
    require_free_space,
    sha256,
    to_checksummed_json,
    write_files_atomic,
)
from fedmosaic_cli.storage.shard_manifest import MAX_CLASSES, SPLITS, SplitEntry, arrays_digest, shard_arrays
from fedmosaic_cli.storage.shards import INVALID_MANIFEST_ERRORS, client_file_name, to_npz_bytes
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.site_data import ImageArray, SiteExamples

PACKAGE_SCHEMA = 1
INDEX_BLOCK_SIZE = 1 << 23
"""Number of indices for the public set and for each client. `MAX_CLIENTS` blocks stay below a manifest's limit."""
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PackageDescription(BaseModel):
    """A site's description of its packed data: sizes, class counts and digests. Untrusted input."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    client: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    class_names: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2, max_length=MAX_CLASSES)]
    image_shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]
    train: SplitEntry
    test: SplitEntry
    val: SplitEntry | None = None
    sha256: Sha256Hex
    file_sha256: Sha256Hex
    public_sha256: Sha256Hex

    def splits(self) -> dict[str, SplitEntry]:
        return {name: split for name in SPLITS if (split := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def check_consistency(self) -> PackageDescription:
        splits = self.splits()
        if len(set(self.class_names)) < len(self.class_names) or not all(map(str.isprintable, self.class_names)):
            raise ValueError("class names are not distinct")
        for split in splits.values():
            if len(split.class_counts) != len(self.class_names) or sum(split.class_counts) != split.size:
                raise ValueError("class counts do not match the size")
        sizes = {name: split.size for name, split in splits.items()}
        if sum(sizes.values()) > INDEX_BLOCK_SIZE:
            raise ValueError("too many examples")
        if arrays_digest(shard_arrays(numbered_shard(self.client, sizes))) != self.sha256:
            raise ValueError("other indices than this client's")
        return self


@dataclass(frozen=True)
class PublicSet:
    """The public images and the content of their file."""

    images: ImageArray
    npz_bytes: bytes

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.images.shape[1:]

    @property
    def sha256(self) -> str:
        return sha256(self.npz_bytes)


def numbered_shard(client_id: int, sizes: Mapping[str, int]) -> Shard:
    """Return a client's splits as indices in the client's block."""
    splits, start = {}, (client_id + 1) * INDEX_BLOCK_SIZE
    for name, size in sizes.items():
        splits[name] = np.arange(start, start + size)
        start += size
    return Shard(client_id, splits["train"], splits["test"], splits.get("val", empty_indices()))


def build_public_set(images: ImageArray) -> PublicSet:
    """Return a public set of these images, in this order."""
    if len(images) > INDEX_BLOCK_SIZE:
        raise RequestError(f"{len(images)} images are too many for a public set (--images): at most {INDEX_BLOCK_SIZE}")
    return PublicSet(images, to_npz_bytes({"index": np.arange(len(images)), "images": images}))


def read_public_set(path: Path) -> PublicSet:
    """Read a public set from an untrusted file."""
    try:
        content = read_regular_file(path)
        arrays = read_npz(path, lambda _: ["index", "images"], allowance_bytes=0)
        images, index = to_image_array(arrays["images"], path), arrays["index"]
        is_numbered = index.dtype == np.int64 and np.array_equal(index, np.arange(len(images)))
        if not is_numbered or len(images) > INDEX_BLOCK_SIZE:
            raise ValueError("other indices than a public set's")
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): ask the coordinator for public.npz") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive may raise anything
        raise RequestError(f"not a public set ({path}): make it with 'fedmosaic federation public'") from None
    return PublicSet(images, content)


def prepare_splits(splits: Mapping[str, SiteExamples], public_set: PublicSet) -> dict[str, SiteExamples]:
    """Return a site's splits in the image shape of the public set, with warnings about duplicate images.

    Raises:
        RequestError: An image is also in the public set, so it would be private and public at once.
    """
    prepared = {name: match_public_shape(examples, public_set.image_shape) for name, examples in splits.items()}
    for name, examples in prepared.items():
        public = duplicate_positions(examples.images, public_set.images)
        if public:
            raise RequestError(
                f"{len(public)} of {len(examples.images)} images are in the public set as well, such as "
                f"{examples.example_names[public[0]]} ({examples.path}): remove them, or agree on another public set"
            )
        duplicates = [] if name == "train" else duplicate_positions(examples.images, prepared["train"].images)
        if duplicates:
            example_name = examples.example_names[duplicates[0]]
            warning = f"{len(duplicates)} images are in the training part too, such as {example_name} ({examples.path})"
            prepared[name] = replace(examples, warnings=(*examples.warnings, warning))
    return prepared


def build_package(
    client_id: int, splits: Mapping[str, SiteExamples], class_names: Sequence[str], public_set: PublicSet
) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a client's file and its description, which contains no example.

    Args:
        client_id: The number of the client.
        splits: The result of `prepare_splits`.
        class_names: The names of all classes, in the same order at all sites.
        public_set: The public set of the federation.
    """
    sizes = {name: len(examples.labels) for name, examples in splits.items()}
    if sum(sizes.values()) > INDEX_BLOCK_SIZE:
        raise RequestError(
            f"{sum(sizes.values())} images are too many for a client (--train): at most {INDEX_BLOCK_SIZE}"
        )
    index = shard_arrays(numbered_shard(client_id, sizes))
    arrays = dict(index)
    for name, examples in splits.items():
        arrays |= {f"{name}_images": examples.images, f"{name}_labels": examples.labels}
    content = to_npz_bytes(arrays)
    description = {
        "schema": PACKAGE_SCHEMA,
        "client": client_id,
        "class_names": list(class_names),
        "image_shape": list(public_set.image_shape),
        **{name: split_entry(examples.labels, len(class_names)) for name, examples in splits.items()},
        "sha256": arrays_digest(index),
        "file_sha256": sha256(content),
        "public_sha256": public_set.sha256,
    }
    return content, description


def split_entry(labels: NDArray[np.int64], num_classes: int) -> dict[str, Any]:
    return {"size": len(labels), "class_counts": np.bincount(labels, minlength=num_classes).tolist()}


def save_package(folder: Path, client_id: int, npz_bytes: bytes, description: dict[str, Any]) -> tuple[Path, Path]:
    """Write a client's file and its description, for this user only. Return both paths."""
    file = folder / client_file_name(client_id)
    make_directories(folder.parent)
    with private_files():
        write_new_or_identical({file: npz_bytes, file.with_suffix(".json"): to_checksummed_json(description)})
    return file, file.with_suffix(".json")


def write_new_or_identical(contents: Mapping[Path, bytes]) -> None:
    """Write files, all or none. An existing file must have the same content."""
    for path, content in contents.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise RequestError(f"another file exists here ({path}): move it away, or choose another --out")
    missing = {path: content for path, content in contents.items() if not path.exists()}
    for folder in {path.parent for path in missing}:
        require_free_space(folder, sum(map(len, missing.values())), "free some space, or choose another --out")
        make_directories(folder)
    write_files_atomic(missing)


def read_package_description(path: Path) -> PackageDescription:
    """Read and check a site's description."""
    content = read_checksummed_json(path)
    schema = content.pop("schema", None)
    if type(schema) is int and schema != PACKAGE_SCHEMA:
        raise RequestError(
            f"schema {schema} is not {PACKAGE_SCHEMA} ({path}): use the same version of fedmosaic as its site"
        )
    try:
        if schema != PACKAGE_SCHEMA or type(schema) is not int:
            raise ValueError("no schema")
        return PackageDescription.model_validate(content)
    except INVALID_MANIFEST_ERRORS:
        raise RequestError(
            f"not the description of a packed shard ({path}): its site makes it with 'fedmosaic site pack'"
        ) from None
