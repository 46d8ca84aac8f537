"""What a site packs of its own data: a client's file as exported shards have it, and a description for the coordinator.

In exported shards every example has a number, and no number is in two places. Sites that know nothing of each other
have numbers of their own: the public set's begin at 0, those of client k at (k + 1) * 2^23, first the training part,
then the test part, then what is for validation. So nobody need know how much another has.
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.site_data import ImageArray, SiteExamples

PACKAGE_SCHEMA = 1
INDEX_BLOCK_SIZE = 1 << 23
"""So many for the public set and for each client: for as many clients as there may be, no manifest's limit is met."""
Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SitePackage(BaseModel):
    """A site's description of what it packed: sizes, counts and digests. It may be anybody's."""

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
        found = {name: getattr(self, name) for name in SPLITS}
        return {name: part for name, part in found.items() if part is not None}

    @model_validator(mode="after")
    def check_consistency(self) -> SitePackage:
        parts = self.splits()
        if len(set(self.class_names)) < len(self.class_names) or not all(map(str.isprintable, self.class_names)):
            raise ValueError("classes that cannot be told apart")
        for part in parts.values():
            if len(part.class_counts) != len(self.class_names) or sum(part.class_counts) != part.size:
                raise ValueError("a part of another size")
        sizes = {name: part.size for name, part in parts.items()}
        if (
            sum(sizes.values()) > INDEX_BLOCK_SIZE
            or arrays_digest(shard_arrays(numbered_shard(self.client, sizes))) != self.sha256
        ):
            raise ValueError("other numbers than this client's")
        return self


@dataclass(frozen=True)
class PublicSet:
    """The images that everybody has, and the file they lie in."""

    images: ImageArray
    npz_bytes: bytes

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.images.shape[1:]

    @property
    def sha256(self) -> str:
        return sha256(self.npz_bytes)


def numbered_shard(client_id: int, sizes: Mapping[str, int]) -> Shard:
    """A client's parts under the numbers that are this client's alone."""
    parts, at = {}, (client_id + 1) * INDEX_BLOCK_SIZE
    for name, size in sizes.items():
        parts[name] = np.arange(at, at + size)
        at += size
    return Shard(client_id, parts["train"], parts["test"], parts.get("val", empty_indices()))


def build_public_set(images: ImageArray) -> PublicSet:
    """A public set of these images, in this order."""
    if len(images) > INDEX_BLOCK_SIZE:
        raise RequestError(f"{len(images)} images are too many for a public set (--images): at most {INDEX_BLOCK_SIZE}")
    return PublicSet(images, to_npz_bytes({"index": np.arange(len(images)), "images": images}))


def read_public_set(path: Path) -> PublicSet:
    """The public set in a file that may be anybody's."""
    try:
        content = read_regular_file(path)
        arrays = read_npz(path, lambda _: ["index", "images"], allowance_bytes=0)
        images, index = to_image_array(arrays["images"], path), arrays["index"]
        if (
            index.dtype != np.int64
            or not np.array_equal(index, np.arange(len(images)))
            or len(images) > INDEX_BLOCK_SIZE
        ):
            raise ValueError("other numbers than a public set's")
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): ask the coordinator for public.npz") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive fails in any way it likes
        raise RequestError(f"not a public set ({path}): make it with 'fedmosaic federation public'") from None
    return PublicSet(images, content)


def prepare_splits(splits: Mapping[str, SiteExamples], public_set: PublicSet) -> dict[str, SiteExamples]:
    """A site's parts as they can be packed: like the public set, and not in it."""
    alike = {name: match_public_shape(own, public_set.image_shape) for name, own in splits.items()}
    for name, own in alike.items():
        require_not_public(own, public_set)
        twice = [] if name == "train" else duplicate_positions(own.images, alike["train"].images)
        if twice:
            remark = (
                f"{len(twice)} images are in the training part too, such as {own.example_names[twice[0]]} ({own.path})"
            )
            alike[name] = replace(own, warnings=(*own.warnings, remark))
    return alike


def build_package(
    client_id: int, splits: Mapping[str, SiteExamples], class_names: Sequence[str], public_set: PublicSet
) -> tuple[bytes, dict[str, Any]]:
    """A client's file out of prepared parts, and its description, in which there is no example."""
    index = shard_arrays(numbered_shard(client_id, split_sizes(splits)))
    arrays = dict(index)
    for name, own in splits.items():
        arrays |= {f"{name}_images": own.images, f"{name}_labels": own.labels}
    content = to_npz_bytes(arrays)
    description = {
        "schema": PACKAGE_SCHEMA,
        "client": client_id,
        "class_names": list(class_names),
        "image_shape": list(public_set.image_shape),
        **{name: split_entry(own.labels, len(class_names)) for name, own in splits.items()},
        "sha256": arrays_digest(index),
        "file_sha256": sha256(content),
        "public_sha256": public_set.sha256,
    }
    return content, description


def split_sizes(splits: Mapping[str, SiteExamples]) -> dict[str, int]:
    sizes = {name: len(own.labels) for name, own in splits.items()}
    if sum(sizes.values()) > INDEX_BLOCK_SIZE:
        raise RequestError(
            f"{sum(sizes.values())} images are too many for a client (--train): at most {INDEX_BLOCK_SIZE}"
        )
    return sizes


def split_entry(labels: NDArray[np.int64], num_classes: int) -> dict[str, Any]:
    return {"size": len(labels), "class_counts": np.bincount(labels, minlength=num_classes).tolist()}


def require_not_public(examples: SiteExamples, public_set: PublicSet) -> None:
    """Refuse what everybody has: it would be trained on as private, or tested on after others taught it."""
    twice = duplicate_positions(examples.images, public_set.images)
    if twice:
        raise RequestError(
            f"{len(twice)} of {len(examples.images)} images are in the public set as well, such as {examples.example_names[twice[0]]} "
            f"({examples.path}): take them out here, or agree on another public set"
        )


def save_package(folder: Path, client_id: int, npz_bytes: bytes, description: dict[str, Any]) -> tuple[Path, Path]:
    """Write a client's file and its description; where they are."""
    file = folder / client_file_name(client_id)
    write_new_or_identical({file: npz_bytes, file.with_suffix(".json"): to_checksummed_json(description)})
    return file, file.with_suffix(".json")


def write_new_or_identical(contents: Mapping[Path, bytes]) -> None:
    """Write files, all or none. What is there already must be the same."""
    for path, content in contents.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise RequestError(f"something else is here already ({path}): move it away, or choose another --out")
    missing = {path: content for path, content in contents.items() if not path.exists()}
    for folder in {path.parent for path in missing}:
        require_free_space(folder, sum(map(len, missing.values())), "make room or choose another --out")
        make_directories(folder)
    write_files_atomic(missing)


def read_package(path: Path) -> SitePackage:
    """A site's description, checked."""
    content = read_checksummed_json(path)
    schema = content.pop("schema", None)
    if type(schema) is int and schema != PACKAGE_SCHEMA:
        raise RequestError(
            f"schema {schema} is not {PACKAGE_SCHEMA} ({path}): use the same version of fedmosaic as its site"
        )
    try:
        if schema != PACKAGE_SCHEMA or type(schema) is not int:
            raise ValueError("no schema")
        return SitePackage.model_validate(content)
    except INVALID_MANIFEST_ERRORS:
        raise RequestError(
            f"not the description of a packed shard ({path}): have its site make it with 'fedmosaic site pack'"
        ) from None
