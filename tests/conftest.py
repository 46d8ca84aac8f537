"""Fixtures and settings of the whole test suite."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

UNIT_TIER = (
    "config",
    "cotraining",
    "data/test_partition.py",
    "labels/test_codecs.py",
    "labels/test_mechanisms.py",
    "methods/test_registry.py",
    "models",
    "test_architecture.py",
    "test_contract.py",
)
"""What `python -m pytest -m unit` runs: contract, formulas, partitions, configuration and architecture."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the unit tier. Longer tests in these files are marked `integration`.

    Of a test marked `thinned(every)` the combinations of parameters whose numbers have a sum that is no multiple of
    `every` are slow. With several parameters each value is still tested together with some values of the others.
    """
    root = Path(__file__).parent
    values: dict[tuple[str, str], list[object]] = {}
    for item in items:
        thinned = item.get_closest_marker("thinned")
        if thinned and sum(parameter_numbers(item, values)) % thinned.kwargs["every"]:
            item.add_marker(pytest.mark.slow)
        path = item.path.relative_to(root).as_posix()
        is_unit = any(path == name or path.startswith(f"{name}/") for name in UNIT_TIER)
        if is_unit and not item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.unit)


def parameter_numbers(item: pytest.Item, values: dict[tuple[str, str], list[object]]) -> list[int]:
    """Return the number of each parameter of a test among the values that were seen before; adds new ones."""
    numbers = []
    for name, value in item.callspec.params.items():
        known = values.setdefault((item.nodeid.split("[")[0], name), [])
        found = [number for number, other in enumerate(known) if other is value]
        numbers.append(found[0] if found else len(known))
        if not found:
            known.append(value)
    return numbers


# The time per example depends on the machine, so there is neither a deadline nor a check for slow examples. In CI the
# examples are always the same, so that a change does not fail because of an unrelated example; everywhere else
# Hypothesis draws new ones. The mutation test only asks whether a test fails, so it does not look for the simplest
# example.
settings.register_profile(
    "fedmosaic",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    phases=(Phase.explicit, Phase.generate) if "FEDMOSAIC_NO_SHRINK" in os.environ else tuple(Phase),
)
settings.load_profile("fedmosaic")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Remove the environment variables that change what commands do or print."""
    for name in ("FEDMOSAIC_RUNS", "FEDMOSAIC_DATA", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def without_progress_lines(monkeypatch):
    disable_progress_lines(monkeypatch)


def disable_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the progress lines of slow operations, which depend on the load of the machine, off stderr."""
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def reset_denormal_flushing():
    """Undo flushing of denormal numbers by commands that ran in this process: Hypothesis rejects it."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


def fedmosaic(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command `fedmosaic` in a new process, which has torch loaded already."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = command_context().Process(
            target=run_command, args=(arguments, Path(cwd), {**os.environ, **environment}, outputs)
        )
        process.start()
        process.join()
        stdout, stderr = (output.read_text(encoding="utf-8") for output in outputs)
    assert process.exitcode is not None
    return subprocess.CompletedProcess(["fedmosaic", *arguments], process.exitcode, stdout, stderr)


@cache
def command_context() -> ForkServerContext:
    """Return how processes start: as copies of one that has loaded torch, which is most of a short command's time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "fedmosaic_cli.runner.experiment", "fedmosaic_cli.cli.app"])
    return context


def run_command(arguments: Sequence[str], cwd: Path, environment: dict[str, str], outputs: Sequence[Path]) -> None:
    """Run the command in this process, with its output in files and without the progress lines of slow operations."""
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["fedmosaic", *arguments]
    from fedmosaic_cli.cli import main

    disable_progress_lines(pytest.MonkeyPatch())
    try:
        main()
    finally:
        atexit._run_exitfuncs()


@pytest.fixture
def with_batch_norm(monkeypatch):
    """Let toys train a network with batch normalisation."""
    from fedmosaic_cli.models.architectures import ARCHITECTURES
    from tests.toys import Normalised

    monkeypatch.setitem(ARCHITECTURES, "mlp", Normalised)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory) -> Path:
    """Return finished runs of several methods, made once per session."""
    folder = tmp_path_factory.mktemp("finished")
    short = ("--preset", "quickstart", "--name", "quickstart", "--rounds", "7", "--quiet")
    for arguments in (
        ("train", *short, "--seeds", "0,1"),
        ("baseline", "all", *short),
        ("baseline", "local", "centralized", "fedct", *short, "--seed", "1"),
    ):
        done = fedmosaic(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "runs"


@pytest.fixture(scope="session")
def auditable_runs(tmp_path_factory) -> Path:
    """Return runs of two clients with enough examples for an audit, made once per session.

    In `memorised` the models fit noisy labels exactly; in `untrained` the learning rate is almost 0. `small` has ten
    clients, which have too few examples each.
    """
    from contextlib import chdir

    from typer.testing import CliRunner

    from fedmosaic_cli.cli.app import app

    folder = tmp_path_factory.mktemp("auditable")
    preset = ("--preset", "quickstart-label-skew", "--name", "quickstart")
    short = (*preset, "--tag", "", "--set", "data.clients=2", "--rounds", "4", "--quiet")
    memorise = ("--set", "data.label_noise=0.9", "--set", "train.local_steps=250", "--set", "model.hidden=[128]")
    memorise += ("--set", "methods.fedmosaic.trust=0.0")
    exchanges = ("--set", "methods.fedmosaic.warmup_rounds=2")
    with chdir(folder):
        for arguments in (
            ("train", *short, *exchanges),
            ("baseline", "local", "centralized", "fedavg", *short),
            ("baseline", "fedct", *short, "--set", "methods.fedct.warmup_rounds=4"),
            ("train", *short, *exchanges, *memorise, "--run-dir", "runs/memorised"),
            ("train", *short, *exchanges, "--set", "train.lr=1e-30", "--run-dir", "runs/untrained"),
            ("baseline", "local", *preset, "--rounds", "1", "--quiet", "--run-dir", "runs/small"),
        ):
            done = CliRunner().invoke(app, arguments)
            assert done.exit_code == 0, done.stderr
    return folder / "runs"
