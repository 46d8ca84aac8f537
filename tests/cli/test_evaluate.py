"""`fedmosaic evaluate` as people type it: the document, the table, and the Local run that it compares with."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.storage.files import read_checksummed_json

FEDCT, LOCAL = Path("runs/quickstart/fedct/seed-0"), Path("runs/quickstart/local/seed-0")
METRICS = ("accuracy", "loss", "macro_f1", "balanced_accuracy", "calibration_error")
AVERAGES = {"client_mean", "sample_weighted", "client_std", "worst", "worst_decile"}


@pytest.fixture
def examine(finished_runs, tmp_path, monkeypatch):
    """`fedmosaic evaluate` in a directory with a few finished runs."""
    for name in ("fedct", "local", "centralized", "ditto"):
        shutil.copytree(finished_runs / "quickstart" / name, tmp_path / "runs" / "quickstart" / name)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, ["evaluate", *(str(argument) for argument in arguments)])

    return call


def documents(result) -> list[dict]:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def accuracies(document: dict) -> list[float]:
    return [mark["accuracy"] for mark in document["per_client"]]


def refused(result) -> str:
    """The one line of a request that was refused, with nothing written."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert not list(Path("runs").rglob("evaluation*.json"))
    [line] = result.stderr.splitlines()
    return line


def test_the_document(examine):
    [document] = documents(examine(FEDCT, "--json"))
    assert document.pop("run") == str(FEDCT)
    assert document == read_checksummed_json(FEDCT / "evaluation.json")
    summary = json.loads((FEDCT / "summary.json").read_text())
    assert accuracies(document) == summary["accuracy"].pop("per_client")
    assert document["accuracy"] == summary["accuracy"]
    assert (document["device"], document["split"]) == ("cpu", "test")
    assert document["class_names"] == list("0123456789")
    for name in METRICS:
        assert document[name].keys() == AVERAGES
        values = [mark[name] for mark in document["per_client"]]
        assert document[name]["client_mean"] == pytest.approx(sum(values) / len(values))
        assert document[name]["worst"] == (max if name in ("loss", "calibration_error") else min)(values)
    for mark in document["per_client"]:
        assert {"client", "domain", "examples", *METRICS, "confusion", "gain"} == mark.keys()
        assert sum(map(sum, mark["confusion"])) == mark["examples"]
        right = sum(row[number] for number, row in enumerate(mark["confusion"]))
        assert right / mark["examples"] == mark["accuracy"]


def test_losses_are_those_that_training_logged(examine):
    [document] = documents(examine(FEDCT, "--json"))
    rows = [json.loads(line) for line in (FEDCT / "rounds.jsonl").read_text().splitlines()]
    assert [mark["loss"] for mark in document["per_client"]] == [row["test_loss"] for row in rows if row["round"] == 7]


def test_the_local_run_beside_it_is_compared_with(examine):
    """By its summary alone: its models need not be there."""
    shutil.rmtree(LOCAL / "models")
    [document] = documents(examine(FEDCT, "--json"))
    found = document["collaboration"]
    alone = json.loads((LOCAL / "summary.json").read_text())["accuracy"]["per_client"]
    pairs = [
        (round(ours * mark["examples"]), round(theirs * mark["examples"]))
        for mark, ours, theirs in zip(document["per_client"], accuracies(document), alone, strict=True)
    ]
    assert found["helped"] == sum(ours > theirs for ours, theirs in pairs)
    assert found["unharmed"] == sum(ours == theirs for ours, theirs in pairs)
    assert found["hurt"] == sum(ours < theirs for ours, theirs in pairs)
    assert 0 < found["helped"] < 10, "or the test tests nothing"
    gains = [mark["gain"] for mark in document["per_client"]]
    assert gains == [pytest.approx(a - b, abs=1e-12) for a, b in zip(accuracies(document), alone, strict=True)]
    assert found["local"] == "../../local/seed-0"
    assert document["no_collaboration"] is None


def test_from_within_the_run_it_is_found_as_well(examine, monkeypatch):
    monkeypatch.chdir(FEDCT)
    [document] = documents(examine(".", "--json"))
    assert document["collaboration"]["local"] == "../../local/seed-0"


