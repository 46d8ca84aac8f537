"""What a co-training run says at its end: whether there was any collaboration, and whom it helped."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app

SHORT = ("--preset", "quickstart", "--rounds", "12")
PAPER = ("--set", "methods.fedmosaic.trust=paper")
RUN = Path("runs/quickstart/fedmosaic-entropy/seed-0")
FADED = ": for them this is Local training, and nothing here tells of collaboration"


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run under the paper's lambda, one under another, and a Local run beside each; with what was said of the first
    when it had ended, with and without a Local run."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        said = {"alone": invoke("train", *SHORT, *PAPER), "local": invoke("baseline", "local", *SHORT)}
        said["beside"] = invoke("train", *SHORT, *PAPER, "--resume")
        said["alive"] = invoke("train", *SHORT, "--runs-dir", "alive")
        shutil.copytree("runs/quickstart/local", "alive/quickstart/local")
    return folder, said


@pytest.fixture
def said(made, tmp_path, monkeypatch):
    """The runs in a directory of one's own, which is the current one, and what was said."""
    shutil.copytree(made[0], tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return made[1]


def log():
    return [json.loads(line) for line in (RUN / "rounds.jsonl").read_text().splitlines()]


def faded():
    """How many clients have no lambda to speak of at the end, and since which round this is so for all of them."""
    lasts = {row["client"]: row["lambda"] for row in log()}
    dead = {client for client, trust in lasts.items() if trust < 1e-6}
    alive = [row["round"] for row in log() if row["client"] in dead and row["lambda"] >= 1e-6]
    assert len(dead) > 5, "lambda lives: this is another experiment"
    return len(dead), max(alive) + 1


def test_where_the_paper_s_lambda_dies_this_is_said_once_and_kept(said):
    dead, since = faded()
    warnings = [line for line in said["alone"].stderr.splitlines() if line.startswith("warning: ")]
    sentence = f"lambda is below 1e-6 for {dead} of 10 clients since round {since}{FADED}"
    assert warnings == [f"warning: fedmosaic-entropy seed 0, 10 clients: {sentence}"]
    kept = json.loads((RUN / "summary.json").read_text())["diagnosis"]
    assert kept["warnings"] == [sentence]
    assert (kept["silent_clients"], kept["clients"], kept["rounds"]) == (dead, 10, 7)
    assert kept["oracle"]["weighted"] == log()[-1]["weighted_accuracy"]


def test_where_lambda_lives_nothing_is_said(said):
    assert "warning" not in said["alive"].stderr
    content = json.loads(Path("alive/quickstart/fedmosaic-entropy/seed-0/summary.json").read_text())
    assert content["diagnosis"]["warnings"] == []
    assert content["diagnosis"]["median_lambda"] > 0.1


def test_methods_that_share_no_labels_have_no_diagnosis(said):
    assert "diagnosis" not in json.loads(Path("runs/quickstart/local/seed-0/summary.json").read_text())
    assert "against Local" not in said["local"].stdout
    assert "no Local run" not in said["local"].stderr


def test_whom_a_run_helped_is_told_beside_its_local_run(said):
    """Counted here by hand; the other way round there would be as many better as are worse."""
    ours, alone = (
        json.loads((RUN.parent.parent / name / "seed-0/summary.json").read_text())["accuracy"]["per_client"]
        for name in ("fedmosaic-entropy", "local")
    )
    better, worse = (sum(sign * (a - b) > 1e-9 for a, b in zip(ours, alone, strict=True)) for sign in (1, -1))
    assert better != worse
    mean = 100 * sum(a - b for a, b in zip(ours, alone, strict=True)) / 10
    expected = f"{better} of 10 clients better, {worse} worse, {10 - better - worse} equal; mean {mean:+.2f} points"
    assert f"\nagainst Local (runs/quickstart/local/seed-0): {expected}\n" in said["beside"].stdout
    assert "no Local run" not in said["beside"].stderr


def test_without_a_local_run_the_way_to_one_is_told_once(said):
    assert "against Local" not in said["alone"].stdout
    hint = (
        "note: there is no Local run to compare with (runs/quickstart/local/seed-0): make it: fedmosaic baseline local "
        "--preset quickstart --rounds 12 --seed 0"
    )
    assert said["alone"].stderr.splitlines().count(hint) == 1
    shutil.rmtree("runs/quickstart/local")
    several = invoke("baseline", "fedct", *SHORT, "--seeds", "0,1")
    assert several.stderr.count("note: there is no Local run") == 1


def test_of_several_runs_each_has_its_line(said):
    lines = invoke("baseline", "fedct", "gated", *SHORT).stdout.splitlines()
    told = [
        line.partition(": against Local (runs/quickstart/local/seed-0): ")[0] for line in lines if "against" in line
    ]
    assert told == ["fedct seed 0, 10 clients", "gated seed 0, 10 clients"]


def test_a_local_run_of_other_rounds_is_not_compared_with(said):
    result = invoke("train", *SHORT[:2], "--rounds", "7", "--run-dir", "mine")
    assert "against Local" not in result.stdout
    assert "it was made with rounds 12, not 7" in result.stderr


def test_quiet_is_quiet_and_machines_are_told_in_their_document(said):
    quiet = invoke("train", *SHORT, *PAPER, "--resume", "--quiet")
    assert quiet.stderr == ""
    assert "against Local" not in quiet.stdout
    result = invoke("train", *SHORT, *PAPER, "--resume", "--json")
    [document] = json.loads(result.stdout)
    assert document["collaboration"]["local"] == "../../local/seed-0"
    assert document["no_collaboration"] is None
    assert document["diagnosis"]["silent_clients"] == faded()[0]
    shutil.rmtree("runs/quickstart/local")
    result = invoke("train", *SHORT, *PAPER, "--resume", "--json")
    [document] = json.loads(result.stdout)
    assert document["collaboration"] is None
    assert document["no_collaboration"] == "there is no Local run to compare with"
    assert "note: " not in result.stderr


def test_an_evaluation_warns_as_well(said):
    result = invoke("evaluate", RUN)
    dead, since = faded()
    sentence = f"lambda is below 1e-6 for {dead} of 10 clients since round {since}{FADED}"
    assert f"warning: {RUN}: {sentence}" in result.stderr.splitlines()
    assert "warning" not in invoke("evaluate", RUN, "--quiet").stderr


def test_a_report_has_the_diagnosis_of_every_co_training_run(said):
    shutil.copytree("alive/quickstart/fedmosaic-entropy", "runs/alive")
    invoke("report", "--out", "results", "--no-figures", "--html", "page.html", "--quiet")
    text = Path("results/diagnosis.md").read_text()
    rows = [re.split(r" *\| *", line)[1:4] for line in text.splitlines() if line.startswith("| FedMosaic")]
    assert [(title, silent) for title, _, silent in rows] == [
        ("FedMosaic (entropy), seed 0", "0 of 10"),
        ("FedMosaic (entropy, trust=paper), seed 0", f"{faded()[0]} of 10"),
    ]
    assert float(rows[0][1]) > 0.1
    assert float(rows[1][1]) < 1e-6
    assert FADED in Path("page.html").read_text()
    assert (Path("results/diagnosis.csv").read_text()).count("\n") == 3
    assert r"\input{diagnosis.tex}" in Path("results/all.tex").read_text()
    assert not Path("results/diagnosis-gates.csv").exists()
