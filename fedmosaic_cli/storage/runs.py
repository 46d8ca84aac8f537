"""The files of a run: configuration, one log line per round and client, models, digests, and finally the summary."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    MAX_JSON_BYTES,
    append_bytes,
    atomic_directory,
    is_temporary_path,
    read_checksummed_json,
    read_json,
    read_regular_file,
    remove_path,
    remove_stale_temporaries,
    require_no_links_below,
    sha256,
    to_checksummed_json,
    to_json_bytes,
    write_atomic,
    write_files_atomic,
    write_new_file,
)
from fedmosaic_cli.storage.lock import LOCK_FILE
from fedmosaic_cli.storage.run_summary import check_summary_schema, validate_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    ArrayDict = dict[str, NDArray[np.generic]]

CONFIG_FILE, ENVIRONMENT_FILE, SUMMARY_FILE = "config.yaml", "env.json", "summary.json"
# A copy of the shard manifest, which stays available when the shards are deleted.
SHARDS_FILE = "shards.json"
CRASH_FILE = "crash.txt"
# Digests of all files of a finished run in the format of `sha256sum --check`.
DIGESTS_FILE = "SHA256SUMS"
ROUNDS_FILE, TIMINGS_FILE = "rounds.jsonl", "timings.jsonl"
MODELS_DIR = "models"
RUN_FILES = (CONFIG_FILE, ENVIRONMENT_FILE, SHARDS_FILE, ROUNDS_FILE, TIMINGS_FILE, SUMMARY_FILE, DIGESTS_FILE)
DIGEST_LINE_PATTERN = re.compile(
    r"([0-9a-f]{64})  ((?:config\.yaml|env\.json|shards\.json|\w+\.jsonl|summary\.json|models/client-\d+\.safetensors))"
)

EVALUATION_SPLITS = ("test", "train", "val")
PRIVACY_FILE = "privacy.json"


def model_file_name(client: int) -> str:
    return f"client-{client:03d}.safetensors"


def evaluation_file_name(split: str) -> str:
    return "evaluation.json" if split == "test" else f"evaluation-{split}.json"


# Written by later commands about the models of a finished run; not part of the run.
POST_RUN_FILES = (*map(evaluation_file_name, EVALUATION_SPLITS), PRIVACY_FILE)


class RunLogs:
    """Appends to the logs of a run, and knows the digests of all that was written.

    Args:
        folder: The run's directory.
        contents: What the logs contain at the start, by name.
    """

    def __init__(self, folder: Path, contents: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._hashes = {name: hashlib.sha256(contents.get(name, b"")) for name in (ROUNDS_FILE, TIMINGS_FILE)}

    def append_round(self, rows: Iterable[dict[str, Any]], timing: dict[str, Any]) -> None:
        for name, lines in ((ROUNDS_FILE, rows), (TIMINGS_FILE, [timing])):
            data = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
            append_bytes(self._folder / name, data)
            self._hashes[name].update(data)

    def digests(self) -> dict[str, str]:
        """Return the digests of what was written, by name."""
        return {name: digest.hexdigest() for name, digest in self._hashes.items()}

    def read_unchanged(self) -> dict[str, bytes]:
        """Return the contents of the logs, by name.

        Raises:
            RunStateError: Another process has changed a log.
        """
        contents = {name: read_regular_file(self._folder / name) for name in self._hashes}
        for name, digest in self.digests().items():
            if sha256(contents[name]) != digest:
                raise RunStateError(
                    f"another process changed the log during the run ({self._folder / name}): "
                    "stop that process, then repeat the command"
                )
        return contents

    def read_rounds(self) -> list[dict[str, Any]]:
        """Return all rows of rounds.jsonl, which must be as they were written."""
        return parse_rows(self.read_unchanged()[ROUNDS_FILE])


def parse_rows(data: bytes) -> list[dict[str, Any]]:
    """Return the values of a JSONL file, one per line. Raise `ValueError` if it is damaged."""
    lines = data.splitlines()
    # Parsing all lines at once is several times faster.
    rows: list[dict[str, Any]] = json.loads(b"[%b]" % b",".join(lines))
    if len(rows) != len(lines):
        raise ValueError("more than one value on a line")
    return rows


@dataclass(frozen=True)
class RunDirectory:
    """Access to the files of one run directory."""

    path: Path

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard_dir(self) -> Path:
        return self.path / "tensorboard"

    @property
    def crash_path(self) -> Path:
        return self.path / CRASH_FILE

    def has_content(self) -> bool:
        """Return whether the directory holds more than the leftovers of a run that failed before its first round."""
        if not self.path.is_dir():
            return self.path.exists()
        leftovers = (LOCK_FILE, CRASH_FILE)
        return any(entry.name not in leftovers and not is_temporary_path(entry) for entry in self.path.iterdir())

    def is_finished(self) -> bool:
        return (self.path / SUMMARY_FILE).is_file()

    def check_file_types(self) -> None:
        """Raise `RequestError` for a symbolic link, or an entry of another type than its name says."""
        if self.path.exists() and not self.path.is_dir():
            raise RequestError(f"not a directory ({self.path}): choose another --run-dir or --runs-dir")
        require_no_links_below(self.path)
        for name in (*RUN_FILES, *POST_RUN_FILES, LOCK_FILE, CRASH_FILE):
            if (self.path / name).exists() and not (self.path / name).is_file():
                raise RequestError(f"not a file ({self.path / name}): move it away")
        for folder in (self.checkpoints_dir, self.path / MODELS_DIR):
            if folder.exists() and not folder.is_dir():
                raise RequestError(f"not a directory ({folder}): move it away")

    def initialize(
        self,
        config: dict[str, Any],
        environment: dict[str, Any],
        shards: dict[str, Any],
        logs: Mapping[str, bytes],
    ) -> RunLogs:
        """Start a run, or roll it back to the state with these logs. Return them for the rounds that follow."""
        # A continued run is no longer finished, so results about its end are removed.
        for outdated in (SUMMARY_FILE, DIGESTS_FILE, *POST_RUN_FILES, CRASH_FILE):
            remove_path(self.path / outdated)
        remove_stale_temporaries(self.path)
        write_files_atomic(
            {
                self.config_path: yaml.safe_dump(config, sort_keys=False).encode(),
                self.path / ENVIRONMENT_FILE: to_json_bytes(environment),
                self.path / SHARDS_FILE: to_checksummed_json(shards),
                **{self.path / name: logs.get(name, b"") for name in (ROUNDS_FILE, TIMINGS_FILE)},
            }
        )
        return RunLogs(self.path, logs)

    def num_logged_rounds(self) -> int:
        """Return the last round in the log; 0 if the log cannot be read."""
        try:
            return max((row["round"] for row in self.read_rounds()), default=0)
        except (RequestError, KeyError, TypeError):
            return 0

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def read_rounds(self) -> list[dict[str, Any]]:
        """Return all rows of rounds.jsonl."""
        path = self.path / ROUNDS_FILE
        try:
            return parse_rows(path.read_bytes())
        except (OSError, RecursionError, ValueError):
            raise RequestError(f"cannot read the log ({path}): the file is missing or damaged") from None

    def save_models(self, models: Iterable[tuple[int, ArrayDict]]) -> dict[str, str]:
        """Write the personal models and return the digests of their files by name.

        A client with the same model object as the previous client gets a hard link to its file.
        """
        digests: dict[str, str] = {}
        remove_path(self.path / MODELS_DIR)
        with atomic_directory(self.path / MODELS_DIR) as folder:
            last: tuple[ArrayDict, Path] | None = None
            for client, arrays in models:
                path = folder / model_file_name(client)
                if last and arrays is last[0]:
                    link_or_copy(last[1], path)
                    digests[path.name] = digests[last[1].name]
                else:
                    data = save_tensors(arrays)
                    write_new_file(path, data)
                    digests[path.name] = sha256(data)
                    last = arrays, path
        return digests

    def load_model(self, client: int, digests: dict[str, str]) -> ArrayDict:
        """Read the personal model of one client and check its digest."""
        path = self.path / MODELS_DIR / model_file_name(client)
        try:
            data = read_regular_file(path)
            if digests.get(path.name) != sha256(data):
                raise ValueError("digest mismatch")
            return load_tensors(data)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise RequestError(
                f"cannot read a model, {reason} ({path}): repeat its command to repair the run"
            ) from None

    def finalize(self, summary: dict[str, Any], log_digests: Mapping[str, str]) -> None:
        """Write the digests of all files, with those of the logs as they were written, and then the summary."""
        data = to_json_bytes(summary)
        described = (CONFIG_FILE, ENVIRONMENT_FILE, SHARDS_FILE)
        digests = {**{name: sha256((self.path / name).read_bytes()) for name in described}, **log_digests}
        if "federation" not in summary:  # else the sites keep the models
            digests |= {f"{MODELS_DIR}/{name}": digest for name, digest in summary["models"].items()}
        lines = [f"{digest}  {name}\n" for name, digest in {**digests, SUMMARY_FILE: sha256(data)}.items()]
        write_atomic(self.path / DIGESTS_FILE, "".join(lines).encode())
        write_atomic(self.path / SUMMARY_FILE, data)

    def damaged_files(self) -> list[Path]:
        """Return the files of a finished run whose content has changed."""
        try:
            digests = self.read_digests()
        except RequestError:
            digests = None
        if digests is None:
            return [self.path / DIGESTS_FILE]
        return [self.path / name for name in digests if not self.is_intact(name, digests)]

    def is_intact(self, name: str, digests: dict[str, str]) -> bool:
        try:
            return sha256(read_regular_file(self.path / name)) == digests.get(name)
        except (RequestError, OSError):
            return False

    def read_digests(self) -> dict[str, str] | None:
        """Return the expected digests by file name; None if there is no digest file."""
        path = self.path / DIGESTS_FILE
        if not path.exists():
            return None
        lines = read_regular_file(path, MAX_JSON_BYTES).decode(errors="replace").splitlines()
        matches = [DIGEST_LINE_PATTERN.fullmatch(line) for line in lines]
        digests = {match[2]: match[1] for match in matches if match}
        required = {CONFIG_FILE, ENVIRONMENT_FILE, ROUNDS_FILE, TIMINGS_FILE, SUMMARY_FILE}
        if not all(matches) or not required <= digests.keys():
            raise changed_file_error(path)
        return digests

    def verify_files(self, *names: str) -> None:
        """Raise `RequestError` for files that do not match their digests; without a digest file, check nothing."""
        digests = self.read_digests()
        for name in names if digests is not None else ():
            if not self.is_intact(name, digests or {}):
                raise changed_file_error(self.path / name)

    def read_environment(self) -> dict[str, Any]:
        """Return the content of env.json; empty if it does not exist."""
        path = self.path / ENVIRONMENT_FILE
        content = read_json(path) if path.is_file() else {}
        return content if isinstance(content, dict) else {}

    def read_shard_manifest(self) -> dict[str, Any]:
        """Read the manifest of the shards that the run used."""
        self.verify_files(SHARDS_FILE)
        return read_checksummed_json(self.path / SHARDS_FILE)

    def read_summary(self) -> dict[str, Any]:
        """Read and validate the summary of a finished run."""
        path = self.path / SUMMARY_FILE
        content: dict[str, Any] = read_json(path)
        check_summary_schema(content, path)  # first: a newer version may store digests differently
        self.verify_files(SUMMARY_FILE)
        validate_summary(content, path)
        return content

    def evaluation_file(self, split: str, content: dict[str, Any]) -> tuple[Path, bytes]:
        """Return the path and the bytes of an evaluation file."""
        return self.path / evaluation_file_name(split), to_checksummed_json(content)

    def privacy_file(self, content: dict[str, Any]) -> tuple[Path, bytes]:
        """Return the path and the bytes of a privacy audit."""
        return self.path / PRIVACY_FILE, to_checksummed_json(content)

    def read_evaluation(self, split: str) -> dict[str, Any]:
        """Read the evaluation on a split if it belongs to the current models."""
        content = read_checksummed_json(self.path / evaluation_file_name(split))
        if content.get("split") != split or content.get("rounds") != self.read_summary()["rounds"]:
            raise RequestError(
                f"not an evaluation of this run ({self.path / evaluation_file_name(split)}): evaluate it again"
            )
        return content


def changed_file_error(path: Path) -> RequestError:
    return RequestError(f"the file was changed or is damaged ({path}): repeat its command to repair the run")


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link, or a copy where the file system has no hard links."""
    try:
        syscalls.hard_link(source, target)
    except OSError:
        write_new_file(target, source.read_bytes())
