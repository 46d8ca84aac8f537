"""A small run, made the way people make it, and what it should come to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app

RUN = Path("runs") / "shards" / "fedmosaic-frequency" / "seed-0"
ROUNDS = 3
PARTITION = ("partition", "--scheme", "iid", "--clients", "3", "--public-size", "30", "--out", "shards", "-q")
TRAIN = (
    *("train", "--shards", "shards", "--rounds", str(ROUNDS), "--resume"),
    *("--set", "train.checkpoint_every=1", "--set", "train.local_steps=1", "--set", "model.hidden=[4]"),
    *("--set", "methods.fedmosaic.warmup_rounds=1", "--set", "train.execution=threads"),
)
EVALUATE = ("evaluate", str(RUN))
REPORT = ("report", "--no-figures", "--out", "tables")
TRAINING = (TRAIN, EVALUATE, REPORT)
PICTURE = b"a picture"


FIGURES: list[str] = []


@pytest.fixture
def figures(request):
    """What a test counted, for the end of the output (where there is one process: `-n 0`)."""

    def tell(counts: Mapping[str, object]) -> None:
        FIGURES.extend(f"{request.node.name}: {what}: {count}" for what, count in sorted(counts.items()))

    return tell


def pytest_terminal_summary(terminalreporter):
    for line in FIGURES:
        terminalreporter.write_line(line)


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def rounds_told(self) -> int:
        """The last round that the command said it had done."""
        return max((int(number) for number in re.findall(r"  round (\d+)/", self.stderr)), default=0)


@pytest.fixture
def type_in(tmp_path, monkeypatch):
    """Type a command into a shell in the test's own directory; here without a process of its own."""
    monkeypatch.chdir(tmp_path)
    # Drawing takes far longer than anything else, and what is drawn is the business of other tests.
    monkeypatch.setattr("fedmosaic_cli.runner.prepare.partition_plots", lambda manifest: {"distribution.png": PICTURE})

    def run(*arguments: str) -> Ending:
        result = CliRunner().invoke(app, list(arguments), prog_name="fedmosaic")
        return Ending(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def loaded():
    """What is loaded once a process is there: it is no work of a command that is measured."""
    assert CliRunner().invoke(app, ["train", "--preset", "quickstart", "--dry-run"]).exit_code == 0


@pytest.fixture
def judge(loaded, type_in, tmp_path, figures):
    """Types commands in, and holds each to what is promised of all of them."""
    from tests.faults.judge import Judge

    judge = Judge(type_in, tmp_path)
    yield judge
    if judge.codes.total() > 100:
        figures(judge.counts())


def results(folder: Path) -> dict[str, bytes]:
    """What must be the same however a run came about."""
    kept = ["shards/*", f"{RUN}/rounds.jsonl", f"{RUN}/summary.json", f"{RUN}/models/*", f"{RUN}/evaluation*.json"]
    files = [path for pattern in (*kept, "tables/*") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def leftovers(folder: Path) -> list[Path]:
    """Names that nobody but a writer at work should see."""
    return [path for path in folder.rglob("*") if path.name.endswith(".part") or path.name == ".lock"]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Path:
    """The directory of a run that nothing happened to, up to the report."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("fedmosaic_cli.runner.prepare.partition_plots", lambda manifest: {"distribution.png": PICTURE})
        for name in ("FEDMOSAIC_RUNS", "FEDMOSAIC_DATA"):
            patch.delenv(name, raising=False)
        for arguments in (PARTITION, *TRAINING):
            result = CliRunner().invoke(app, list(arguments), prog_name="fedmosaic")
            assert result.exit_code == 0, result.stderr
    assert leftovers(folder) == []
    return folder
