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

from fedmosaic_cli.data.data_settings import MOST_CLIENTS
from fedmosaic_cli.data.datasets.npz import as_images
from fedmosaic_cli.data.io.npz_files import read_arrays
from fedmosaic_cli.data.partitioning.partition import Shard, nothing
from fedmosaic_cli.data.site_data import like_public, shared
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import (
    check_room,
    make_directories,
    read_file,
    read_sealed,
    sealed,
    sha256,
    write_together,
)
from fedmosaic_cli.storage.shard_manifest import MOST_CLASSES, PARTS, Part, arrays_digest, index_arrays
from fedmosaic_cli.storage.shards import NONSENSE, client_file, to_npz

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.site_data import Images, OwnExamples

SCHEMA = 1
NUMBERS = 1 << 23
"""So many for the public set and for each client: for as many clients as there may be, no manifest's limit is met."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Packed(BaseModel):
    """A site's description of what it packed: sizes, counts and digests. It may be anybody's."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    client: Annotated[int, Field(ge=0, lt=MOST_CLIENTS)]
    class_names: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2, max_length=MOST_CLASSES)]
    image_shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]
    train: Part
    test: Part
    val: Part | None = None
    sha256: Digest
    file_sha256: Digest
    public_sha256: Digest

    def parts(self) -> dict[str, Part]:
        found = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in found.items() if part is not None}

    @model_validator(mode="after")
    def makes_sense(self) -> Packed:
        parts = self.parts()
        if len(set(self.class_names)) < len(self.class_names) or not all(map(str.isprintable, self.class_names)):
            raise ValueError("classes that cannot be told apart")
        for part in parts.values():
            if len(part.class_counts) != len(self.class_names) or sum(part.class_counts) != part.size:
                raise ValueError("a part of another size")
        sizes = {name: part.size for name, part in parts.items()}
        if sum(sizes.values()) > NUMBERS or arrays_digest(index_arrays(numbered(self.client, sizes))) != self.sha256:
            raise ValueError("other numbers than this client's")
        return self


@dataclass(frozen=True)
class PublicSet:
    """The images that everybody has, and the file they lie in."""

    images: Images
    content: bytes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.images.shape[1:]

    @property
    def sha256(self) -> str:
        return sha256(self.content)


def numbered(client: int, sizes: Mapping[str, int]) -> Shard:
    """A client's parts under the numbers that are this client's alone."""
    parts, at = {}, (client + 1) * NUMBERS
    for name, size in sizes.items():
        parts[name] = np.arange(at, at + size)
        at += size
    return Shard(client, parts["train"], parts["test"], parts.get("val", nothing()))


def public_set(images: Images) -> PublicSet:
    """A public set of these images, in this order."""
    if len(images) > NUMBERS:
        raise RequestError(f"{len(images)} images are too many for a public set (--images): at most {NUMBERS}")
    return PublicSet(images, to_npz({"index": np.arange(len(images)), "images": images}))


def read_public(path: Path) -> PublicSet:
    """The public set in a file that may be anybody's."""
    try:
        content = read_file(path)
        arrays = read_arrays(path, lambda _: ["index", "images"], always_allowed=0)
        images, index = as_images(arrays["images"], path), arrays["index"]
        if index.dtype != np.int64 or not np.array_equal(index, np.arange(len(images))) or len(images) > NUMBERS:
            raise ValueError("other numbers than a public set's")
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): ask the coordinator for public.npz") from None
    except (MemoryError, PermissionError):
        raise
    except Exception:  # a damaged archive fails in any way it likes
        raise RequestError(f"not a public set ({path}): make it with 'fedmosaic federation public'") from None
    return PublicSet(images, content)


def prepared(parts: Mapping[str, OwnExamples], public: PublicSet) -> dict[str, OwnExamples]:
    """A site's parts as they can be packed: like the public set, and not in it."""
    alike = {name: like_public(own, public.shape) for name, own in parts.items()}
    for name, own in alike.items():
        check_not_public(own, public)
        twice = [] if name == "train" else shared(own.images, alike["train"].images)
        if twice:
            remark = f"{len(twice)} images are in the training part too, such as {own.names[twice[0]]} ({own.path})"
            alike[name] = replace(own, remarks=(*own.remarks, remark))
    return alike


def pack(
    client: int, parts: Mapping[str, OwnExamples], class_names: Sequence[str], public: PublicSet
) -> tuple[bytes, dict[str, Any]]:
    """A client's file out of prepared parts, and its description, in which there is no example."""
    index = index_arrays(numbered(client, sizes_of(parts)))
    arrays = dict(index)
    for name, own in parts.items():
        arrays |= {f"{name}_images": own.images, f"{name}_labels": own.labels}
    content = to_npz(arrays)
    description = {
        "schema": SCHEMA,
        "client": client,
        "class_names": list(class_names),
        "image_shape": list(public.shape),
        **{name: counted(own.labels, len(class_names)) for name, own in parts.items()},
        "sha256": arrays_digest(index),
        "file_sha256": sha256(content),
        "public_sha256": public.sha256,
    }
    return content, description


def sizes_of(parts: Mapping[str, OwnExamples]) -> dict[str, int]:
    sizes = {name: len(own.labels) for name, own in parts.items()}
    if sum(sizes.values()) > NUMBERS:
        raise RequestError(f"{sum(sizes.values())} images are too many for a client (--train): at most {NUMBERS}")
    return sizes


def counted(labels: NDArray[np.int64], classes: int) -> dict[str, Any]:
    return {"size": len(labels), "class_counts": np.bincount(labels, minlength=classes).tolist()}


def check_not_public(own: OwnExamples, public: PublicSet) -> None:
    """Refuse what everybody has: it would be trained on as private, or tested on after others taught it."""
    twice = shared(own.images, public.images)
    if twice:
        raise RequestError(
            f"{len(twice)} of {len(own.images)} images are in the public set as well, such as {own.names[twice[0]]} "
            f"({own.path}): take them out here, or agree on another public set"
        )


def save_packed(folder: Path, client: int, content: bytes, description: dict[str, Any]) -> tuple[Path, Path]:
    """Write a client's file and its description; where they are."""
    file = folder / client_file(client)
    write_new({file: content, file.with_suffix(".json"): sealed(description)})
    return file, file.with_suffix(".json")


def write_new(contents: Mapping[Path, bytes]) -> None:
    """Write files, all or none. What is there already must be the same."""
    for path, content in contents.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise RequestError(f"something else is here already ({path}): move it away, or choose another --out")
    missing = {path: content for path, content in contents.items() if not path.exists()}
    for folder in {path.parent for path in missing}:
        check_room(folder, sum(map(len, missing.values())), "make room or choose another --out")
        make_directories(folder)
    write_together(missing)


def read_packed(path: Path) -> Packed:
    """A site's description, checked."""
    content = read_sealed(path)
    schema = content.pop("schema", None)
    if type(schema) is int and schema != SCHEMA:
        raise RequestError(f"schema {schema} is not {SCHEMA} ({path}): use the same version of fedmosaic as its site")
    try:
        if schema != SCHEMA or type(schema) is not int:
            raise ValueError("no schema")
        return Packed.model_validate(content)
    except NONSENSE:
        raise RequestError(
            f"not the description of a packed shard ({path}): have its site make it with 'fedmosaic site pack'"
        ) from None
