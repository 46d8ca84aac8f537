"""Checkpoints: all that a run needs to go on, with a digest of every file, the last two kept."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedmosaic_cli import disk
from fedmosaic_cli.errors import FedMosaicError, RequestError, ResourceError, RunStateError
from fedmosaic_cli.files import (
    check_room,
    make_directories,
    new_directory,
    put,
    read_json,
    read_sealed,
    remove,
    sealed,
    sha256,
    to_json,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.records.runs import Arrays

SCHEMA = 2
KEPT = 2
TENSORS, VALUES, MANIFEST = "state.safetensors", "state.json", "manifest.json"
PREFIX = "round-"


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


def load_newest(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each newer one; None where there are none."""
    damaged: dict[Path, str] = {}
    for path in reversed(all_in(folder)):
        try:
            return load(path), damaged
        except RunStateError as error:
            damaged[path] = str(error)
    if damaged:
        raise RunStateError(f"no valid checkpoint, {next(iter(damaged.values()))}: start the run anew in another place")
    return None, {}


def set_aside(damaged: Path) -> None:
    """Give a checkpoint that is not whole a name under which it is neither used nor dropped."""
    disk.rename(damaged, damaged.with_name(f"damaged-{damaged.name}-{secrets.token_hex(3)}"))


def load(path: Path) -> Checkpoint:
    """A checkpoint, checked against its digests."""
    manifest = verify(path)
    try:
        return Checkpoint(
            round=manifest["round"],
            arrays=load_tensors((path / TENSORS).read_bytes()),
            values=read_json(path / VALUES),
            logs={name: (path / name).read_bytes() for name in manifest["logs"]},
            origin={key: manifest[key] for key in ("config", "environment", "nonidentical")},
        )
    except OSError as error:
        raise RunStateError(f"cannot read a checkpoint, {error.strerror} ({path})") from None


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, all files of which are as they were written."""
    manifest = read_manifest(path)
    for name, expected in manifest["files"].items():
        try:
            with (path / name).open("rb") as file:
                whole = hashlib.file_digest(file, "sha256").hexdigest() == expected["sha256"]
        except OSError as error:
            raise RunStateError(f"cannot read a checkpoint, {error.strerror} ({path / name})") from None
        if not whole:
            raise RunStateError(f"checkpoint file is damaged ({path / name})")
    return manifest


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, if it is one that this version reads."""
    try:
        manifest = read_sealed(path / MANIFEST)
    except (RequestError, OSError) as error:
        raise RunStateError(f"checkpoint is damaged ({path / MANIFEST})") from error
    if manifest.get("schema") != SCHEMA:
        made_by = manifest.get("environment", {}).get("versions", {}).get("fedmosaic", "another version")
        raise RequestError(
            f"checkpoint of schema {manifest.get('schema')}, this version reads {SCHEMA} ({path}): "
            f"go on with fedmosaic {made_by}"
        )
    return manifest
