"""Checkpoints: where a run stands after a round, with a digest of every file, the last two kept."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedmosaic_cli.errors import FedMosaicError, RunStateError
from fedmosaic_cli.files import new_directory, read_json, sha256, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.records.runs import Arrays

SCHEMA = 1
KEPT = 2
TENSORS, VALUES, MANIFEST = "state.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """`arrays` and `values` together are the state of a run after `round` rounds; `logs` are its logs' lengths then."""

    round: int
    arrays: Arrays
    values: dict[str, Any]
    logs: dict[str, int]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all, then drop those that are too old."""
    files = {TENSORS: save_tensors(checkpoint.arrays), VALUES: to_json(checkpoint.values)}
    path = folder / f"round-{checkpoint.round:05d}"
    if path.exists():
        shutil.rmtree(path)
    with new_directory(path) as temporary:
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        manifest = {
            "schema": SCHEMA,
            "round": checkpoint.round,
            "logs": checkpoint.logs,
            "files": {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()},
        }
        (temporary / MANIFEST).write_bytes(to_json(manifest))
    for old in all_in(folder)[:-KEPT]:
        shutil.rmtree(old)


def all_in(folder: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    found = [path for path in folder.glob("round-*") if path.name.removeprefix("round-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("round-")))


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a warning for each newer one that is not; None where there are none."""
    warnings: list[str] = []
    for path in reversed(all_in(folder)):
        try:
            return load(path), warnings
        except FedMosaicError as error:
            warnings.append(str(error))
    if warnings:
        raise RunStateError(f"no valid checkpoint, {warnings[0]}: start the run anew in another directory")
    return None, []


def load(path: Path) -> Checkpoint:
    """A checkpoint, checked against its digests."""
    try:
        manifest = read_json(path / MANIFEST)
        if manifest["schema"] != SCHEMA:
            raise RunStateError(f"checkpoint of schema {manifest['schema']} ({path}): this version reads {SCHEMA}")
        contents = {name: (path / name).read_bytes() for name in (TENSORS, VALUES)}
        for name, data in contents.items():
            if sha256(data) != manifest["files"][name]["sha256"]:
                raise RunStateError(f"checkpoint file is damaged ({path / name})")
        values = read_json(path / VALUES)
        return Checkpoint(manifest["round"], load_tensors(contents[TENSORS]), values, manifest["logs"])
    except (OSError, KeyError, TypeError):
        raise RunStateError(f"checkpoint is incomplete ({path})") from None
