"""`fedmosaic evaluate --privacy` as people type it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.storage.files import read_checksummed_json

RUN, LOCAL = Path("runs/quickstart/fedmosaic-entropy/seed-0"), Path("runs/quickstart/local/seed-0")


@pytest.fixture
def audit(roomy_runs, tmp_path, monkeypatch):
    """`fedmosaic evaluate --privacy` in a directory with a few finished runs."""
    for name in (RUN, LOCAL):
        shutil.copytree(roomy_runs.parent / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)

    def call(*arguments, privacy=True):
        words = ["evaluate", *(str(argument) for argument in arguments), *(["--privacy"] if privacy else [])]
        return CliRunner().invoke(app, words)

    return call


def refused(result) -> str:
    """The one line of a request that was refused, with nothing written."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert not list(Path("runs").rglob("privacy.json"))
    [line] = result.stderr.splitlines()
    return line


def test_the_document(audit):
    result = audit(RUN, "--json")
    assert result.exit_code == 0, result.stderr
    [document] = json.loads(result.stdout)
    assert document.pop("run") == str(RUN)
    assert document == read_checksummed_json(RUN / "privacy.json")
    assert not (RUN / "evaluation.json").exists(), "the models were not examined"
    assert (document["method"], document["seed"], document["rounds"]) == ("fedmosaic", 0, 4)
    expected = {"auc", "auc_interval", "finding", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "member_accuracy"}
    expected |= {"non_member_accuracy", "members", "non_members"}
    for entry in document["per_client"]:
        assert all(set(view) == expected for view in entry["views"].values())
    assert all(set(view) == expected | {"clients"} for view in document["views"].values())


def test_the_table_has_a_line_a_run_and_view(audit):
    result = audit(RUN, LOCAL)
    assert result.exit_code == 0
    heading, *lines = result.stdout.splitlines()
    assert heading.split()[:4] == ["run", "view", "clients", "examples"]
    views = read_checksummed_json(RUN / "privacy.json")["views"]
    for line, (name, view) in zip(lines, views.items(), strict=False):
        assert line.split()[:5] == [str(RUN), name, "2", str(view["members"]), f"{view['auc']:.3f}"]
        assert line.rstrip().endswith(view["finding"])
    assert lines[len(views)].split()[:2] == [str(LOCAL), "model-loss"]
    assert "private" not in result.stdout
    assert result.stderr.splitlines() == [
        f"note: Local training sends no labels: only models are looked at (what travels: nothing) ({LOCAL})"
    ]


def test_in_full_there_is_a_line_a_client(audit):
    lines = audit(RUN, "--verbose", "--last-round").stdout.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("  client")] == [
        ["client", client, view] for client in "01" for view in ("messages-last", "model-loss")
    ]


@pytest.mark.parametrize(("words", "models"), [(["--lira", "--references", "4"], 4), (["--lira"], 16)])
def test_reference_models(audit, words, models):
    result = audit(LOCAL, *words)
    assert result.exit_code == 0, result.stderr
    found = read_checksummed_json(LOCAL / "privacy.json")
    assert found["references"] == models
    assert list(found["views"]) == ["model-loss", "model-lira-offline", "model-lira-online"]


def test_how_far_it_is_is_told(audit, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", 0)
    lines = audit(RUN, "--lira", "--references", "4").stderr.splitlines()
    assert [line for line in lines if line.startswith("playing")] == [
        f"playing the run again  {share}%" for share in (0, 25, 50, 75, 100)
    ]
    assert "training reference models  100%" in lines
    assert audit(RUN, "--quiet").stderr == ""


@pytest.mark.parametrize(
    ("words", "privacy", "line"),
    [
        (["--lira"], False, "error: this belongs to an audit (--lira): add --privacy, or leave it out"),
        (["--last-round"], False, "error: this belongs to an audit (--last-round): add --privacy, or leave it out"),
        (
            ["--lira", "--references", "1"],
            True,
            "error: 1 reference models (--references): ask for 4 to 10000, such as 16",
        ),
        (
            ["--lira", "--references", "-3"],
            True,
            "error: -3 reference models (--references): ask for 4 to 10000, such as 16",
        ),
        (
            ["--references", "8"],
            True,
            "error: this belongs to an attack by reference models (--references): add --lira, or leave it out",
        ),
        (["--split", "test"], True, "error: an audit has no --split (--privacy): leave out one of the two"),
        (["--local", LOCAL], True, "error: an audit has no --local (--privacy): leave out one of the two"),
    ],
)
def test_wrong_requests(audit, words, privacy, line):
    assert refused(audit(RUN, *words, privacy=privacy)) == line


def test_too_few_examples_for_anybody(audit, roomy_runs):
    """Even if it is one run of several."""
    shutil.copytree(roomy_runs / "small", "runs/small")
    line = refused(audit(RUN, "runs/small"))
    assert line.startswith("error: no client has 200 training examples")
    assert line.endswith("(runs/small): deal to fewer clients, or use more data")


def test_a_run_that_goes_on_loses_its_audit(audit):
    assert audit(LOCAL).exit_code == 0
    more = ["--preset", "quickstart", "--set", "data.clients=2", "--rounds", "5", "--quiet", "--resume"]
    done = CliRunner().invoke(app, ["baseline", "local", *more])
    assert done.exit_code == 0, done.stderr
    assert not (LOCAL / "privacy.json").exists(), "it was about other models"


def test_something_else_under_the_name_of_an_audit(audit):
    (LOCAL / "privacy.json").mkdir()
    arguments = ["baseline", "local", "--preset", "quickstart", "--set", "data.clients=2", "--rounds", "5", "--resume"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "not a file" in done.stderr
