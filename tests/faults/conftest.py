"""A small run through the command line, and its expected results."""

from __future__ import annotations

import re
import signal
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
    *("--name", "shards", "--tag", ""),
)
EVALUATE = ("evaluate", str(RUN))
REPORT = ("report", "--no-figures", "--out", "tables")
TRAINING = (TRAIN, EVALUATE, REPORT)
PICTURE = b"a picture"


COUNT_LINES: list[str] = []


@pytest.fixture(autouse=True)
def default_signals():
    """Start commands with the default handlers of signals, also if this process ignores them (nohup)."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def report_counts(request):
    """Add counts to the end of the test output (with one process, `-n 0`)."""

    def tell(counts: Mapping[str, object]) -> None:
        COUNT_LINES.extend(f"{request.node.name}: {what}: {count}" for what, count in sorted(counts.items()))

    return tell


def pytest_terminal_summary(terminalreporter):
    for line in COUNT_LINES:
        terminalreporter.write_line(line)


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def last_reported_round(self) -> int:
        """The last round that the command reported."""
        return max((int(number) for number in re.findall(r"  round (\d+)/", self.stderr)), default=0)


@pytest.fixture
def run_command(tmp_path, monkeypatch):
    """Run a command in the directory of the test, within this process."""
    monkeypatch.chdir(tmp_path)
    # Plotting is slow and tested elsewhere.
    monkeypatch.setattr("fedmosaic_cli.runner.prepare.partition_plots", lambda manifest: {"distribution.png": PICTURE})

    def run(*arguments: str) -> CommandResult:
        result = CliRunner().invoke(app, list(arguments), prog_name="fedmosaic")
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def warm_up():
    """Import everything before a command is timed."""
    assert CliRunner().invoke(app, ["train", "--preset", "quickstart", "--dry-run"]).exit_code == 0


@pytest.fixture
def check_command(warm_up, run_command, tmp_path, report_counts):
    """Runs commands and checks the guarantees of all commands."""
    from tests.faults.command_checker import CommandChecker

    check_command = CommandChecker(run_command, tmp_path)
    yield check_command
    if check_command.codes.total() > 100:
        report_counts(check_command.counts())


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that must not depend on how a run was interrupted."""
    kept = ["shards/*", f"{RUN}/rounds.jsonl", f"{RUN}/summary.json", f"{RUN}/models/*", f"{RUN}/evaluation*.json"]
    files = [path for pattern in (*kept, "tables/*") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def leftovers(folder: Path) -> list[Path]:
    """Return temporary files and lock files."""
    return [path for path in folder.rglob("*") if path.name.endswith(".part") or path.name == ".lock"]


@pytest.fixture(scope="session")
def reference_run(tmp_path_factory) -> Path:
    """The directory of an uninterrupted run, including the report."""
    folder = tmp_path_factory.mktemp("reference_run")
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
