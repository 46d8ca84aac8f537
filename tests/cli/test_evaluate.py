"""`fedmosaic evaluate` on the command line: JSON, table and comparison with the Local run."""

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
def evaluate(finished_runs, tmp_path, monkeypatch):
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
    return [client["accuracy"] for client in document["per_client"]]


def refused(result) -> str:
    """Check that the request was refused and nothing was written; return the error line."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert not list(Path("runs").rglob("evaluation*.json"))
    [line] = result.stderr.splitlines()
    return line


def test_json_equals_the_file_and_the_summary(evaluate):
    [document] = documents(evaluate(FEDCT, "--json"))
    assert document.pop("run") == str(FEDCT)
    assert document == read_checksummed_json(FEDCT / "evaluation.json")
    summary = json.loads((FEDCT / "summary.json").read_text())
    assert accuracies(document) == summary["accuracy"].pop("per_client")
    assert document["accuracy"] == summary["accuracy"]
    assert (document["device"], document["split"]) == ("cpu", "test")
    assert document["class_names"] == list("0123456789")
    for name in METRICS:
        assert document[name].keys() == AVERAGES
        values = [client[name] for client in document["per_client"]]
        assert document[name]["client_mean"] == pytest.approx(sum(values) / len(values))
        assert document[name]["worst"] == (max if name in ("loss", "calibration_error") else min)(values)
    for client in document["per_client"]:
        assert {"client", "domain", "examples", *METRICS, "confusion", "gain"} == client.keys()
        assert sum(map(sum, client["confusion"])) == client["examples"]
        right = sum(row[number] for number, row in enumerate(client["confusion"]))
        assert right / client["examples"] == client["accuracy"]


def test_losses_equal_those_of_training(evaluate):
    [document] = documents(evaluate(FEDCT, "--json"))
    rows = [json.loads(line) for line in (FEDCT / "rounds.jsonl").read_text().splitlines()]
    assert [client["loss"] for client in document["per_client"]] == [
        row["test_loss"] for row in rows if row["round"] == 7
    ]


def test_the_local_run_next_to_it_is_compared_with(evaluate):
    """The summary is enough; its models are not needed."""
    shutil.rmtree(LOCAL / "models")
    [document] = documents(evaluate(FEDCT, "--json"))
    comparison = document["collaboration"]
    local_accuracies = json.loads((LOCAL / "summary.json").read_text())["accuracy"]["per_client"]
    pairs = [
        (round(ours * client["examples"]), round(theirs * client["examples"]))
        for client, ours, theirs in zip(document["per_client"], accuracies(document), local_accuracies, strict=True)
    ]
    assert comparison["helped"] == sum(ours > theirs for ours, theirs in pairs)
    assert comparison["unharmed"] == sum(ours == theirs for ours, theirs in pairs)
    assert comparison["hurt"] == sum(ours < theirs for ours, theirs in pairs)
    assert 0 < comparison["helped"] < 10, "otherwise the test checks nothing"
    gains = [client["gain"] for client in document["per_client"]]
    assert gains == [
        pytest.approx(a - b, abs=1e-12) for a, b in zip(accuracies(document), local_accuracies, strict=True)
    ]
    assert comparison["local"] == "../../local/seed-0"
    assert document["no_collaboration"] is None


def test_the_local_run_is_found_from_within_the_run_directory(evaluate, monkeypatch):
    monkeypatch.chdir(FEDCT)
    [document] = documents(evaluate(".", "--json"))
    assert document["collaboration"]["local"] == "../../local/seed-0"


def test_a_moved_run_is_compared_with_the_local_run_in_the_default_directory(evaluate):
    FEDCT.rename("mine")
    [document] = documents(evaluate("mine", "--json"))
    assert document["collaboration"]["local"] == "../runs/quickstart/local/seed-0"


def test_each_run_is_compared_with_the_local_run_of_its_seed(evaluate):
    runs = [Path("runs/quickstart") / name for name in ("fedct/seed-1", "local/seed-0", "local/seed-1", "fedct/seed-0")]
    result = documents(evaluate(*runs, "--json"))
    assert [document["run"] for document in result] == list(map(str, runs)), "in the order of the arguments"
    compared = [document["collaboration"] and document["collaboration"]["local"] for document in result]
    assert compared == ["../../local/seed-1", None, None, "../../local/seed-0"]
    assert result[1]["no_collaboration"] == "this is Local itself"


def test_local_itself_has_no_notes(evaluate):
    result = evaluate(LOCAL)
    assert result.exit_code == 0
    assert result.stderr == ""


def test_the_centralized_model_is_compared_per_client(evaluate):
    [document] = documents(evaluate("runs/quickstart/centralized/seed-0", "--json"))
    summary = json.loads(Path("runs/quickstart/centralized/seed-0/summary.json").read_text())
    assert accuracies(document) == summary["accuracy"]["per_client"]
    comparison = document["collaboration"]
    assert comparison["helped"] + comparison["unharmed"] + comparison["hurt"] == 10
    assert comparison["mean_gain"] == pytest.approx(sum(client["gain"] for client in document["per_client"]) / 10)


def test_without_a_local_run_its_command_is_shown(evaluate):
    shutil.rmtree(LOCAL)
    result = evaluate(FEDCT, "runs/quickstart/ditto/seed-0")
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line == (
        f"note: there is no Local run to compare with ({LOCAL}): "
        "make it: fedmosaic baseline local --preset quickstart --rounds 7 --seed 0"
    )
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    assert stored["collaboration"] is None
    assert stored["no_collaboration"] == "there is no Local run to compare with"
    assert {client["gain"] for client in stored["per_client"]} == {None}
    assert "-" in result.stdout.splitlines()[1].split()


def test_the_shown_command_creates_a_matching_local_run(evaluate):
    """Also for a run with overrides in another directory."""
    changes = "--set train.local_epochs=2 --set train.lr=0.01 --set data.alpha=0.5 --set clients.0-1.model.hidden=[8]"
    train = f"baseline fedct --preset quickstart --name mine --rounds 2 {changes} --runs-dir other --seed 3 -q"
    done = CliRunner().invoke(app, shlex.split(train))
    assert done.exit_code == 0, done.stderr
    run = "other/mine/fedct/seed-3"
    line = evaluate(run).stderr.strip()
    assert line.startswith("note: there is no Local run to compare with (other/mine/local/seed-3)")
    command = shlex.split(line.partition("make it: ")[2])
    assert command[0] == "fedmosaic"
    local = CliRunner().invoke(app, [*command[1:], "-q"])
    assert local.exit_code == 0, local.stderr
    [document] = documents(evaluate(run, "--json"))
    assert document["collaboration"]["local"] == "../../local/seed-3"


def test_the_shown_command_uses_given_shards(evaluate):
    for words in (
        "partition --scheme iid --clients 3 --seed 5 --out mine -q",
        "train --shards mine --rounds 2 --seed 1 -q",
    ):
        done = CliRunner().invoke(app, shlex.split(words))
        assert done.exit_code == 0, done.stderr
    run = "runs/mine/fedmosaic-frequency/seed-1"
    line = evaluate(run).stderr.strip()
    assert line.endswith("make it: fedmosaic baseline local --shards mine --rounds 2 --seed 1")
    local = CliRunner().invoke(app, shlex.split(line.partition("make it: fedmosaic ")[2]))
    assert local.exit_code == 0, local.stderr
    assert documents(evaluate(run, "--json"))[0]["collaboration"]["local"] == "../../local/seed-1"


def replace_local_run(name: str) -> None:
    shutil.rmtree(LOCAL)
    shutil.copytree(Path("runs/quickstart") / name, LOCAL)


def test_a_local_run_on_other_shards_is_ignored(evaluate):
    replace_local_run("local/seed-1")
    result = evaluate(FEDCT)
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert "other shards" in line
    assert "--compare-with DIR" in line
    assert line.endswith("fedmosaic baseline local --preset quickstart --rounds 7 --seed 0 --run-dir DIR")
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    assert stored["collaboration"] is None
    assert "other shards" in stored["no_collaboration"]


def test_another_method_in_the_directory_of_local_is_ignored(evaluate):
    replace_local_run("ditto/seed-0")
    result = evaluate(FEDCT)
    assert "a run of 'ditto', not of Local" in result.stderr
    assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"] is None


@pytest.mark.parametrize("damage", ["summary is changed", "summary is gone"])
def test_a_damaged_local_run_is_ignored(evaluate, damage):
    summary = LOCAL / "summary.json"
    if damage == "summary is gone":
        summary.unlink()
    else:
        summary.write_bytes(summary.read_bytes().replace(b'"per_client": [\n      0.', b'"per_client": [\n      0.0'))
    result = evaluate(FEDCT)
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert "the Local run is not finished, or damaged" in line
    assert line.endswith("fedmosaic baseline local --preset quickstart --rounds 7 --seed 0")
    assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"] is None


def write_impossible_accuracy(folder: Path) -> None:
    """Write an accuracy that no number of correct predictions gives, without checksums."""
    summary = json.loads((folder / "summary.json").read_text())
    accuracies = summary["accuracy"]["per_client"]
    accuracies[3] = 0.123
    summary["accuracy"]["client_mean"] = sum(accuracies) / len(accuracies)
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
def test_a_summary_without_client_results_is_refused(evaluate, section, key, named):
    summary = json.loads((FEDCT / "summary.json").read_text())
    del summary[section][key]
    (FEDCT / "summary.json").write_text(json.dumps(summary))
    (FEDCT / "SHA256SUMS").unlink()
    result = evaluate(FEDCT)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert named in result.stderr


def test_a_symlink_loop_is_refused(evaluate):
    Path("loop").symlink_to("loop")
    result = evaluate(Path("loop"))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_a_local_run_with_impossible_accuracies_is_ignored(evaluate):
    write_impossible_accuracy(LOCAL)
    result = evaluate(FEDCT)
    assert result.exit_code == 0
    assert "0.123 is not an accuracy on" in result.stderr
    assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"] is None
    (FEDCT / "evaluation.json").unlink()
    assert "0.123 is not an accuracy on" in refused(evaluate(FEDCT, "--compare-with", LOCAL))


def test_caveats_of_the_local_run_are_shown(evaluate):
    content = json.loads((LOCAL / "summary.json").read_text())
    (LOCAL / "summary.json").write_text(json.dumps({**content, "nonidentical": ["after round 3: train.lr"]}))
    (LOCAL / "SHA256SUMS").unlink()
    caveat = "the Local run went on under other conditions than it began"
    for runs in ([FEDCT], [FEDCT, LOCAL]):
        result = evaluate(*runs)
        assert f"note: {caveat} ({FEDCT})" in result.stdout
        assert read_checksummed_json(FEDCT / "evaluation.json")["collaboration"]["caveats"] == [caveat]


def test_the_local_run_can_be_given(evaluate):
    LOCAL.rename("alone")
    [document] = documents(evaluate(FEDCT, "--compare-with", "alone", "--json"))
    assert document["collaboration"]["local"] == "../../../../alone"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("runs/quickstart/local/seed-1", "other shards"),
        ("runs/quickstart/ditto/seed-0", "'ditto'"),
        ("nowhere", "not a run directory (nowhere)"),
    ],
)
def test_a_given_local_run_must_match(evaluate, named, message):
    assert message in refused(evaluate(FEDCT, "--compare-with", named))


def test_training_split_needs_an_evaluated_local_run(evaluate):
    """A Local run has no training accuracy until it is evaluated on that split."""
    result = evaluate(FEDCT, "--split", "train")
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line.endswith(f"fedmosaic evaluate {LOCAL} --split train")
    assert read_checksummed_json(FEDCT / "evaluation-train.json")["collaboration"] is None

    together = documents(evaluate(FEDCT, LOCAL, "--split", "train", "--json"))[0]
    comparison = together["collaboration"]
    assert comparison["hurt"] > 0, "Local fits its training part best"
    [again] = documents(evaluate(FEDCT, "--split", "train", "--json"))
    assert again == together, "now from the stored evaluation"

    stored = LOCAL / "evaluation-train.json"
    stored.write_bytes(stored.read_bytes().replace(b'"rounds": 7', b'"rounds": 8'))
    assert evaluate(FEDCT, "--split", "train").exit_code == 0
    assert read_checksummed_json(FEDCT / "evaluation-train.json")["collaboration"] is None


def test_a_given_local_run_must_be_evaluated_on_the_split(evaluate):
    assert "was not evaluated on its train data" in refused(
        evaluate(FEDCT, "--compare-with", LOCAL, "--split", "train")
    )


def test_unfinished_runs_and_other_paths_are_refused(evaluate):
    Path("a-file").write_text("")
    assert "not a run directory (a-file)" in refused(evaluate(FEDCT, "a-file"))
    assert "not a run directory (runs)" in refused(evaluate("runs", FEDCT))
    (FEDCT / "summary.json").unlink()
    assert "not finished" in refused(evaluate(LOCAL, FEDCT))


def test_a_run_given_twice_is_evaluated_once(evaluate):
    result = evaluate(FEDCT, f"runs/../{FEDCT}", "--json")
    assert [document["run"] for document in documents(result)] == [str(FEDCT)]
    assert "given twice" in result.stderr


def test_the_table_has_one_line_per_run(evaluate):
    result = evaluate(FEDCT, LOCAL)
    assert result.exit_code == 0
    heading, fedct, local, *legend = result.stdout.splitlines()
    assert heading.split()[:4] == ["run", "mean", "%", "weighted"]
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    comparison = stored["collaboration"]
    expected = [f"{100 * stored['accuracy'][name]:.2f}" for name in ("client_mean", "sample_weighted", "client_std")]
    expected += [f"{100 * stored['accuracy'][name]:.2f}" for name in ("worst", "worst_decile")]
    expected += [f"{100 * stored[name]['client_mean']:.2f}" for name in METRICS[2:]]
    assert fedct.split() == [
        str(FEDCT),
        *expected,
        f"{comparison['helped']}/{comparison['unharmed']}/{comparison['hurt']}",
    ]
    assert local.split()[0] == str(LOCAL)
    assert local.split()[-1] == "-"
    assert any("fewer correct predictions" in line for line in legend)


def test_verbose_shows_clients_and_confusion_matrix(evaluate):
    lines = evaluate(FEDCT, "--verbose").stdout.splitlines()
    stored = read_checksummed_json(FEDCT / "evaluation.json")
    heading = next(number for number, line in enumerate(lines) if line.startswith("client "))
    shown = [line.split() for line in lines[heading + 1 : heading + 11]]
    assert [row[0] for row in shown] == [str(number) for number in range(10)]
    assert [row[3] for row in shown] == [f"{100 * client['accuracy']:.2f}" for client in stored["per_client"]]
    assert [float(row[-1]) for row in shown] == [round(100 * client["gain"], 2) for client in stored["per_client"]]
    [comparison] = [line for line in lines if line.startswith("compared with Local: ")]
    assert f"{stored['collaboration']['helped']} helped" in comparison
    matrix = next(number for number, line in enumerate(lines) if line.split() == list("0123456789"))
    sums = [[int(cell) if cell != "." else 0 for cell in line.split()[1:]] for line in lines[matrix + 1 : matrix + 11]]
    together = [client["confusion"] for client in stored["per_client"]]
    assert sums == [[sum(one[row][column] for one in together) for column in range(10)] for row in range(10)]


def test_progress_is_printed_to_a_pipe_at_intervals(evaluate, monkeypatch):
    assert evaluate(FEDCT).stderr == "", "the evaluation is faster than the interval"
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", 0)
    lines = evaluate(FEDCT, LOCAL).stderr.splitlines()
    assert lines == [f"evaluating clients  {5 * done}%" for done in range(21)]
    assert evaluate(FEDCT, LOCAL, "--quiet").stderr == ""
    assert evaluate(FEDCT, LOCAL, "--json").stderr == ""


def test_old_option_names_work_and_print_a_note(evaluate):
    LOCAL.rename("alone")
    result = evaluate(FEDCT, "--local", "alone", "--json")
    assert documents(result)[0]["collaboration"]["local"] == "../../../../alone"
    assert "note: --local is now --compare-with" in result.stderr