def test_a_run_elsewhere_is_compared_with_the_local_run_in_its_usual_place(examine):
    FEDCT.rename("mine")
    [document] = documents(examine("mine", "--json"))
    assert document["collaboration"]["local"] == "../runs/quickstart/local/seed-0"


def test_each_run_has_the_local_run_of_its_own_seed(examine):
    runs = [Path("runs/quickstart") / name for name in ("fedct/seed-1", "local/seed-0", "local/seed-1", "fedct/seed-0")]
    result = documents(examine(*runs, "--json"))
    assert [document["run"] for document in result] == list(map(str, runs)), "in the order of the request"
    compared = [document["collaboration"] and document["collaboration"]["local"] for document in result]
    assert compared == ["../../local/seed-1", None, None, "../../local/seed-0"]
    assert result[1]["no_collaboration"] == "this is Local itself"


def test_local_itself_misses_nothing(examine):
    result = examine(LOCAL)
    assert result.exit_code == 0
    assert result.stderr == ""


def test_the_pooled_model_is_compared_client_by_client(examine):
    [document] = documents(examine("runs/quickstart/centralized/seed-0", "--json"))
    summary = json.loads(Path("runs/quickstart/centralized/seed-0/summary.json").read_text())
    assert accuracies(document) == summary["accuracy"]["per_client"]
    found = document["collaboration"]
    assert found["helped"] + found["unharmed"] + found["hurt"] == 10
    assert found["mean_gain"] == pytest.approx(sum(mark["gain"] for mark in document["per_client"]) / 10)


def test_without_a_local_run_the_command_that_makes_it_is_named(examine):
    shutil.rmtree(LOCAL)
    result = examine(FEDCT, "runs/quickstart/ditto/seed-0")
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line == (
        f"note: there is no Local run to compare with ({LOCAL}): "
        "make it: fedmosaic baseline local --preset quickstart --rounds 7 --seed 0"
    )
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    assert stored["collaboration"] is None
    assert stored["no_collaboration"] == "there is no Local run to compare with"
    assert {mark["gain"] for mark in stored["per_client"]} == {None}
    assert "-" in result.stdout.splitlines()[1].split()


def test_the_command_that_is_named_makes_a_run_that_fits(examine):
    """Also where the run was made under settings of its own, and put elsewhere."""
    changes = "--set train.local_epochs=2 --set train.lr=0.01 --set data.alpha=0.5 --set clients.0-1.model.hidden=[8]"
    train = f"baseline fedct --preset quickstart --rounds 2 {changes} --runs-dir other --seed 3 -q"
    done = CliRunner().invoke(app, shlex.split(train))
    assert done.exit_code == 0, done.stderr
    run = "other/quickstart/fedct/seed-3"
    line = examine(run).stderr.strip()
    assert line.startswith("note: there is no Local run to compare with (other/quickstart/local/seed-3)")
    command = shlex.split(line.partition("make it: ")[2])
    assert command[0] == "fedmosaic"
    made = CliRunner().invoke(app, [*command[1:], "-q"])
    assert made.exit_code == 0, made.stderr
    [document] = documents(examine(run, "--json"))
    assert document["collaboration"]["local"] == "../../local/seed-3"


def test_the_command_for_a_run_on_given_shards(examine):
    for words in (
        "partition --scheme iid --clients 3 --seed 5 --out mine -q",
        "train --shards mine --rounds 2 --seed 1 -q",
    ):
        done = CliRunner().invoke(app, shlex.split(words))
        assert done.exit_code == 0, done.stderr
    run = "runs/mine/fedmosaic-frequency/seed-1"
    line = examine(run).stderr.strip()
    assert line.endswith("make it: fedmosaic baseline local --shards mine --rounds 2 --seed 1")
    made = CliRunner().invoke(app, shlex.split(line.partition("make it: fedmosaic ")[2]))
    assert made.exit_code == 0, made.stderr
    assert documents(examine(run, "--json"))[0]["collaboration"]["local"] == "../../local/seed-1"


def put_in_place_of_local(name: str) -> None:
    shutil.rmtree(LOCAL)
    shutil.copytree(Path("runs/quickstart") / name, LOCAL)


