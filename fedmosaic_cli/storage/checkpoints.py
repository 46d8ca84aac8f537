"""Checkpoints: the complete state of a run with a digest of every file. The last two are kept."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from fedmosaic_cli.errors import FedMosaicError, RequestError, ResourceError, RunStateError
from fedmosaic_cli.schema import Record
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
    require_no_link,
    sha256,
    to_checksummed_json,
    to_json_bytes,
    write_new_blocks,
    write_new_file,
)
from fedmosaic_cli.storage.tensor_files import TensorFile, layout_of, tensor_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fedmosaic_cli.storage.tensor_files import Array

T = TypeVar("T")

CHECKPOINT_SCHEMA = 2
NUM_KEPT_CHECKPOINTS = 2
TENSORS_FILE, VALUES_FILE, CHECKPOINT_MANIFEST_FILE = "state.safetensors", "state.json", "manifest.json"
CHECKPOINT_PREFIX = "round-"
KEY_SEPARATOR = "/"
"""Between the parts of a path in the state of server and clients."""


class FileEntry(Record):
    size: int
    sha256: str


class CheckpointEnvironment(Record):
    versions: dict[str, str]


class CheckpointManifest(Record):
    """The keys of a manifest that are read. A valid checksum does not prove that the content makes sense."""

    round: Annotated[int, Field(ge=0)]  # a site stores an exchange before the first round as round 0
    config: dict[str, Any]
    environment: CheckpointEnvironment
    nonidentical: list[str]
    logs: list[str]
    files: dict[Annotated[str, Field(pattern=r"^[a-z]+\.[a-z]+$")], FileEntry]


class CheckpointSchemaError(RequestError):
    """Raised for an intact checkpoint of another version."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round` rounds.

    Attributes:
        round: Number of finished rounds.
        arrays: Tensors of the state; those of a checkpoint on the disk are read when they are accessed.
        values: JSON values of the state.
        logs: Contents of the log files so far, by name.
        metadata: Configuration, environment and differences from an uninterrupted run.
    """

    round: int
    arrays: Mapping[str, Array]
    values: dict[str, Any]
    logs: dict[str, bytes]
    metadata: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically, verify it and remove the oldest ones.

    Tensors are written one by one, so that the state is not in memory twice.
    """
    layout = layout_of(checkpoint.arrays)
    contents = {VALUES_FILE: to_json_bytes(checkpoint.values), **checkpoint.logs}
    require_no_link(folder)
    make_directories(folder)
    hint = "free some space, then repeat the command"
    require_free_space(folder, 2 * (layout.num_bytes + sum(map(len, contents.values()))), hint)
    path = folder / f"{CHECKPOINT_PREFIX}{checkpoint.round:05d}"
    with atomic_directory(path) as temporary:
        digest = write_new_blocks(temporary / TENSORS_FILE, tensor_blocks(checkpoint.arrays, layout))
        entries = {TENSORS_FILE: {"size": layout.num_bytes, "sha256": digest}}
        for name, data in contents.items():
            write_new_file(temporary / name, data)
            entries[name] = {"size": len(data), "sha256": sha256(data)}
        manifest = {
            "schema": CHECKPOINT_SCHEMA,
            "round": checkpoint.round,
            **checkpoint.metadata,
            "logs": list(checkpoint.logs),
            "files": entries,
        }
        write_new_file(temporary / CHECKPOINT_MANIFEST_FILE, to_checksummed_json(manifest))
    try:
        verify_checkpoint(path)
    except (FedMosaicError, OSError) as error:
        raise ResourceError(f"the disk does not return what was written, {error}: use another disk") from None
    for old in list_checkpoints(folder)[:-NUM_KEPT_CHECKPOINTS]:
        remove_path(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first. Links are refused: old checkpoints are removed."""
    require_no_link(folder)
    rounds = {path: path.name.removeprefix(CHECKPOINT_PREFIX) for path in folder.glob(f"{CHECKPOINT_PREFIX}*")}
    for path in rounds:
        require_no_link(path)
    return sorted((path for path, number in rounds.items() if number.isdecimal()), key=lambda path: int(rounds[path]))


def read_newest_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the newest readable checkpoint."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint_manifest(path)
        except (RunStateError, OSError):
            continue
    return None


def require_valid_checkpoint(folder: Path) -> None:
    """Raise `RunStateError` if there are checkpoints and all are damaged."""
    newest_valid(folder, verify_checkpoint)


def read_newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Read the newest intact checkpoint.

    Returns:
        The checkpoint, or None if there are none, and the errors of newer, damaged checkpoints by path.
    """
    return newest_valid(folder, read_checkpoint)


def newest_valid(folder: Path, read: Callable[[Path], T]) -> tuple[T | None, dict[Path, str]]:
    """Read the newest checkpoint that `read` accepts; also return the errors of newer ones by path."""
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            return read(path), damaged
        except RunStateError as error:
            damaged[path] = str(error)
    if damaged:
        problem = next(iter(damaged.values()))
        raise RunStateError(f"no valid checkpoint, {problem}: start a new run in another directory")
    return None, {}


def quarantine_checkpoint(damaged: Path) -> None:
    """Rename a damaged checkpoint so that it is neither used nor removed."""
    syscalls.rename(damaged, damaged.with_name(f"damaged-{damaged.name}-{secrets.token_hex(3)}"))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint whose files match their digests."""
    try:
        status = (path / TENSORS_FILE).lstat()
    except OSError:
        status = None  # the digest check says what is wrong
    manifest = verify_checkpoint(path)
    try:
        return Checkpoint(
            round=manifest["round"],
            arrays=TensorFile(path / TENSORS_FILE, status),
            values=read_json(path / VALUES_FILE),
            logs={name: read_regular_file(path / name) for name in manifest["logs"]},
            metadata={key: manifest[key] for key in ("config", "environment", "nonidentical")},
        )
    except (OSError, RequestError) as error:
        raise RunStateError(f"cannot read a checkpoint, {error} ({path})") from None


def verify_checkpoint(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint after checking the digests of its files."""
    manifest = read_checkpoint_manifest(path)
    for name, expected in manifest["files"].items():
        try:
            if (path / name).stat().st_size != expected["size"] or file_sha256(path / name) != expected["sha256"]:
                raise RunStateError(f"checkpoint file is damaged ({path / name})")
        except OSError as error:
            raise RunStateError(f"cannot read a checkpoint, {error.strerror} ({path / name})") from None
    return manifest


def read_checkpoint_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint that this version can read."""
    try:
        manifest = read_checksummed_json(path / CHECKPOINT_MANIFEST_FILE)
        if type(manifest["schema"]) is not int:
            raise TypeError("schema is not an integer")
        if manifest["schema"] != CHECKPOINT_SCHEMA:
            version = manifest["environment"]["versions"]["fedmosaic"]
            raise CheckpointSchemaError(
                f"checkpoint of schema {manifest['schema']}, this version reads {CHECKPOINT_SCHEMA} ({path}): "
                f"resume with fedmosaic {version}"
            )
        CheckpointManifest.model_validate(manifest)
    except CheckpointSchemaError:
        raise
    except (RequestError, OSError, KeyError, TypeError, ValidationError) as error:
        raise RunStateError(f"checkpoint is damaged ({path / CHECKPOINT_MANIFEST_FILE})") from error
    return manifest
