"""Checkpoints: all that a run needs to go on, with a digest of every file, the last two kept."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedmosaic_cli.errors import FedMosaicError, RequestError, ResourceError, RunStateError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    check_room,
    file_sha256,
    make_directories,
    new_directory,
    put,
    read_file,
    read_json,
    read_sealed,
    remove,
    sealed,
    sha256,
    to_json,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.storage.runs import Arrays

SCHEMA = 2
KEPT = 2
TENSORS, VALUES, MANIFEST = "state.safetensors", "state.json", "manifest.json"
PREFIX = "round-"


class FileEntry(BaseModel):
    """What is known of a file beforehand."""

    model_config = ConfigDict(strict=True)

    size: int
    sha256: str


class Environment(BaseModel):
    """On what a run was made: whatever is said of it, and versions."""

    model_config = ConfigDict(strict=True, extra="allow")

    versions: dict[str, str]


class Manifest(BaseModel):
    """What is read of a manifest, which may be anybody's: a checksum tells of damage, not of sense."""

    model_config = ConfigDict(strict=True)

    round: Annotated[int, Field(ge=1)]
    config: dict[str, Any]
    environment: Environment
    nonidentical: list[str]
    logs: list[str]
    files: dict[Annotated[str, Field(pattern=r"^[a-z]+\.[a-z]+$")], FileEntry]


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round` rounds.

    `arrays` and `values` together are its state, `logs` its logs so far, `origin` its configuration, on what it was
    made, and where it departs from a run made in one go.
    """

    round: int
    arrays: Arrays
    values: dict[str, Any]
    logs: dict[str, bytes]
    origin: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all; once it has been read back, drop those that are too old."""
    contents = {TENSORS: save_tensors(checkpoint.arrays), VALUES: to_json(checkpoint.values), **checkpoint.logs}
    make_directories(folder)
    check_room(folder, 2 * sum(map(len, contents.values())), "make room, then go on with --resume")
    path = folder / f"{PREFIX}{checkpoint.round:05d}"
    with new_directory(path) as temporary:
        for name, data in contents.items():
            put(temporary / name, data)
        manifest = {
            "schema": SCHEMA,
            "round": checkpoint.round,
            **checkpoint.origin,
            "logs": list(checkpoint.logs),
            "files": {name: {"size": len(data), "sha256": sha256(data)} for name, data in contents.items()},
        }
        put(temporary / MANIFEST, sealed(manifest))
    try:
        verify(path)
    except (FedMosaicError, OSError) as error:
        raise ResourceError(f"the disk does not keep what is written to it, {error}: use another one") from None
    for old in all_in(folder)[:-KEPT]:
        remove(old)


def all_in(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)))


def newest_manifest(folder: Path) -> dict[str, Any] | None:
    """What the newest checkpoint that can be read says of itself."""
    for path in reversed(all_in(folder)):
        try:
            return read_manifest(path)
        except (RunStateError, OSError):
            continue
    return None


def check_usable(folder: Path) -> None:
    """Refuse to go on where there are checkpoints, but none that is whole."""
    problem = ""
    for path in reversed(all_in(folder)):
        try:
            verify(path)
        except RunStateError as error:
            problem = problem or str(error)
        else:
            return
    if problem:
        raise none_is_valid(problem)


def none_is_valid(problem: str) -> RunStateError:
    return RunStateError(f"no valid checkpoint, {problem}: start the run anew in another place")


def load_newest(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each newer one; None where there are none."""
    damaged: dict[Path, str] = {}
    for path in reversed(all_in(folder)):
        try:
            return load(path), damaged
        except RunStateError as error:
            damaged[path] = str(error)
    if damaged:
        raise none_is_valid(next(iter(damaged.values())))
    return None, {}


def set_aside(damaged: Path) -> None:
    """Give a checkpoint that is not whole a name under which it is neither used nor dropped."""
    syscalls.rename(damaged, damaged.with_name(f"damaged-{damaged.name}-{secrets.token_hex(3)}"))


def load(path: Path) -> Checkpoint:
    """A checkpoint, checked against its digests."""
    manifest = verify(path)
    try:
        return Checkpoint(
            round=manifest["round"],
            arrays=load_tensors(read_file(path / TENSORS)),
            values=read_json(path / VALUES),
            logs={name: read_file(path / name) for name in manifest["logs"]},
            origin={key: manifest[key] for key in ("config", "environment", "nonidentical")},
        )
    except (OSError, RequestError, SafetensorError) as error:
        raise RunStateError(f"cannot read a checkpoint, {error} ({path})") from None


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, all files of which are as they were written."""
    manifest = read_manifest(path)
    for name, expected in manifest["files"].items():
        try:
            if (path / name).stat().st_size != expected["size"] or file_sha256(path / name) != expected["sha256"]:
                raise RunStateError(f"checkpoint file is damaged ({path / name})")
        except OSError as error:
            raise RunStateError(f"cannot read a checkpoint, {error.strerror} ({path / name})") from None
    return manifest


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, if it is one that this version reads."""
    try:
        manifest = read_sealed(path / MANIFEST)
        if type(manifest["schema"]) is not int:
            raise TypeError("a schema is a number")
        if manifest["schema"] != SCHEMA:
            made_by = manifest["environment"]["versions"]["fedmosaic"]
            raise OtherSchemaError(
                f"checkpoint of schema {manifest['schema']}, this version reads {SCHEMA} ({path}): "
                f"go on with fedmosaic {made_by}"
            )
        Manifest.model_validate(manifest)
    except OtherSchemaError:
        raise
    except (RequestError, OSError, KeyError, TypeError, ValidationError) as error:
        raise RunStateError(f"checkpoint is damaged ({path / MANIFEST})") from error
    return manifest


class OtherSchemaError(RequestError):
    """A checkpoint that is whole, but not for us."""
