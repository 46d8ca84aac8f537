"""`fedmosaic evaluate --privacy` on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.storage.files import read_checksummed_json

PRESET = ("--preset", "quickstart-label-skew", "--name", "quickstart")
RUN, LOCAL = Path("runs/quickstart/fedmosaic-entropy/seed-0"), Path("runs/quickstart/local/seed-0")


@pytest.fixture
def audit(auditable_runs, tmp_path, monkeypatch):
    """`fedmosaic evaluate --privacy` in a directory with a few finished runs."""
    for name in (RUN, LOCAL):
        shutil.copytree(auditable_runs.parent / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)

    def call(*arguments, privacy=True):
        options = ["--privacy"] if privacy else []
        return CliRunner().invoke(app, ["evaluate", *map(str, arguments), *options])

    return call


def refused(result) -> str:
    """Check that the request was refused and nothing was written; return the error line."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert not list(Path("runs").rglob("privacy.json"))
    [line] = result.stderr.splitlines()
    return line


def test_json_equals_the_file(audit):
    result = audit(RUN, "--json")
    assert result.exit_code == 0, result.stderr
    [document] = json.loads(result.stdout)
    assert document.pop("run") == str(RUN)
    assert document == read_checksummed_json(RUN / "privacy.json")
    assert not (RUN / "evaluation.json").exists(), "the models were not evaluated"
    assert (document["method"], document["seed"], document["rounds"]) == ("fedmosaic", 0, 4)
    expected = {"auc", "auc_interval", "finding", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "member_accuracy"}
    expected |= {"non_member_accuracy", "members", "non_members"}
    for entry in document["per_client"]:
        assert all(set(view) == expected for view in entry["views"].values())
    assert all(set(view) == expected | {"clients"} for view in document["views"].values())


def test_the_table_has_one_line_per_run_and_view(audit):
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
        f"note: Local training sends no labels: only models are audited (exchanged: nothing) ({LOCAL})"
    ]


def test_verbose_shows_one_line_per_client_and_view(audit):
    lines = audit(RUN, "--verbose", "--last-round").stdout.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("  client")] == [
        ["client", client, view] for client in "01" for view in ("messages-last", "model-loss")
    ]


@pytest.mark.parametrize(
    ("options", "models"),
    [(["--lira", "--shadow-models", "4"], 4), (["--lira", "--references", "4"], 4), (["--lira"], 16)],
)
def test_lira_trains_shadow_models(audit, options, models):
    result = audit(LOCAL, *options)
    assert result.exit_code == 0, result.stderr
    content = read_checksummed_json(LOCAL / "privacy.json")
    assert content["references"] == models
    assert list(content["views"]) == ["model-loss", "model-lira-offline", "model-lira-online"]


def test_progress_is_printed(audit, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", 0)
    lines = audit(RUN, "--lira", "--shadow-models", "4").stderr.splitlines()
    assert [line for line in lines if line.startswith("replaying")] == [
        f"replaying the run  {percent}%" for percent in (0, 25, 50, 75, 100)
    ]
    assert "training shadow models  100%" in lines
    assert audit(RUN, "--quiet").stderr == ""


@pytest.mark.parametrize(
    ("options", "privacy", "message"),
    [
        (["--lira"], False, "--lira applies to an audit only (evaluate): add --privacy, or leave it out"),
        (["--last-round"], False, "--last-round applies to an audit only (evaluate): add --privacy, or leave it out"),
        (["--lira", "--shadow-models", "1"], True, "1 shadow models (--shadow-models): choose 4 to 10000, such as 16"),
        (
            ["--lira", "--shadow-models", "-3"],
            True,
            "-3 shadow models (--shadow-models): choose 4 to 10000, such as 16",
        ),
        (
            ["--shadow-models", "8"],
            True,
            "--shadow-models applies to --lira only (evaluate): add --lira, or leave it out",
        ),
        (["--split", "test"], True, "--split does not apply to an audit (--privacy): leave out one of the two"),
        (
            ["--compare-with", LOCAL],
            True,
            "--compare-with does not apply to an audit (--privacy): leave out one of the two",
        ),
    ],
)
def test_contradictory_options_are_refused(audit, options, privacy, message):
    assert refused(audit(RUN, *options, privacy=privacy)) == f"error: {message}"


def test_runs_with_too_few_candidates_are_refused(audit, auditable_runs):
    """Also if another run has enough."""
    shutil.copytree(auditable_runs / "small", "runs/small")
    line = refused(audit(RUN, "runs/small"))
    assert line.startswith("error: no client has 200 training examples")
    assert line.endswith("(runs/small): use fewer clients, or more data")


def test_resuming_a_run_removes_its_audit(audit):
    assert audit(LOCAL).exit_code == 0
    more = [*PRESET, "--set", "data.clients=2", "--rounds", "5", "--quiet", "--resume"]
    done = CliRunner().invoke(app, ["baseline", "local", *more])
    assert done.exit_code == 0, done.stderr
    assert not (LOCAL / "privacy.json").exists(), "it belonged to other models"


def test_resume_refuses_a_directory_in_place_of_the_audit(audit):
    (LOCAL / "privacy.json").mkdir()
    arguments = ["baseline", "local", *PRESET, "--set", "data.clients=2", "--rounds", "5", "--resume"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "not a file" in done.stderr
