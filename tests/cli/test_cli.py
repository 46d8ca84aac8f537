"""The training commands on the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.methods.registry import ALL_BASELINES, METHODS
from tests.conftest import fedmosaic

# One warm-up round, so that the other two exchange labels.
SHORT = (
    "--preset",
    "quickstart",
    "--rounds",
    "3",
    "--set",
    "methods.fedmosaic.warmup_rounds=1",
    "--name",
    "quickstart",
    "--tag",
    "",
)
RUN = Path("runs/quickstart/fedmosaic-entropy/seed-0")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def results(folder: Path) -> dict[str, bytes]:
    """The files that must be identical if a run is repeated."""
    files = [folder / "rounds.jsonl", folder / "summary.json", *sorted((folder / "models").iterdir())]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_partition_train_evaluate_and_report(tmp_path):
    done = fedmosaic("partition", "--scheme", "dirichlet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shards = tmp_path / "shards" / "digits-dirichlet-s0"
    names = {path.name for path in shards.iterdir()}
    assert {
        "manifest.json",
        "client-000.npz",
        "client-014.npz",
        "public.npz",
        "distribution.csv",
        "distribution.png",
    } <= names

    done = fedmosaic("train", *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedmosaic baseline all --preset quickstart" in done.stdout
    assert "fedmosaic report" in done.stdout
    assert not list((tmp_path / "shards" / "quickstart-s0").glob("*.p*"))  # training draws no plots
    lines = [line for line in done.stderr.splitlines() if " round " in line]
    assert len(lines) == 3
    assert re.search(r"round 3/3  accuracy \d+\.\d+%  lambda \d\.\d+", lines[-1])

    done = fedmosaic("baseline", "local", "centralized", *SHORT, "--seeds", "0,1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    done = fedmosaic("evaluate", str(RUN), "runs/quickstart/local/seed-0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    evaluation = json.loads((tmp_path / RUN / "evaluation.json").read_text())
    summary = json.loads((tmp_path / RUN / "summary.json").read_text())
    assert [mark["accuracy"] for mark in evaluation["per_client"]] == summary["accuracy"]["per_client"]
    assert evaluation["accuracy"]["client_mean"] == summary["accuracy"]["client_mean"]

    for form, words in (
        ("--markdown", "| references | Centralized |"),
        ("--latex", "\\begin{tabular}"),
        ("--csv", "setting,"),
    ):
        done = fedmosaic("report", form, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
    done = fedmosaic("report", cwd=tmp_path)
    assert "| references | Centralized |" in done.stdout


def test_a_run_writes_the_documented_files(finished_runs):
    run = finished_runs / "quickstart" / "fedmosaic-entropy" / "seed-1"
    assert {"config.yaml", "env.json", "rounds.jsonl", "timings.jsonl", "checkpoints", "models", "summary.json"} <= {
        path.name for path in run.iterdir()
    }
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [(row["round"], row["client"]) for row in rows] == [(r, c) for r in range(1, 8) for c in range(10)]
    # Three warm-up rounds; the first exchange is after the third.
    has_uploads = [sum(row["bits_up"] for row in rows if row["round"] == r) > 0 for r in range(1, 8)]
    assert has_uploads == [False] * 2 + [True] * 5
    assert all(row["lambda"] == 0 for row in rows if row["round"] <= 3)
    assert all(row["lambda"] > 0 for row in rows if row["round"] == 7)
    summary = json.loads((run / "summary.json").read_text())
    promised = {
        "schema",
        "preset",
        "dataset",
        "scheme",
        "method",
        "expertise",
        "seed",
        "rounds",
        "accuracy",
        "best_round",
    }
    assert promised | {"bits", "evaluation"} <= summary.keys()
    assert summary["models"].keys() == {path.name for path in (run / "models").iterdir()}
    assert {"client_mean", "sample_weighted", "client_std", "worst", "worst_decile", "per_client"} == summary[
        "accuracy"
    ].keys()
    assert summary["evaluation"]["round"] == "last"
    assert summary["bits"] == {
        "up": sum(row["bits_up"] for row in rows),
        "down": sum(row["bits_down"] for row in rows),
    }
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["methods"] == {
        "fedmosaic": {
            **{"warmup_rounds": 3, "warmup_share": 0.0, "expertise": "entropy", "expertise_bits": 8},
            **{"trust": "stabilised", "public_loss": "plain", "votes_from": "self"},
        }
    }
    assert len(list((run / "models").iterdir())) == 10


def test_methods_are_compared_on_the_same_shards(finished_runs):
    digests = {
        json.loads(path.read_text())["shards"]["digest"]
        for path in finished_runs.glob("quickstart/*/seed-0/summary.json")
    }
    assert len(digests) == 1
    assert {path.name for path in (finished_runs / "quickstart").iterdir()} == {
        *ALL_BASELINES,
        "fedmosaic-entropy",
    }


def test_the_same_run_twice_gives_the_same_bytes_with_any_number_of_workers(tmp_path):
    for name, workers in (("a", "1"), ("b", "3")):
        done = fedmosaic("train", *SHORT, "--runs-dir", name, "--workers", workers, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    folders = [tmp_path / name / "quickstart" / "fedmosaic-entropy" / "seed-0" for name in ("a", "b")]
    assert results(folders[0]) == results(folders[1])


def test_resume_skips_finished_runs_and_can_add_rounds(tmp_path):
    assert fedmosaic("train", *SHORT, cwd=tmp_path).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / RUN).rglob("*") if path.is_file()}
    done = fedmosaic("train", *SHORT, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / RUN).rglob("*") if path.is_file()} == before

    assert fedmosaic("evaluate", str(RUN), cwd=tmp_path).returncode == 0
    environment = (tmp_path / RUN / "env.json").read_bytes()
    longer = ("train", *SHORT[:3], "5", *SHORT[4:])
    assert fedmosaic(*longer, "--resume", cwd=tmp_path).returncode == 0
    assert not (tmp_path / RUN / "evaluation.json").exists(), "it was about other models"
    assert (tmp_path / RUN / "env.json").read_bytes() == environment
    assert fedmosaic(*longer, "--runs-dir", "b", cwd=tmp_path).returncode == 0
    assert results(tmp_path / RUN) == results(tmp_path / "b" / RUN.relative_to("runs"))


REFUSED = [
    (["train", "--preset", "quickstrat"], "did you mean 'quickstart'?"),
    (["train"], "--preset quickstart"),
    (["train", "--preset", "missing.yaml"], "cannot read"),
    (["train", "--preset", "quickstart", "--bogus"], "--bogus"),
    (["train", "--preset", "quickstart", "--rounds", "many"], "many"),
    (["train", "--preset", "quickstart", "--rounds", "0"], "at least 1"),
    (["train", "--preset", "quickstart", "--seeds", "1,1"], "distinct whole numbers"),
    (["train", "--preset", "quickstart", "--seeds", "-1"], "distinct whole numbers"),
    (["train", "--preset", "quickstart", "--seed", "1", "--seeds", "2"], "use one of them"),
    (["train", "--preset", "quickstart", "--seed", "-1"], "--seed"),
    (["train", "--preset", "quickstart", "--set", "data.public_size=0"], "needs a public set"),
    (["train", "--preset", "quickstart", "--set", "train.momentum=0.5"], "use optimizer sgd"),
    (["train", "--preset", "quickstart", "--set", "train.lr=2020-13-45"], "train.lr is '2020-13-45' (--set)"),
    (["train", "--preset", "quickstart", "--set", "train.lr=3:20"], "train.lr is '3:20'"),
    (["train", "--preset", "quickstart", "--config", "/dev/zero"], "not a file"),
    (["baseline", "local", "--preset", "quickstart", "--expertise", "entropy"], "applies to fedmosaic only"),
    (["partition", "--scheme", "iid", "--out", "."], "shards need a separate directory"),
    (["partition", "--scheme", "domain", "--clients", "7"], "--clients has no effect"),
    (["partition", "--scheme", "iid", "--alpha", "3"], "--alpha has no effect"),
    (["partition", "--scheme", "iid", "--clients", "1000"], "too many (data.clients)"),
    (["train", "--preset", "quickstart", "--seeds", "1,2", "--run-dir", "x"], "--runs-dir"),
    (["train", "--preset", "quickstart", "--set", "train.nope=1"], "unknown key 'train.nope'"),
    (["train", "--preset", "quickstart", "--set", "data.public_size=5000"], "does not fit"),
    (["train", "--preset", "quickstart", "--set", "data.clients=400"], "lower it or data.clients"),
    (["train", "--preset", "quickstart", "--config", "nope.yaml"], "cannot read"),
    (["train", "--preset", "quickstart", "--device", "tpu"], "tpu"),
    (["train", "--preset", "quickstart", "--device", "cuda"], "no cuda device"),
    (["train", "--shards", "nowhere"], "no shards found"),
    (["baseline"], "no method is given"),
    (["baseline", "fedpox", "--preset", "quickstart"], "unknown method 'fedpox'"),
    (["baseline", "local", "everything", "--preset", "quickstart"], "unknown method 'everything'"),
    (["partition"], "no scheme is given"),
    (["partition", "--scheme", "round-robin"], "round-robin"),
    (["partition", "--scheme", "dirichlet", "--alpha", "0"], "data.alpha is 0.0"),
    (["partition", "--scheme", "dirichlet", "--alpha", "-1"], "greater than 0"),
    (["partition", "--scheme", "dirichlet", "--alpha", "nan"], "data.alpha is nan"),
    (["partition", "--scheme", "pathological", "--classes-per-client", "11"], "at most 10"),
    (["partition", "--scheme", "iid", "--public-size", "1797"], "does not fit"),
    (["partition", "--scheme", "iid", "--clients", "0"], "at least 1"),
    (["partition", "--scheme", "domain", "--dataset", "digits"], "has no domains"),
    (["partition", "--scheme", "iid", "--dataset", "mnits"], "unknown data set 'mnits'"),
    (["partition", "--scheme", "iid", "--flip-labels", "15"], "no client 15"),
    (["partition", "--scheme", "iid", "--flip-labels", "a"], "whole numbers"),
    (
        ["baseline", "fedavg", "--preset", "quickstart-mixed"],
        "the same network for all clients, but client 4 has",
    ),
    (["baseline", "perfedckt", "--preset", "quickstart-mixed"], "PerFed-CKT needs networks"),
    (["baseline", "ditto", "--preset", "quickstart", "--set", "clients.0-3.model=cnn"], "but theirs are cnn, mlp"),
    (
        ["baseline", "fedavg", "--preset", "quickstart", "--set", "clients.0.model.hidden=[9]"],
        "not all are the same mlp",
    ),
    (["train", "--preset", "quickstart", "--set", "clients.9-10.lr=0.1"], "numbered from 0 to 9"),
    (["train", "--preset", "quickstart", "--set", "train.clients_per_round=11"], "at most 10"),
    (["baseline", "pfedme", "--preset", "quickstart", "--set", "methods.pfedme.lr=1"], "overshoots theta"),
    (["baseline", "fedprox", "--preset", "quickstart", "--set", "methods.fedprox.mu=-1"], "at least 0"),
    (["baseline", "fedprox", "--preset", "quickstart", "--set", "methods.fedprox.mu=1e300"], "at most 1e+30"),
    (["baseline", "apfl", "--preset", "quickstart", "--set", "methods.apfl.adaptive=maybe"], "must be true or false"),
    (["evaluate", "nowhere"], "not a run directory"),
    (["evaluate"], "RUN"),
    (["report"], "no such directory (runs)"),
    (["report", "--latex", "--csv"], "choose one"),
    (["presets", "show", "nope"], "unknown preset 'nope'"),
    (["frobnicate"], "frobnicate"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_invalid_requests_print_one_line_and_write_nothing(invoke, tmp_path, arguments, words):
    if "cuda" in arguments:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_with_content_is_refused(invoke, tmp_path):
    folder = tmp_path / RUN
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("irreplaceable")
    for more in ([], ["--resume"]):
        result = invoke("train", *SHORT, *more)
        assert result.exit_code == 2
        assert str(RUN) in result.stderr
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    assert not (tmp_path / "shards").exists()


def test_a_run_killed_before_its_start_is_not_a_run(invoke, tmp_path):
    folder = tmp_path / RUN
    folder.mkdir(parents=True)
    (folder / ".lock").write_text("")
    (folder / ".config.yaml.0123456789ab.part").write_text("setting: qui")
    assert invoke("train", *SHORT, "-q").exit_code == 0
    assert (folder / "summary.json").is_file()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_resuming_with_another_configuration_is_refused(invoke, finished_runs, tmp_path):
    shutil.copytree(finished_runs, tmp_path / "runs")
    options = ("--preset", "quickstart", "--name", "quickstart", "--rounds", "7", "--set", "train.lr=0.5")
    for more in ([], ["--resume"]):
        result = invoke("train", *options, *more)
        assert result.exit_code == 2
        assert "another run is finished here: train.lr was 0.003 and is now 0.5" in result.stderr
        assert "leave out --name or choose another" in result.stderr


def test_damaged_models_and_unfinished_runs_are_not_evaluated(invoke, finished_runs, tmp_path):
    shutil.copytree(finished_runs / "quickstart", tmp_path / "q")
    bad = tmp_path / "q" / "local" / "seed-0"
    model = bad / "models" / "client-003.safetensors"
    model.write_bytes(model.read_bytes()[:-10])
    result = invoke("evaluate", "q/fedct/seed-0", "q/local/seed-0")
    assert result.exit_code == 2
    assert "client-003.safetensors" in result.stderr
    assert not (tmp_path / "q" / "fedct" / "seed-0" / "evaluation.json").exists()
    (bad / "summary.json").unlink()
    assert "not finished" in invoke("evaluate", "q/local/seed-0").stderr


def test_a_model_of_another_client_is_not_evaluated(invoke, finished_runs, tmp_path):
    shutil.copytree(finished_runs / "quickstart" / "ditto" / "seed-0", tmp_path / "swapped")
    models = tmp_path / "swapped" / "models"
    shutil.copy(models / "client-005.safetensors", models / "client-004.safetensors")
    result = invoke("evaluate", "swapped")
    assert result.exit_code == 2
    assert "client-004.safetensors" in result.stderr


def test_evaluate_accepts_the_training_split(invoke, finished_runs, tmp_path):
    shutil.copytree(finished_runs / "quickstart", tmp_path / "q")
    result = invoke("evaluate", "q/local/seed-0", "--split", "train", "--json")
    assert result.exit_code == 0, result.stderr
    [evaluation] = json.loads(result.stdout)
    assert evaluation["split"] == "train"
    assert evaluation["accuracy"]["client_mean"] > 0.5
    assert (tmp_path / "q" / "local" / "seed-0" / "evaluation-train.json").is_file()


def test_training_on_shards_refuses_other_data_settings(invoke, tmp_path):
    assert (
        invoke("partition", "--scheme", "pathological", "--clients", "5", "--seed", "7", "--out", "mine").exit_code == 0
    )
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    result = invoke("train", "--shards", "mine", "--rounds", "2", "--json")
    assert result.exit_code == 0, result.stderr
    [summary] = json.loads(result.stdout)
    assert summary["shards"]["digest"] == manifest["digest"]
    assert (summary["preset"], summary["seed"], len(summary["accuracy"]["per_client"])) == ("mine", 0, 5)
    result = invoke("train", "--shards", "mine", "--set", "data.alpha=0.7", "--runs-dir", "other")
    assert result.exit_code == 2
    assert "re-run 'fedmosaic partition'" in result.stderr


def test_changed_data_settings_get_separate_shards(invoke, tmp_path):
    assert invoke("train", *SHORT).exit_code == 0
    assert invoke("train", *SHORT, "--set", "data.alpha=0.3", "--runs-dir", "other").exit_code == 0
    assert invoke("partition", "--preset", "quickstart").exit_code == 0, "the preset's own shards are there already"
    names = sorted(path.name for path in (tmp_path / "shards").iterdir())
    assert len(names) == 2
    assert names[0].startswith("quickstart-")
    assert "quickstart-s0" in names


def test_dry_run_shows_origins_and_costs_and_writes_nothing(invoke, tmp_path):
    result = invoke("train", *SHORT, "--set", "train.lr=0.5", "--set", "train.local_epochs=2", "--dry-run")
    assert result.exit_code == 0, result.stderr
    text = re.sub(r" +", " ", result.stdout)
    assert "train.lr 0.5 --set" in text
    assert "train.rounds 3 flag" in text
    assert "data.alpha 0.5 preset quickstart" in text
    assert "6,000 2,000" in text
    assert "train.local_steps - default" in text, "epochs were asked for later than steps"
    plan = json.loads(invoke("baseline", "all", *SHORT, "--dry-run", "--json").stdout)
    bits = {Path(run["path"]).parent.name: run["bits_up"] for run in plan["runs"]}
    assert (bits["local"], bits["centralized"], bits["fedct"]) == (0, None, 2000)
    assert list(tmp_path.iterdir()) == []


def test_presets_can_be_copied_changed_and_used(invoke, tmp_path):
    assert invoke("presets", "copy", "quickstart", "mine.yaml").exit_code == 0
    text = (tmp_path / "mine.yaml").read_text().replace("rounds: 10", "rounds: 2")
    (tmp_path / "mine.yaml").write_text(text)
    assert invoke("train", "--preset", "mine.yaml", "-q").exit_code == 0
    assert (tmp_path / "runs" / "mine" / "fedmosaic-entropy" / "seed-0" / "summary.json").is_file()
    again = invoke("presets", "copy", "quickstart", "mine.yaml")
    assert (again.exit_code, "the file exists" in again.stderr) == (2, True)


def test_json_is_one_document(invoke):
    result = invoke("baseline", "local", "fedavg", *SHORT, "--json")
    assert [summary["method"] for summary in json.loads(result.stdout)] == ["local", "fedavg"]
    assert json.loads(invoke("partition", "--scheme", "iid", "--json").stdout)["scheme"] == "iid"
    numbers = {entry["method"]: entry["mean"] for entry in json.loads(invoke("report", "--json").stdout)}
    assert [method for method, mean in numbers.items() if mean is not None] == ["Local training", "FedAvg"]
    assert "torch" in json.loads(invoke("doctor", "--json").stdout)["versions"]


OWN_RATES = {"perfedavg": "methods.perfedavg.beta", "pfedme": "methods.pfedme.inner_lr"}
OWN_DATA = {"fedfomo": ("--set", "data.val_fraction=0.2")}


@pytest.mark.parametrize("method", METHODS)
def test_divergence_stops_the_run_and_names_the_client(invoke, tmp_path, method):
    rate = OWN_RATES.get(method, "train.lr")
    options = ("--set", "train.optimizer=sgd", "--set", f"{rate}=1e30", *OWN_DATA.get(method, ()))
    result = invoke("baseline", method, *SHORT, *options)
    assert result.exit_code == 1
    line = result.stderr.splitlines()[-1]
    assert re.match(rf"error: client \d+ diverged in round 1 of {method}.*, seed 0, .*{rate} 1e\+30", line)
    assert "lower the learning rate" in line
    assert "there is no checkpoint yet" in line
    assert not list(tmp_path.rglob("summary.json"))


def test_an_unwritable_directory_is_a_resource_error(invoke, tmp_path):
    result = invoke("partition", "--scheme", "iid", "--out", "/proc/nowhere/shards")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    (tmp_path / "file").write_text("")
    result = invoke("partition", "--scheme", "iid", "--out", "file/below")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    done = subprocess.run(
        f"{sys.executable} -m fedmosaic_cli presets list > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)


def test_an_environment_variable_sets_the_runs_directory(tmp_path):
    done = fedmosaic("train", *SHORT, "-q", cwd=tmp_path, FEDMOSAIC_RUNS=str(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "elsewhere" / "quickstart").is_dir()
    done = fedmosaic("report", cwd=tmp_path, FEDMOSAIC_RUNS=str(tmp_path / "elsewhere"))
    assert "FedMosaic-U (warmup_rounds=1)" in done.stdout


def test_report_writes_every_format(invoke, finished_runs, tmp_path):
    result = invoke("report", finished_runs, "--out", "tables")
    assert result.exit_code == 0, result.stderr
    forms = {f"{table}.{form}" for table in ("table", "label-skew") for form in ("csv", "md", "svg", "tex")}
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    assert written >= {*forms, "all.tex", "fedmosaic-preamble.tex", "statistics.csv", "statistics.md"}
    assert (tmp_path / "tables" / "table.md").read_text() == result.stdout
    assert "FedMosaic" in (tmp_path / "tables" / "table.svg").read_text()


def test_a_terminal_shows_a_progress_bar_and_colours(tmp_path):
    """Uses a pseudo-terminal."""
    pty = pytest.importorskip("pty")
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", "train", *SHORT],
        cwd=tmp_path,
        stdout=secondary,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(secondary)
    seen = b""
    while True:
        try:
            piece = os.read(primary, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    assert process.wait() == 0
    assert b"\x1b[" in seen
    assert "━".encode() in seen


def test_the_suggested_next_command_keeps_the_options(invoke):
    result = invoke("train", *SHORT, "--seeds", "3,4", "--set", "train.lr=0.01", "--runs-dir", "my runs")
    assert (
        "next: fedmosaic baseline all --preset quickstart --rounds 3 --seeds 3,4 --name quickstart "
        "--runs-dir 'my runs' --set methods.fedmosaic.warmup_rounds=1 --set train.lr=0.01\n"
        "then: fedmosaic report 'my runs'\n"
    ) in result.stdout


def test_names_with_square_brackets_are_printed_verbatim(invoke, tmp_path):
    """rich interprets square brackets as markup."""
    result = invoke("train", *SHORT, "--run-dir", "a[red]b[/nope]")
    assert result.exit_code == 0, result.stderr
    assert "a[red]b[/nope]" in result.stdout


def test_a_method_equivalent_to_another_one_causes_a_warning(invoke):
    result = invoke("baseline", "fedbn", "--preset", "quickstart", "--dry-run")
    assert "warning: FedBN equals FedAvg here" in result.stderr
    for key in ("model.name", "clients.0-9.model"):
        result = invoke("baseline", "fedbn", "--preset", "quickstart", "--dry-run", "--set", f"{key}=cnn-bn")
        assert "warning" not in result.stderr
    result = invoke(
        "baseline", "perfedckt", "--preset", "quickstart", "--dry-run", "--set", "train.clients_per_round=5"
    )
    assert "5 clusters for 5 clients in a round" in result.stderr


def test_without_a_public_set_methods_that_need_one_are_left_out(invoke):
    result = invoke("baseline", "all", "--preset", "quickstart", "--dry-run", "--set", "data.public_size=0")
    assert result.exit_code == 0
    assert "left out: each of FedCT, PerFed-CKT, Gated co-training needs a public set" in result.stderr


def test_clients_can_have_different_models(invoke, tmp_path):
    short = ("--preset", "quickstart-mixed", "--rounds", "3", "--set", "clients.6-7.model=decision-tree", "-q")
    short += ("--name", "quickstart-mixed", "--tag", "")
    trained = invoke("train", *short, "--set", "methods.fedmosaic.warmup_rounds=1")
    assert trained.exit_code == 0, trained.stderr
    summary = json.loads(next(tmp_path.rglob("fedmosaic-entropy/seed-0/summary.json")).read_text())
    assert summary["clients"]["6-7"]["model"] == {"name": "decision-tree"}
    examined = invoke("evaluate", "runs/quickstart-mixed/fedmosaic-entropy/seed-0", "--json")
    assert json.loads(examined.stdout)[0]["accuracy"]["client_mean"] == summary["accuracy"]["client_mean"]
    others = invoke("baseline", "all", *short)
    assert others.exit_code == 0, others.stderr
    assert "left out: each of FedAvg, FedProx" in others.stderr
    assert {path.parent.parent.name for path in tmp_path.rglob("summary.json")} == {
        "fedmosaic-entropy",
        "centralized",
        "local",
        "fedct",
    }


def test_summaries_have_personal_and_global_accuracy(finished_runs):
    def summary(method):
        return json.loads((finished_runs / "quickstart" / method / "seed-0" / "summary.json").read_text())

    assert summary("fedavg")["global_accuracy"] == summary("fedavg")["accuracy"]
    assert summary("ditto")["global_accuracy"] == summary("fedavg")["accuracy"]
    assert summary("ditto")["accuracy"] != summary("ditto")["global_accuracy"]
    assert summary("local")["global_accuracy"] is None
    assert summary("ditto")["evaluation"]["model"] == "the client's personal model, which never leaves it"
    # A network without batch normalisation.
    assert summary("fedbn")["accuracy"] == summary("fedavg")["accuracy"]


def test_methods_that_depend_on_total_rounds_refuse_more_rounds(invoke, finished_runs, tmp_path):
    for method, code in (("fedphp", 2), ("fedprox", 0)):
        shutil.copytree(finished_runs / "quickstart" / method / "seed-0", tmp_path / method)
        options = ("--preset", "quickstart", "--resume", "--rounds", "8", "-q", "--run-dir", str(tmp_path / method))
        result = invoke("baseline", method, *options)
        assert result.exit_code == code
        assert ("every round of FedPHP depends" in result.stderr) == bool(code)


def test_all_methods_are_listed_with_what_they_share(invoke):
    listed = json.loads(invoke("baseline", "--list", "--json").stdout)
    assert [method["name"] for method in listed] == list(METHODS)
    assert {method["family"] for method in listed} == {"baseline", "FL", "PFL", "co-training"}
    assert all(method["travels"] and method["citation"] and method["evaluated"] for method in listed)


def test_a_run_without_exchange_causes_a_warning(invoke):
    result = invoke("train", "--preset", "quickstart", "--rounds", "2", "--dry-run")
    assert "FedMosaic equals Local here" in result.stderr


def test_concurrent_partition_commands_agree(tmp_path):
    command = [sys.executable, "-m", "fedmosaic_cli", "partition", "--scheme", "iid", "-q"]
    processes = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ends = [(process.communicate()[1], process.returncode) for process in processes]
    assert ends == [("", 0)] * 4
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["digits-iid-s0"]


def test_closed_output_streams_are_tolerated(tmp_path):
    command = f"{sys.executable} -m fedmosaic_cli presets list"
    for closed in (">&-", "2>&-", "| true"):
        done = subprocess.run(
            f"{command} {closed}", shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("asked", "chosen", "said"), [("auto", "stacked", "clients stacked"), ("threads", "threads", "clients one by one")]
)
def test_the_execution_mode_is_chosen_shown_and_recorded(tmp_path, asked, chosen, said):
    done = fedmosaic("train", *SHORT, "--set", f"train.execution={asked}", "--workers", "1", cwd=tmp_path)
    assert f"on cpu: {said}, 1 worker" in done.stderr
    for name in ("env.json", "summary.json"):
        assert json.loads((tmp_path / RUN / name).read_text())["execution"] == chosen
    assert f"execution: {asked}" in (tmp_path / RUN / "config.yaml").read_text()


def test_a_network_that_cannot_be_stacked_is_refused_before_anything_is_written(invoke, tmp_path):
    result = invoke(
        "train", "--preset", "quickstart", "--set", "model.name=vit-tiny", "--set", "train.execution=stacked"
    )
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "vit-tiny cannot be stacked (train.execution): use auto or threads" in result.stderr


def test_dry_run_estimates_memory(invoke):
    plans = {
        how: json.loads(
            invoke("train", "--preset", "quickstart", "--set", f"train.execution={how}", "--dry-run", "--json").stdout
        )["runs"][0]
        for how in ("threads", "stacked")
    }
    assert all(plan["execution"] == how and plan["device"] == "cpu" for how, plan in plans.items())
    assert 0 < plans["threads"]["step_mb"] < plans["stacked"]["step_mb"] < 10
    for plan in plans.values():
        parts = ("process_mb", "data_mb", "models_mb", "step_mb")
        assert plan["memory_mb"] == pytest.approx(sum(plan[part] for part in parts))


def test_out_of_memory_errors_distinguish_gpu_and_host():
    from fedmosaic_cli.cli.app import describe_error

    full = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB")
    line, code = describe_error(full, [])
    assert code == 4
    assert line.startswith(
        "not enough memory (GPU): see --dry-run, use --set train.image_device=host, --execution threads"
    )
    line, code = describe_error(MemoryError(), [])
    assert (line, code) == ("not enough memory (model and data): see --dry-run, use a smaller model", 4)
