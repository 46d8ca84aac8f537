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
    atomic_directory,
    file_sha256,
    make_directories,
    read_checksummed_json,
    read_json,
    read_regular_file,
    remove_path,
    require_free_space,
    sha256,
    to_checksummed_json,
    to_json_bytes,
    write_new_file,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.storage.runs import ArrayDict

CHECKPOINT_SCHEMA = 2
NUM_KEPT_CHECKPOINTS = 2
TENSORS_FILE, VALUES_FILE, CHECKPOINT_MANIFEST_FILE = "state.safetensors", "state.json", "manifest.json"
CHECKPOINT_PREFIX = "round-"


class FileEntry(BaseModel):
    """What is known of a file beforehand."""

    model_config = ConfigDict(strict=True)

    size: int
    sha256: str


class CheckpointEnvironment(BaseModel):
    """On what a run was made: whatever is said of it, and versions."""

    model_config = ConfigDict(strict=True, extra="allow")

    versions: dict[str, str]


class CheckpointManifest(BaseModel):
    """What is read of a manifest, which may be anybody's: a checksum tells of damage, not of sense."""

    model_config = ConfigDict(strict=True)

    round: Annotated[int, Field(ge=1)]
    config: dict[str, Any]
    environment: CheckpointEnvironment
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
    arrays: ArrayDict
    values: dict[str, Any]
    logs: dict[str, bytes]
    metadata: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all; once it has been read back, drop those that are too old."""
    contents = {
        TENSORS_FILE: save_tensors(checkpoint.arrays),
        VALUES_FILE: to_json_bytes(checkpoint.values),
        **checkpoint.logs,
    }
    make_directories(folder)
    require_free_space(folder, 2 * sum(map(len, contents.values())), "make room, then go on with --resume")
    path = folder / f"{CHECKPOINT_PREFIX}{checkpoint.round:05d}"
    with atomic_directory(path) as temporary:
        for name, data in contents.items():
            write_new_file(temporary / name, data)
        manifest = {
            "schema": CHECKPOINT_SCHEMA,
            "round": checkpoint.round,
            **checkpoint.metadata,
            "logs": list(checkpoint.logs),
            "files": {name: {"size": len(data), "sha256": sha256(data)} for name, data in contents.items()},
        }
        write_new_file(temporary / CHECKPOINT_MANIFEST_FILE, to_checksummed_json(manifest))
    try:
        verify_checkpoint(path)
    except (FedMosaicError, OSError) as error:
        raise ResourceError(f"the disk does not keep what is written to it, {error}: use another one") from None
    for old in list_checkpoints(folder)[:-NUM_KEPT_CHECKPOINTS]:
        remove_path(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    found = [
        path for path in folder.glob(f"{CHECKPOINT_PREFIX}*") if path.name.removeprefix(CHECKPOINT_PREFIX).isdecimal()
    ]
    return sorted(found, key=lambda path: int(path.name.removeprefix(CHECKPOINT_PREFIX)))


def read_newest_manifest(folder: Path) -> dict[str, Any] | None:
    """What the newest checkpoint that can be read says of itself."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint_manifest(path)
        except (RunStateError, OSError):
            continue
    return None


def require_valid_checkpoint(folder: Path) -> None:
    """Refuse to go on where there are checkpoints, but none that is whole."""
    problem = ""
    for path in reversed(list_checkpoints(folder)):
        try:
            verify_checkpoint(path)
        except RunStateError as error:
            problem = problem or str(error)
        else:
            return
    if problem:
        raise no_valid_checkpoint_error(problem)


def no_valid_checkpoint_error(problem: str) -> RunStateError:
    return RunStateError(f"no valid checkpoint, {problem}: start the run anew in another place")


def read_newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each newer one; None where there are none."""
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path), damaged
        except RunStateError as error:
            damaged[path] = str(error)
    if damaged:
        raise no_valid_checkpoint_error(next(iter(damaged.values())))
    return None, {}


def quarantine_checkpoint(damaged: Path) -> None:
    """Give a checkpoint that is not whole a name under which it is neither used nor dropped."""
    syscalls.rename(damaged, damaged.with_name(f"damaged-{damaged.name}-{secrets.token_hex(3)}"))


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, checked against its digests."""
    manifest = verify_checkpoint(path)
    try:
        return Checkpoint(
            round=manifest["round"],
            arrays=load_tensors(read_regular_file(path / TENSORS_FILE)),
            values=read_json(path / VALUES_FILE),
            logs={name: read_regular_file(path / name) for name in manifest["logs"]},
            metadata={key: manifest[key] for key in ("config", "environment", "nonidentical")},
        )
    except (OSError, RequestError, SafetensorError) as error:
        raise RunStateError(f"cannot read a checkpoint, {error} ({path})") from None


def verify_checkpoint(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, all files of which are as they were written."""
    manifest = read_checkpoint_manifest(path)
    for name, expected in manifest["files"].items():
        try:
            if (path / name).stat().st_size != expected["size"] or file_sha256(path / name) != expected["sha256"]:
                raise RunStateError(f"checkpoint file is damaged ({path / name})")
        except OSError as error:
            raise RunStateError(f"cannot read a checkpoint, {error.strerror} ({path / name})") from None
    return manifest


def read_checkpoint_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, if it is one that this version reads."""
    try:
        manifest = read_checksummed_json(path / CHECKPOINT_MANIFEST_FILE)
        if type(manifest["schema"]) is not int:
            raise TypeError("a schema is a number")
        if manifest["schema"] != CHECKPOINT_SCHEMA:
            made_by = manifest["environment"]["versions"]["fedmosaic"]
            raise CheckpointSchemaError(
                f"checkpoint of schema {manifest['schema']}, this version reads {CHECKPOINT_SCHEMA} ({path}): "
                f"go on with fedmosaic {made_by}"
            )
        CheckpointManifest.model_validate(manifest)
    except CheckpointSchemaError:
        raise
    except (RequestError, OSError, KeyError, TypeError, ValidationError) as error:
        raise RunStateError(f"checkpoint is damaged ({path / CHECKPOINT_MANIFEST_FILE})") from error
    return manifest


class CheckpointSchemaError(RequestError):
    """A checkpoint that is whole, but not for us."""