def test_a_local_run_on_other_shards_is_not_compared_with(examine):
    put_in_place_of_local("local/seed-1")
    result = examine(FEDCT)
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert "other shards" in line
    assert "--local DIR" in line
    assert line.endswith("fedmosaic baseline local --preset quickstart --rounds 7 --seed 0 --run-dir DIR")
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    assert stored["collaboration"] is None
    assert "other shards" in stored["no_collaboration"]


def test_another_method_in_the_place_of_local_is_not_compared_with(examine):
    put_in_place_of_local("ditto/seed-0")
    result = examine(FEDCT)
    assert "a run of 'ditto', not of Local" in result.stderr
    assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"] is None


@pytest.mark.parametrize("damage", ["summary is changed", "summary is gone"])
def test_a_damaged_local_run_is_not_compared_with(examine, damage):
    summary = LOCAL / "summary.json"
    if damage == "summary is gone":
        summary.unlink()
    else:
        summary.write_bytes(summary.read_bytes().replace(b'"per_client": [\n      0.', b'"per_client": [\n      0.0'))
    result = examine(FEDCT)
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert "the Local run is not finished, or damaged" in line
    assert line.endswith("fedmosaic baseline local --preset quickstart --rounds 7 --seed 0 --resume")
    assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"] is None


def make_up_accuracies(folder: Path) -> None:
    """Let a run claim what cannot be, with no digest to tell."""
    summary = json.loads((folder / "summary.json").read_text())
    marks = summary["accuracy"]["per_client"]
    marks[3] = 0.123
    summary["accuracy"]["client_mean"] = sum(marks) / len(marks)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    ("section", "key", "named"),
    [
        ("accuracy", "per_client", "no accuracy.per_client"),
        ("shards", "digest", "no shards.digest"),
        ("shards", "clients", "no shards.clients"),
        ("shards", "parameters", "shards.parameters: Field required"),
    ],
)
def test_a_summary_that_does_not_tell_of_the_clients_is_refused(examine, section, key, named):
    summary = json.loads((FEDCT / "summary.json").read_text())
    del summary[section][key]
    (FEDCT / "summary.json").write_text(json.dumps(summary))
    (FEDCT / "SHA256SUMS").unlink()
    result = examine(FEDCT)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert named in result.stderr


def test_a_link_that_leads_to_itself_is_no_run(examine):
    Path("loop").symlink_to("loop")
    result = examine(Path("loop"))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_accuracies_that_cannot_be_are_not_compared_with(examine):
    make_up_accuracies(LOCAL)
    result = examine(FEDCT)
    assert result.exit_code == 0
    assert "0.123 is not an accuracy on" in result.stderr
    assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"] is None
    (FEDCT / "evaluation.json").unlink()
    assert "0.123 is not an accuracy on" in refused(examine(FEDCT, "--local", LOCAL))


def test_what_is_odd_about_the_local_run_is_told(examine):
    content = json.loads((LOCAL / "summary.json").read_text())
    (LOCAL / "summary.json").write_text(json.dumps({**content, "nonidentical": ["after round 3: train.lr"]}))
    (LOCAL / "SHA256SUMS").unlink()
    told = "the Local run went on under other conditions than it began"
    for runs in ([FEDCT], [FEDCT, LOCAL]):
        result = examine(*runs)
        assert f"mind that {told} ({FEDCT})" in result.stdout
        assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"]["caveats"] == [told]


def test_a_local_run_can_be_named(examine):
    LOCAL.rename("alone")
    [document] = documents(examine(FEDCT, "--local", "alone", "--json"))
    assert document["collaboration"]["local"] == "../../../../alone"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("runs/quickstart/local/seed-1", "other shards"),
        ("runs/quickstart/ditto/seed-0", "'ditto'"),
        ("nowhere", "not a run directory (nowhere)"),
    ],
)
def test_a_named_local_run_has_to_fit(examine, named, words):
    assert words in refused(examine(FEDCT, "--local", named))


