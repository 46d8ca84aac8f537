"""Commands that are repeated: finished runs are skipped, others continue, and other values get other directories."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app

SHORT = ("baseline", "local", "--preset", "quickstart", "--rounds", "2")
NAME = Path("runs/quickstart")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_names() -> set[str]:
    return {str(path.parent.relative_to("runs")) for path in Path("runs").glob("*/*/seed-*/summary.json")}


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_repeated_command_skips_finished_runs_and_makes_the_missing_seeds(invoke):
    first = invoke(*SHORT)
    assert (first.exit_code, "finished already" in first.stderr) == (0, False)
    before = snapshot(NAME / "local/seed-0")
    more = invoke(*SHORT, "--seeds", "0-1")
    assert more.exit_code == 0, more.stderr
    assert snapshot(NAME / "local/seed-0") == before
    accuracy = json.loads((NAME / "local/seed-0/summary.json").read_text())["accuracy"]["client_mean"]
    assert more.stderr.splitlines()[0] == f"finished already: local seed 0, 10 clients: {100 * accuracy:.2f} %"
    [row] = [line.split() for line in more.stdout.splitlines() if line.startswith("local*")]
    assert row[:2] == ["local*", "2"], "the table has the mean of both seeds"
    document = json.loads(invoke(*SHORT, "--seeds", "0,1", "--json").stdout)
    assert [summary["seed"] for summary in document] == [0, 1]


def test_skipping_needs_neither_torch_nor_the_shards(invoke, tmp_path):
    assert invoke(*SHORT).exit_code == 0
    shutil.rmtree("shards")
    script = (
        "import sys\nfrom fedmosaic_cli.cli.app import app\n"
        "try:\n    app()\nfinally:\n    assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script, *SHORT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "finished already" in done.stderr
    assert not Path("shards").exists()


def test_an_interrupted_run_continues_without_an_option(invoke):
    assert invoke(*SHORT, "--set", "train.checkpoint_every=1").exit_code == 0
    before = snapshot(NAME / "local/seed-0")
    for name in ("summary.json", "SHA256SUMS"):
        (NAME / "local/seed-0" / name).unlink()
    again = invoke(*SHORT, "--set", "train.checkpoint_every=1")
    assert again.exit_code == 0, again.stderr
    assert "resumed after round 2" in again.stderr
    after = snapshot(NAME / "local/seed-0")
    assert {name: content for name, (content, _) in after.items()} == {n: content for n, (content, _) in before.items()}


def test_a_damaged_finished_run_is_repaired(invoke):
    assert invoke(*SHORT).exit_code == 0
    model = NAME / "local/seed-0/models/client-000.safetensors"
    content = model.read_bytes()
    model.write_bytes(content[:-1])
    assert invoke(*SHORT).exit_code == 0
    assert model.read_bytes() == content


def test_other_values_get_other_directories(invoke):
    for options in (
        ("local",),
        ("local", "--set", "data.alpha=0.3"),
        ("local", "--set", "data.alpha=0.5"),  # the value of the preset
        ("ditto", "--set", "methods.ditto.mu=0.1"),
        ("local", "--set", "train.workers=1"),  # does not affect the result
    ):
        done = invoke("baseline", *options, "--preset", "quickstart", "--rounds", 2, "-q")
        assert done.exit_code == 0, done.stderr
    assert run_names() == {
        "quickstart/local/seed-0",
        "quickstart-alpha-0.3/local/seed-0",
        "quickstart/ditto-mu-0.1/seed-0",
    }


def test_a_list_of_values_makes_one_run_each(invoke):
    options = (
        "--preset",
        "quickstart",
        "--rounds",
        1,
        "--set",
        "methods.ditto.mu=0.1,1",
        "--set",
        "train.lr=0.01,0.02",
    )
    done = invoke("baseline", "ditto,local", *options)
    assert done.exit_code == 0, done.stderr
    assert run_names() == {
        f"quickstart-lr-{rate}/{method}/seed-0"
        for rate in ("0.01", "0.02")
        for method in ("ditto-mu-0.1", "ditto-mu-1", "local")
    }
    assert "ditto mu=0.1 train.lr=0.02 seed 0" in done.stderr


def test_all_values_are_checked_before_the_first_run(invoke, tmp_path):
    done = invoke("baseline", "ditto", "--preset", "quickstart", "--set", "methods.ditto.mu=0.1,-1")
    assert (done.exit_code, "methods.ditto.mu is -1 (--set)" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_under_a_shorter_name_is_found_and_extended(invoke):
    other = (*SHORT, "--set", "data.alpha=0.3")
    assert invoke(*other, "--name", "quickstart", "-q").exit_code == 0
    assert "finished already" in invoke(*other).stderr
    longer = invoke(*other, "--rounds", 3, "--resume", "-q")
    assert longer.exit_code == 0, longer.stderr
    assert run_names() == {"quickstart/local/seed-0"}
    assert json.loads(Path("runs/quickstart/local/seed-0/summary.json").read_text())["rounds"] == 3


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (3, "the run here has 2 rounds, not 3 (runs/quickstart/local/seed-0): add --resume to extend it"),
        (1, "train.rounds was 2 and is now 1, which is fewer"),
    ],
)
def test_another_number_of_rounds_is_refused_with_a_remedy(invoke, rounds, words):
    assert invoke(*SHORT, "-q").exit_code == 0
    before = snapshot(NAME)
    done = invoke(*SHORT, "--rounds", rounds)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr
    assert "choose a --name" in done.stderr
    assert snapshot(NAME) == before


def test_only_a_directory_that_the_user_names_can_hold_another_run(invoke):
    assert invoke(*SHORT, "--name", "mine", "-q").exit_code == 0
    for options, words in (
        (("--name", "mine", "--set", "train.lr=0.5"), "train.lr was 0.003 and is now 0.5"),
        (("--name", "mine", "--set", "train.lr=0.5"), "leave out --name or choose another"),
        (("--run-dir", "runs/mine/local/seed-0", "--set", "train.lr=0.5"), "use another --run-dir"),
        (("--name", "mine", "--rounds", "3"), "the run here has 2 rounds, not 3"),
    ):
        done = invoke(*SHORT, *options)
        assert done.exit_code == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_dry_run_marks_finished_runs_and_estimates_from_measured_rounds(invoke):
    unknown = invoke(*SHORT, "--dry-run").stdout
    assert "1 runs/quickstart/local/seed-0 (new)" in unknown
    assert "time: unknown: no run of this experiment has been measured here" in unknown
    assert invoke(*SHORT, "-q").exit_code == 0
    plan = invoke("baseline", "ditto", *SHORT[1:], "--dry-run").stdout
    assert "2 runs/quickstart/local/seed-0 (finished)" in plan
    assert "time: from measured rounds of local and the relative cost of ditto" in plan
    runs = json.loads(invoke("baseline", "ditto", *SHORT[1:], "--dry-run", "--json").stdout)["runs"]
    assert runs[0]["seconds"] > 0
    assert (runs[1]["state"], runs[1]["seconds"]) == ("finished", 0)


def test_a_finished_run_on_other_shards_is_not_taken_for_the_requested_one(invoke):
    for seed, folder in ((0, "first"), (1, "second")):
        made = invoke(
            *("partition", "--scheme", "iid", "--clients", 3, "--public-size", 30, "-q"),
            *("--seed", seed, "--out", f"{folder}/mine"),
        )
        assert made.exit_code == 0, made.stderr
    train = ("baseline", "local", "--rounds", 1, "-q", "--shards")
    assert invoke(*train, "first/mine").exit_code == 0
    assert invoke(*train, "first/mine").exit_code == 0
    other = invoke(*train, "second/mine")
    assert (other.exit_code, other.stderr.count("\n")) == (2, 1)
    assert "another run is finished here" in other.stderr


def test_a_finished_run_with_a_changed_plugin_is_not_taken_for_the_requested_one(invoke):
    source = (Path(__file__).parents[2] / "docs/examples/my_model.py").read_text()
    train = (*SHORT, "--model", "net.py:MyModel", "-q")
    Path("net.py").write_text(source)
    assert invoke(*train).exit_code == 0
    assert invoke(*train).exit_code == 0
    Path("net.py").write_text(source.replace("Dropout(0.2)", "Dropout(0.3)"))
    other = invoke(*train)
    assert (other.exit_code, other.stderr.count("\n")) == (2, 1)
    assert "another run is finished here: the plug-in models.my-model was" in other.stderr
