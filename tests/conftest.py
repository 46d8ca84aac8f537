"""What several tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's business. A check of a change must not fail for an example that the
# change did not bring about, so there the examples are always the same; everywhere else new ones are tried.
settings.register_profile("fedmosaic", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedmosaic")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No variable of the person who runs the tests reaches them."""
    for name in ("FEDMOSAIC_RUNS", "FEDMOSAIC_DATA", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def plain_arithmetic():
    """A command that ran in this process lets tiny numbers count as 0; hypothesis takes that for a broken machine."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


def fedmosaic(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`fedmosaic` as typed, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fedmosaic_cli", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def with_batch_norm(monkeypatch):
    """Toys play with a network that has batch statistics."""
    from fedmosaic_cli.models.architectures import ARCHITECTURES
    from tests.toys import Normalised

    monkeypatch.setitem(ARCHITECTURES, "mlp", Normalised)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory) -> Path:
    """The runs of a few methods, made once."""
    folder = tmp_path_factory.mktemp("finished")
    short = ("--preset", "quickstart", "--rounds", "7", "--quiet")
    for arguments in (
        ("train", *short, "--seeds", "0,1"),
        ("baseline", "all", *short),
        ("baseline", "local", "centralized", "fedct", *short, "--seed", "1"),
    ):
        done = fedmosaic(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "runs"
