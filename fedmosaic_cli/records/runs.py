"""A run on disk: its configuration, a line a round and client, models, and last of all the summary."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.files import is_temporary, read_json, sha256, write, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]

SCHEMA = 1
SUMMARY = "summary.json"
LOCK = ".lock"
LOGS = ("rounds.jsonl", "timings.jsonl")


SPLITS = ("test", "train", "val")
REQUIRED = {"preset": str, "method": str, "variant": str, "seed": int, "rounds": int, "accuracy": dict, "shards": dict}


def model_name(client: int) -> str:
    return f"client-{client:03d}.safetensors"


def evaluation_name(split: str) -> str:
    return "evaluation.json" if split == "test" else f"evaluation-{split}.json"


@dataclass(frozen=True)
class RunFiles:
    """The files of one run directory."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def crash(self) -> Path:
        return self.path / "crash.txt"

    def exists(self) -> bool:
        """Whether there is anything here; what a run that was killed before it began left behind is nothing."""
        if not self.path.is_dir():
            return self.path.exists()
        return any(entry.name != LOCK and not is_temporary(entry) for entry in self.path.iterdir())

    def finished(self) -> bool:
        return (self.path / SUMMARY).is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer a run directory. The system releases the lock when its holder dies, however it dies."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunStateError(
                    f"another process is writing this run ({self.path}): wait for it or stop it"
                ) from None
            yield

    def create(self, config: dict[str, Any], environment: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.config, yaml.safe_dump(config, sort_keys=False).encode())
        if not (self.path / "env.json").exists():  # a continuation keeps the record of how the run began
            write_json(self.path / "env.json", environment)

    def append(self, rows: Iterable[dict[str, Any]], timing: dict[str, Any]) -> None:
        """Add a round to the logs."""
        for name, lines in zip(LOGS, (rows, [timing]), strict=True):
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(text)

    def log_lengths(self) -> dict[str, int]:
        """How long the logs are, once they have reached the disk."""
        lengths = {}
        for name in LOGS:
            with (self.path / name).open("ab") as file:
                os.fsync(file.fileno())
                lengths[name] = file.tell()
        return lengths

    def reopen(self, lengths: dict[str, int] | None = None) -> None:
        """Go back to where the logs had these lengths, or to the start: what came after is played again."""
        lengths = lengths or dict.fromkeys(LOGS, 0)
        for name, length in lengths.items():
            path = self.path / name
            if length and (not path.is_file() or path.stat().st_size < length):
                raise RunStateError(f"log is shorter than its checkpoint says ({path}): start the run anew")
        # A run that goes on is not finished any more, and what was said of its end no longer holds.
        for outdated in (SUMMARY, *map(evaluation_name, SPLITS), self.crash.name):
            (self.path / outdated).unlink(missing_ok=True)
        for name, length in lengths.items():
            with (self.path / name).open("ab") as file:
                file.truncate(length)

    def rounds(self) -> list[dict[str, Any]]:
        """All lines of rounds.jsonl."""
        path = self.path / LOGS[0]
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError):
            raise RequestError(f"cannot read the log ({path}): the file is missing or damaged") from None

    def save_models(self, models: Iterable[tuple[int, Arrays]]) -> dict[str, str]:
        """Write the personal models, one after the other. The digests of their files, by name.

        A client that has the model of the one before it, the same object, shares its file.
        """
        folder = self.path / "models"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        digests: dict[str, str] = {}
        last: tuple[Arrays, Path] | None = None
        for client, arrays in models:
            path = folder / model_name(client)
            if last and arrays is last[0]:
                link_or_copy(last[1], path)
                digests[path.name] = digests[last[1].name]
            else:
                data = save_tensors(arrays)
                write(path, data)
                digests[path.name] = sha256(data)
                last = arrays, path
        return digests

    def load_model(self, client: int) -> Arrays:
        """The personal model of one client, if it is the one that the run wrote."""
        path = self.path / "models" / model_name(client)
        expected = self.summary().get("models", {}).get(path.name)
        try:
            data = path.read_bytes()
            if expected not in (None, sha256(data)):
                raise ValueError("another file")
            return load_tensors(data)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise RequestError(f"cannot read a model, {reason} ({path}): make the run again") from None

    def save_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / SUMMARY, summary)

    def environment(self) -> dict[str, Any]:
        """What env.json tells, if it is there to tell it."""
        path = self.path / "env.json"
        content = read_json(path) if path.is_file() else {}
        return content if isinstance(content, dict) else {}

    def summary(self) -> dict[str, Any]:
        content = read_json(self.path / SUMMARY)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise RequestError(f"not a summary of schema {SCHEMA} ({self.path / SUMMARY}): run it again")
        missing = [key for key in REQUIRED if not isinstance(content.get(key), REQUIRED[key])]
        if missing:
            raise RequestError(f"summary is damaged, '{missing[0]}' is not right ({self.path / SUMMARY}): run it again")
        return content

    def save_evaluation(self, split: str, content: dict[str, Any]) -> Path:
        path = self.path / evaluation_name(split)
        write_json(path, content)
        return path


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name; not every file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
