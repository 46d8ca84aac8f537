"""One short pass through every command and every dependency, for other versions of them: see .ci/lowest-versions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parent.parent
SHORT = ("--preset", "quickstart", "--name", "quickstart", "--quiet", "--rounds", "2")


@pytest.fixture(scope="module")
def smoke_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture
def run(smoke_folder, monkeypatch):
    """Run a command in a directory that all tests of this file share."""
    monkeypatch.chdir(smoke_folder)

    def invoke(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result

    return invoke


def test_methods_train_and_resume(run, smoke_folder):
    run("train", *SHORT)
    run("train", *SHORT[:-1], "3", "--resume")
    run("baseline", "local", "fedavg", *SHORT)
    run("train", "--preset", "quickstart-dp", "--rounds", "2", "--quiet")
    summaries = [json.loads(path.read_text()) for path in smoke_folder.glob("runs/*/*/seed-0/summary.json")]
    assert len(summaries) == 4
    assert sum("privacy" in summary for summary in summaries) == 1


def test_classifiers_of_scikit_learn_train(run):
    run("train", "--preset", "quickstart-mixed", "--rounds", "2", "--quiet")


def test_models_are_evaluated(run):
    run("baseline", "local", *SHORT, "--run-dir", "evaluated")
    assert "accuracy" in run("evaluate", "evaluated").output


def test_a_report_has_tables_figures_and_a_page(run, smoke_folder):
    run("baseline", "local", *SHORT, "--seeds", "1,2", "--runs-dir", "reported")
    run("train", *SHORT, "--seeds", "1,2", "--runs-dir", "reported")
    run("report", "reported", "--out", "report", "--html", "report/index.html")
    names = {path.suffix for path in (smoke_folder / "report").rglob("*.*")}
    assert names >= {".html", ".png", ".pdf", ".tex", ".csv"}


@pytest.mark.parametrize("arguments", [("--help",), ("presets",), ("doctor",), ("partition", "--preset", "quickstart")])
def test_commands_without_a_run(run, arguments):
    run(*arguments)


def lowest_versions():
    """The lowest version of every dependency, as numbers; .ci/lowest-versions installs exactly these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)(,.*)?", requirement) for requirement in project["dependencies"]]
    assert all(found), project["dependencies"]
    return {match[1]: tuple(map(int, match[2].split("."))) for match in found}


@pytest.mark.parametrize(
    ("package", "version", "reason"),
    [
        ("matplotlib", (3, 10), "figures use Artist.get_figure(root=...)"),
        ("typer", (0, 16), "--help fails with the current click and an older typer"),
    ],
)
def test_lowest_versions_have_what_the_code_uses(package, version, reason):
    assert lowest_versions()[package] >= version, reason
