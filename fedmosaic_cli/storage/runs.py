"""A run on disk: its configuration, a line a round and client, models, digests, and last of all the summary."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    LARGEST_JSON,
    append,
    is_temporary,
    new_directory,
    put,
    read_file,
    read_json,
    read_sealed,
    remove,
    sealed,
    sha256,
    sweep,
    to_json,
    write,
    write_together,
)
from fedmosaic_cli.storage.lock import LOCK
from fedmosaic_cli.storage.run_summary import check_schema, check_sense

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]

CONFIG, ENVIRONMENT, SUMMARY = "config.yaml", "env.json", "summary.json"
# The manifest of the shards: who holds what, for those who look at the run when the shards are gone.
SHARDS = "shards.json"
CRASH = "crash.txt"
# Of all files of a finished run, in the form that `sha256sum --check` reads.
DIGESTS = "SHA256SUMS"
ROUNDS, TIMINGS = "rounds.jsonl", "timings.jsonl"
MODELS = "models"
FILES = (CONFIG, ENVIRONMENT, SHARDS, ROUNDS, TIMINGS, SUMMARY, DIGESTS)
DIGEST_LINE = re.compile(
    r"([0-9a-f]{64})  ((?:config\.yaml|env\.json|shards\.json|\w+\.jsonl|summary\.json|models/client-\d+\.safetensors))"
)

SPLITS = ("test", "train", "val")
PRIVACY = "privacy.json"


def model_name(client: int) -> str:
    return f"client-{client:03d}.safetensors"


def evaluation_name(split: str) -> str:
    return "evaluation.json" if split == "test" else f"evaluation-{split}.json"


# What was found out about a finished run afterwards: true of its models as they are, and not part of it.
FINDINGS = (*map(evaluation_name, SPLITS), PRIVACY)


@dataclass(frozen=True)
class RunFiles:
    """The files of one run directory."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def crash(self) -> Path:
        return self.path / CRASH

    def exists(self) -> bool:
        """Whether there is anything here; what a run that ended before it began left behind is nothing."""
        if not self.path.is_dir():
            return self.path.exists()
        nothing = (LOCK, CRASH)
        return any(entry.name not in nothing and not is_temporary(entry) for entry in self.path.iterdir())

    def finished(self) -> bool:
        return (self.path / SUMMARY).is_file()

    def check_kinds(self) -> None:
        """Refuse a directory in which something else lies under a name of ours."""
        if self.path.exists() and not self.path.is_dir():
            raise RequestError(f"not a directory ({self.path}): choose another --run-dir or --runs-dir")
        for name in (*FILES, *FINDINGS, LOCK, CRASH):
            if (self.path / name).exists() and not (self.path / name).is_file():
                raise RequestError(f"this is not a file ({self.path / name}): move it away")
        for folder in (self.checkpoints, self.path / MODELS):
            if folder.exists() and not folder.is_dir():
                raise RequestError(f"this is not a directory ({folder}): move it away")

    def open(
        self,
        config: dict[str, Any],
        environment: dict[str, Any],
        shards: dict[str, Any],
        logs: Mapping[str, bytes],
    ) -> None:
        """Begin, or go back to where the logs were these: what came after is played again."""
        # A run that goes on is not finished any more, and what was said of its end no longer holds.
        for outdated in (SUMMARY, DIGESTS, *FINDINGS, CRASH):
            remove(self.path / outdated)
        sweep(self.path)
        write_together(
            {
                self.config: yaml.safe_dump(config, sort_keys=False).encode(),
                self.path / ENVIRONMENT: to_json(environment),
                self.path / SHARDS: sealed(shards),
                **{self.path / name: logs.get(name, b"") for name in (ROUNDS, TIMINGS)},
            }
        )

    def append(self, rows: Iterable[dict[str, Any]], timing: dict[str, Any]) -> None:
        """Add a round to the logs."""
        for name, lines in ((ROUNDS, rows), (TIMINGS, [timing])):
            append(self.path / name, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode())

    def logs(self) -> dict[str, bytes]:
        return {name: (self.path / name).read_bytes() for name in (ROUNDS, TIMINGS)}

    def rounds_logged(self) -> int:
        """How far the log goes, as far as it can be read."""
        try:
            return max((row["round"] for row in self.rounds()), default=0)
        except (RequestError, KeyError, TypeError):
            return 0

    def size(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def rounds(self) -> list[dict[str, Any]]:
        """All lines of rounds.jsonl."""
        path = self.path / ROUNDS
        try:
            # All lines at once: a log of many rounds is read several times as fast.
            lines = path.read_bytes().splitlines()
            rows: list[dict[str, Any]] = json.loads(b"[%b]" % b",".join(lines))
            if len(rows) != len(lines):
                raise ValueError("more than one value on a line")
            return rows
        except (OSError, RecursionError, ValueError):
            raise RequestError(f"cannot read the log ({path}): the file is missing or damaged") from None

    def save_models(self, models: Iterable[tuple[int, Arrays]]) -> dict[str, str]:
        """Write the personal models, one after the other. The digests of their files, by name.

        A client that has the model of the one before it, the same object, shares its file.
        """
        digests: dict[str, str] = {}
        remove(self.path / MODELS)
        with new_directory(self.path / MODELS) as folder:
            last: tuple[Arrays, Path] | None = None
            for client, arrays in models:
                path = folder / model_name(client)
                if last and arrays is last[0]:
                    link_or_copy(last[1], path)
                    digests[path.name] = digests[last[1].name]
                else:
                    data = save_tensors(arrays)
                    put(path, data)
                    digests[path.name] = sha256(data)
                    last = arrays, path
        return digests

    def load_model(self, client: int, digests: dict[str, str]) -> Arrays:
        """The personal model of one client, if it is the one that the run wrote."""
        path = self.path / MODELS / model_name(client)
        try:
            data = read_file(path)
            if digests.get(path.name) != sha256(data):
                raise ValueError("another file")
            return load_tensors(data)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise RequestError(f"cannot read a model, {reason} ({path}): mend the run with --resume") from None

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the digests of everything, and then the summary."""
        data = to_json(summary)
        digests = {
            name: sha256((self.path / name).read_bytes()) for name in (CONFIG, ENVIRONMENT, SHARDS, ROUNDS, TIMINGS)
        }
        if "federation" not in summary:  # else they are with the sites
            digests |= {f"{MODELS}/{name}": digest for name, digest in summary["models"].items()}
        lines = [f"{digest}  {name}\n" for name, digest in {**digests, SUMMARY: sha256(data)}.items()]
        write(self.path / DIGESTS, "".join(lines).encode())
        write(self.path / SUMMARY, data)

    def damage(self) -> list[Path]:
        """The files of a finished run that are not as they were written."""
        try:
            digests = self.digests()
        except RequestError:
            digests = None
        if digests is None:
            return [self.path / DIGESTS]
        return [self.path / name for name in digests if not self.is_whole(name, digests)]

    def is_whole(self, name: str, digests: dict[str, str]) -> bool:
        try:
            return sha256(read_file(self.path / name)) == digests.get(name)
        except (RequestError, OSError):
            return False

    def digests(self) -> dict[str, str] | None:
        """What each file's digest should be, by name; None where nobody wrote it down."""
        path = self.path / DIGESTS
        if not path.exists():
            return None
        lines = read_file(path, LARGEST_JSON).decode(errors="replace").splitlines()
        found = [DIGEST_LINE.fullmatch(line) for line in lines]
        digests = {match[2]: match[1] for match in found if match}
        if not all(found) or not {CONFIG, ENVIRONMENT, ROUNDS, TIMINGS, SUMMARY} <= digests.keys():
            raise RequestError(f"the file was changed or is damaged ({path}): mend the run with --resume")
        return digests

    def check(self, *names: str) -> None:
        """Refuse files that are not as the run wrote them; where no digests are left, nothing can be said."""
        digests = self.digests()
        for name in names if digests is not None else ():
            if not self.is_whole(name, digests or {}):
                raise RequestError(
                    f"the file was changed or is damaged ({self.path / name}): mend the run with --resume"
                )

    def environment(self) -> dict[str, Any]:
        """What env.json tells, if it is there to tell it."""
        path = self.path / ENVIRONMENT
        content = read_json(path) if path.is_file() else {}
        return content if isinstance(content, dict) else {}

    def shards(self) -> dict[str, Any]:
        """The manifest of the shards that the run was made with."""
        self.check(SHARDS)
        return read_sealed(self.path / SHARDS)

    def summary(self) -> dict[str, Any]:
        """What came of the run. Refused where somebody else wrote it, or a newer version, or it makes no sense."""
        path = self.path / SUMMARY
        content: dict[str, Any] = read_json(path)
        check_schema(content, path)  # first: a newer version may keep digests in another way
        self.check(SUMMARY)
        check_sense(content, path)
        return content

    def evaluation(self, split: str, content: dict[str, Any]) -> tuple[Path, bytes]:
        """Where an evaluation is written, and as what."""
        return self.path / evaluation_name(split), sealed(content)

    def privacy(self, content: dict[str, Any]) -> tuple[Path, bytes]:
        """The same of an audit."""
        return self.path / PRIVACY, sealed(content)

    def load_evaluation(self, split: str) -> dict[str, Any]:
        """The evaluation on a part of the data, if there is one and it is of the models as they are."""
        content = read_sealed(self.path / evaluation_name(split))
        if content.get("split") != split or content.get("rounds") != self.summary()["rounds"]:
            raise RequestError(f"not of this run ({self.path / evaluation_name(split)}): evaluate it again")
        return content


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name; not every file system can."""
    try:
        syscalls.link(source, target)
    except OSError:
        put(target, source.read_bytes())
