"""Output at the end of a co-training run: trust warnings and the comparison with Local."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app

SHORT = ("--preset", "quickstart-label-skew", "--rounds", "12", "--name", "quickstart-label-skew", "--tag", "")
PAPER = ("--set", "methods.fedmosaic.trust=paper")
RUN = Path("runs/quickstart-label-skew/fedmosaic-entropy/seed-0")
RECORDED = ": for them this is Local training, and nothing here tells of collaboration"


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def recorded_runs(tmp_path_factory):
    """Runs with the paper's lambda and with the default one, Local runs for both, and the output of each command."""
    folder = tmp_path_factory.mktemp("recorded_runs")
    with chdir(folder):
        output = {"alone": invoke("train", *SHORT, *PAPER), "local": invoke("baseline", "local", *SHORT)}
        output["beside"] = invoke("train", *SHORT, *PAPER, "--resume")
        output["alive"] = invoke("train", *SHORT, "--runs-dir", "alive")
        shutil.copytree("runs/quickstart-label-skew/local", "alive/quickstart-label-skew/local")
    return folder, output


@pytest.fixture
def output(recorded_runs, tmp_path, monkeypatch):
    """Copy the runs to the current directory; return the recorded output."""
    shutil.copytree(recorded_runs[0], tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return recorded_runs[1]


def log():
    return [json.loads(line) for line in (RUN / "rounds.jsonl").read_text().splitlines()]


def vanished_lambda():
    """The number of clients whose lambda is 0 at the end, and the round since which it is 0 for all of them."""
    lasts = {row["client"]: row["lambda"] for row in log()}
    dead = {client for client, trust in lasts.items() if trust < 1e-6}
    alive = [row["round"] for row in log() if row["client"] in dead and row["lambda"] >= 1e-6]
    assert len(dead) > 5, "lambda must vanish in this experiment"
    return len(dead), max(alive) + 1


def test_a_vanished_lambda_causes_one_warning_and_is_recorded(output):
    dead, since = vanished_lambda()
    warnings = [line for line in output["alone"].stderr.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        f"warning: fedmosaic-entropy seed 0, 10 clients: {dead} of 10 clients have ignored the pseudo-labels since "
        f"round {since} (lambda below 1e-6): they train alone, as in Local, so these accuracies say nothing about "
        "collaboration"
    ]
    sentence = f"lambda is below 1e-6 for {dead} of 10 clients since round {since}{RECORDED}"
    kept = json.loads((RUN / "summary.json").read_text())["diagnosis"]
    assert kept["warnings"] == [sentence]
    assert (kept["silent_clients"], kept["clients"], kept["rounds"]) == (dead, 10, 7)
    assert kept["oracle"]["weighted"] == log()[-1]["weighted_accuracy"]


def test_a_vanished_lambda_comes_with_commands_that_can_be_copied(output):
    condition = "--preset quickstart-label-skew --rounds 12 --seed 0"
    commands = [line.partition(": ")[2] for line in output["alone"].stderr.splitlines() if line.startswith("  ")]
    assert commands[:2] == [
        f"fedmosaic train {condition} --expertise entropy --set methods.fedmosaic.trust=stabilised",
        f"fedmosaic baseline gated student {condition}",
    ]
    for command in commands[:2]:
        invoke(*shlex.split(command)[1:], "--dry-run", "--runs-dir", "others")


def test_the_advice_is_printed_once_with_all_seeds(output):
    lines = invoke("train", *SHORT, *PAPER, "--seeds", "0,1", "--runs-dir", "two").stderr.splitlines()
    assert sum(line.startswith("warning: ") for line in lines) == 2
    [stabilised] = [line for line in lines if line.endswith("trust=stabilised")]
    assert "--seeds 0,1 " in stabilised
    assert lines.count("  docs/trust.md describes the rules of trust") == 1


def test_a_positive_lambda_causes_no_warning(output):
    assert "warning" not in output["alive"].stderr
    content = json.loads(Path("alive/quickstart-label-skew/fedmosaic-entropy/seed-0/summary.json").read_text())
    assert content["diagnosis"]["warnings"] == []
    assert content["diagnosis"]["median_lambda"] > 0.1


def test_methods_that_share_no_labels_have_no_diagnosis(output):
    assert "diagnosis" not in json.loads(Path("runs/quickstart-label-skew/local/seed-0/summary.json").read_text())
    assert "against Local" not in output["local"].stdout
    assert "no Local run" not in output["local"].stderr


def test_a_run_is_compared_with_its_local_run_per_client(output):
    """Counted here by hand; the other way round there would be as many better as are worse."""
    ours, alone = (
        json.loads((RUN.parent.parent / name / "seed-0/summary.json").read_text())["accuracy"]["per_client"]
        for name in ("fedmosaic-entropy", "local")
    )
    better, worse = (sum(sign * (a - b) > 1e-9 for a, b in zip(ours, alone, strict=True)) for sign in (1, -1))
    assert better != worse
    mean = 100 * sum(a - b for a, b in zip(ours, alone, strict=True)) / 10
    expected = f"{better} of 10 clients better, {worse} worse, {10 - better - worse} equal; mean {mean:+.2f} points"
    assert f"\nagainst Local (runs/quickstart-label-skew/local/seed-0): {expected}\n" in output["beside"].stdout
    assert "no Local run" not in output["beside"].stderr


def test_without_a_local_run_its_command_is_printed_once(output):
    assert "against Local" not in output["alone"].stdout
    hint = (
        "note: there is no Local run to compare with (runs/quickstart-label-skew/local/seed-0): make it: fedmosaic "
        "baseline local --preset quickstart-label-skew --rounds 12 --seed 0"
    )
    assert output["alone"].stderr.splitlines().count(hint) == 1
    shutil.rmtree("runs/quickstart-label-skew/local")
    several = invoke("baseline", "fedct", *SHORT, "--seeds", "0,1")
    [note] = [line for line in several.stderr.splitlines() if line.startswith("note: there is no Local run")]
    assert note.endswith("make it: fedmosaic baseline local --preset quickstart-label-skew --rounds 12 --seeds 0,1")


def test_a_method_that_shares_no_labels_is_compared_too(output):
    result = invoke("baseline", "fedavg", *SHORT)
    assert re.search(
        r"^against Local \(runs/quickstart-label-skew/local/seed-0\): \d+ of 10 clients better, .* points$",
        result.stdout,
        re.MULTILINE,
    )
    [document] = json.loads(invoke("baseline", "fedavg", *SHORT, "--resume", "--json").stdout)
    assert "collaboration" not in document, "the documents of --json do not change"


def test_several_methods_are_compared_in_a_table(output):
    lines = invoke("baseline", "fedct", "gated", "local", *SHORT, "--resume").stdout.splitlines()
    heading = lines.index(next(line for line in lines if line.startswith("clients against Local")))
    rows = {line.split()[0]: line.split()[1:] for line in lines[heading + 1 : heading + 3]}
    assert rows.keys() == {"fedct", "gated"}
    for name, (better, equal, worse, gain, unit) in rows.items():
        ours, alone = (
            json.loads((RUN.parent.parent / each / "seed-0/summary.json").read_text())["accuracy"]["per_client"]
            for each in (name, "local")
        )
        differences = [a - b for a, b in zip(ours, alone, strict=True)]
        counts = [sum(sign * difference > 1e-9 for difference in differences) for sign in (1, -1)]
        assert [int(better), int(equal), int(worse)] == [counts[0], 10 - sum(counts), counts[1]]
        assert (gain, unit) == (f"{100 * sum(differences) / 10:+.2f}", "points")


def test_a_local_run_with_other_rounds_is_not_used(output):
    result = invoke("train", *SHORT[:2], "--rounds", "7", "--run-dir", "mine", *SHORT[4:6])
    assert "against Local" not in result.stdout
    assert "it was made with rounds 12, not 7" in result.stderr


def test_quiet_prints_nothing_and_json_contains_the_comparison(output):
    quiet = invoke("train", *SHORT, *PAPER, "--resume", "--quiet")
    assert quiet.stderr == ""
    assert "against Local" not in quiet.stdout
    result = invoke("train", *SHORT, *PAPER, "--resume", "--json")
    [document] = json.loads(result.stdout)
    assert document["collaboration"]["local"] == "../../local/seed-0"
    assert document["no_collaboration"] is None
    assert document["diagnosis"]["silent_clients"] == vanished_lambda()[0]
    shutil.rmtree("runs/quickstart-label-skew/local")
    result = invoke("train", *SHORT, *PAPER, "--resume", "--json")
    [document] = json.loads(result.stdout)
    assert document["collaboration"] is None
    assert document["no_collaboration"] == "there is no Local run to compare with"
    assert "note: " not in result.stderr


def test_evaluate_prints_the_warning_too(output):
    result = invoke("evaluate", RUN)
    dead, since = vanished_lambda()
    sentence = f"{dead} of 10 clients have ignored the pseudo-labels since round {since} "
    assert f"warning: {RUN}: {sentence}" in result.stderr
    assert "warning" not in invoke("evaluate", RUN, "--quiet").stderr


def test_a_report_has_the_diagnosis_of_every_co_training_run(output):
    shutil.copytree("alive/quickstart-label-skew/fedmosaic-entropy", "runs/alive")
    invoke("report", "--out", "results", "--no-figures", "--html", "page.html", "--quiet")
    text = Path("results/diagnosis.md").read_text()
    rows = [re.split(r" *\| *", line)[1:4] for line in text.splitlines() if line.startswith("| FedMosaic")]
    assert [(title, silent) for title, _, silent in rows] == [
        ("FedMosaic-U, seed 0", "0 of 10"),
        ("FedMosaic-U (trust=paper), seed 0", f"{vanished_lambda()[0]} of 10"),
    ]
    assert float(rows[0][1]) > 0.1
    assert float(rows[1][1]) < 1e-6
    assert RECORDED in Path("page.html").read_text()
    assert (Path("results/diagnosis.csv").read_text()).count("\n") == 3
    assert r"\input{diagnosis.tex}" in Path("results/all.tex").read_text()
    assert not Path("results/diagnosis-gates.csv").exists()