def test_on_the_training_part(examine):
    """A Local run has no record of it until it was examined there."""
    result = examine(FEDCT, "--split", "train")
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line.endswith(f"fedmosaic evaluate {LOCAL} --split train")
    assert read_checksummed_json(FEDCT / "evaluation-train.json")["collaboration"] is None

    together = documents(examine(FEDCT, LOCAL, "--split", "train", "--json"))[0]
    found = together["collaboration"]
    assert found["hurt"] > 0, "nothing fits a training part like Local"
    [again] = documents(examine(FEDCT, "--split", "train", "--json"))
    assert again == together, "now by the record"

    kept = LOCAL / "evaluation-train.json"
    kept.write_bytes(kept.read_bytes().replace(b'"rounds": 7', b'"rounds": 8'))
    assert examine(FEDCT, "--split", "train").exit_code == 0
    assert read_checksummed_json(FEDCT / "evaluation-train.json")["collaboration"] is None


def test_a_named_local_run_has_to_be_examined_on_the_part(examine):
    assert "was not examined on its train part" in refused(examine(FEDCT, "--local", LOCAL, "--split", "train"))


def test_what_is_no_finished_run_is_refused(examine):
    Path("a-file").write_text("")
    assert "not a run directory (a-file)" in refused(examine(FEDCT, "a-file"))
    assert "not a run directory (runs)" in refused(examine("runs", FEDCT))
    (FEDCT / "summary.json").unlink()
    assert "not finished" in refused(examine(LOCAL, FEDCT))


def test_a_run_named_twice_is_examined_once(examine):
    result = examine(FEDCT, f"runs/../{FEDCT}", "--json")
    assert [document["run"] for document in documents(result)] == [str(FEDCT)]
    assert "named twice" in result.stderr


def test_the_table_has_a_line_a_run(examine):
    result = examine(FEDCT, LOCAL)
    assert result.exit_code == 0
    heading, ours, alone, *legend = result.stdout.splitlines()
    assert heading.split()[:4] == ["run", "mean", "%", "weighted"]
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    found = stored["collaboration"]
    expected = [f"{100 * stored['accuracy'][name]:.2f}" for name in ("client_mean", "sample_weighted", "client_std")]
    expected += [f"{100 * stored['accuracy'][name]:.2f}" for name in ("worst", "worst_decile")]
    expected += [f"{100 * stored[name]['client_mean']:.2f}" for name in METRICS[2:]]
    assert ours.split() == [str(FEDCT), *expected, f"{found['helped']}/{found['unharmed']}/{found['hurt']}"]
    assert alone.split()[0] == str(LOCAL)
    assert alone.split()[-1] == "-"
    assert any("fewer right answers" in line for line in legend)


def test_in_full(examine):
    lines = examine(FEDCT, "--verbose").stdout.splitlines()
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    heading = next(number for number, line in enumerate(lines) if line.startswith("client "))
    shown = [line.split() for line in lines[heading + 1 : heading + 11]]
    assert [row[0] for row in shown] == [str(number) for number in range(10)]
    assert [row[3] for row in shown] == [f"{100 * mark['accuracy']:.2f}" for mark in stored["per_client"]]
    assert [float(row[-1]) for row in shown] == [round(100 * mark["gain"], 2) for mark in stored["per_client"]]
    [beside] = [line for line in lines if line.startswith("beside Local: ")]
    assert f"{stored['collaboration']['helped']} helped" in beside
    matrix = next(number for number, line in enumerate(lines) if line.split() == list("0123456789"))
    sums = [[int(cell) if cell != "." else 0 for cell in line.split()[1:]] for line in lines[matrix + 1 : matrix + 11]]
    together = [mark["confusion"] for mark in stored["per_client"]]
    assert sums == [[sum(one[row][column] for one in together) for column in range(10)] for row in range(10)]


def test_in_a_pipe_there_is_a_line_now_and_then(examine, monkeypatch):
    assert examine(FEDCT).stderr == "", "it takes no time"
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", 0)
    lines = examine(FEDCT, LOCAL).stderr.splitlines()
    assert lines == [f"examining clients  {5 * done}%" for done in range(21)]
    assert examine(FEDCT, LOCAL, "--quiet").stderr == ""
    assert examine(FEDCT, LOCAL, "--json").stderr == ""
