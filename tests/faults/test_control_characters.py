"""Names with terminal escape sequences: commands print and write them escaped."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.faults.conftest import PARTITION, RUN, TRAIN

NAME = "x\x1b]0;title\x07\x1b[31m\x9b2J"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def home(reference_run, tmp_path):
    shutil.copytree(reference_run, tmp_path, dirs_exist_ok=True)
    return tmp_path


def assert_escaped(result, exit_code=0):
    assert result.exit_code == exit_code, result.stderr
    assert not RAW.search(result.stdout + result.stderr)
    assert r"x\x1b]0;title" in result.stdout + result.stderr


def test_evaluate_train_and_report_escape_names_of_directories(home, run_command):
    shutil.copytree(home / "runs", home / NAME)
    run = f"{NAME}/{RUN.relative_to('runs')}"
    assert_escaped(run_command("evaluate", run))
    assert_escaped(run_command("evaluate", f"{run}-missing"), 2)
    assert_escaped(run_command(*TRAIN, "--run-dir", run))
    assert_escaped(run_command("report", NAME, "--no-figures", "--out", f"tables{NAME}", "--html", "page.html"))
    for path in [*(home / f"tables{NAME}").iterdir(), home / "page.html"]:
        assert not RAW.search(path.read_text()), path


def test_partition_escapes_names_of_directories(run_command):
    assert_escaped(run_command(*PARTITION[:-3], "--out", NAME))


def test_a_traceback_is_escaped(run_command, monkeypatch):
    def fail(*_):
        raise RuntimeError(NAME)

    monkeypatch.setattr("fedmosaic_cli.cli.app.load_command", fail)
    result = run_command("doctor", "--debug")
    assert "Traceback" in result.stderr
    assert_escaped(result, 1)
