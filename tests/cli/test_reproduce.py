"""`fedmosaic reproduce`, with runs of two rounds on embedded data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmosaic_cli.cli.app import app
from tests.conftest import fedmosaic
from tests.waiting import read_outputs, wait_until

# Five clients and one layer: most of the time is start-up.
SMALL = ("--seeds", "0", "--data-dir", "nothing-here", "--set", "train.local_steps=1")
TINY = ("misleading", "--methods", "fedct", *SMALL, "--set", "train.rounds=2")
LONG = (
    *("misleading", "--methods", "fedct", *SMALL, "--set", "train.rounds=100000"),
    *("--set", "train.checkpoint_every=5", "--set", "train.execution=threads", "--no-figures"),
)


def exit_code_of(*arguments):
    """Call `reproduce` in this process."""
    with pytest.raises(SystemExit) as exit_info:
        app(["reproduce", *arguments])
    return exit_info.value.code


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory):
    """A finished study and the result of its command."""
    folder = tmp_path_factory.mktemp("study")
    return folder, fedmosaic("reproduce", *TINY, cwd=folder)


def test_reproduce_writes_table_figures_and_page(finished_study):
    folder, done = finished_study
    assert done.returncode == 0, done.stderr
    assert "skipped: misleading-cifar10-quick" in done.stderr
    assert "0 of 2 runs are done, 2 remain: their duration is unknown until runs of the same settings" in done.stderr
    assert "[2/2] quickstart-misleading-changed-" in done.stderr
    assert "Local training" in done.stdout
    assert "Settings that differ from the study: train.local_steps=1, train.rounds=2." in done.stdout
    assert "Left out: misleading-cifar10-quick" in done.stdout
    results = folder / "results" / "misleading-quick"
    assert {"table.md", "table.tex", "table.csv", "index.html", "figures"} <= {
        entry.name for entry in results.iterdir()
    }
    assert (results / "table.md").read_text() == done.stdout.rstrip("\n") + "\n"


def test_finished_runs_are_not_repeated(finished_study):
    folder, _ = finished_study
    runs = sorted((folder / "runs").rglob("summary.json"))
    before = [path.stat().st_mtime_ns for path in runs]
    again = fedmosaic("reproduce", *TINY, "--no-figures", "--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    content = json.loads(again.stdout)
    assert [run["state"] for run in content["runs"]] == ["done", "done"]
    assert all(0 <= run["accuracy"] <= 1 for run in content["runs"])
    assert content["failures"] == []
    assert [path.stat().st_mtime_ns for path in runs] == before


def test_report_names_the_commands_of_missing_runs(finished_study, monkeypatch, capsys):
    """The command contains the name of the setting, its preset and the overrides."""
    folder, _ = finished_study
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        app(["report", "--quiet"])
    (command,) = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("    fedmosaic")]
    name = next((folder / "runs").iterdir()).name
    assert command.startswith(f"fedmosaic baseline centralized --preset quickstart-label-skew --name {name} ")
    assert "--set data.scheme=iid" in command


def test_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_code_of("compact", "--dry-run", "--data-dir", "nothing-here", "--jobs", "3") == 0
    captured = capsys.readouterr()
    assert "fedmosaic frequency  3 to do" in captured.out
    assert "0 of 30 runs are done, 30 remain: their duration is unknown until runs of the same settings" in captured.out
    assert captured.err.startswith("skipped: hybrid-office10-quick, data set 'office10' not found (nothing-here): put ")
    assert exit_code_of("compact", "--dry-run", "--data-dir", "nothing-here", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["runs"]) == 30
    assert content["runs"][0]["command"] == (
        "fedmosaic baseline local --preset quickstart-hybrid --seeds 0 --data-dir nothing-here"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_all_studies_are_listed(capsys):
    assert exit_code_of() == 0
    assert "label-skew     table on label skew" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("label-skwe",), "did you mean 'label-skew'?"),
        (("compact", "--methods", "fedagv"), "did you mean 'fedavg'?"),
        (("compact", "--seeds", "0,0"), "write distinct whole numbers"),
        (("compact", "--set", "train.ruonds=2"), "did you mean 'train.rounds'?"),
        (("feature-shift", "--scale", "paper", "--data-dir", "nothing-here"), "no run is possible"),
    ],
)
def test_invalid_requests_are_refused(arguments, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(*arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert line in error
    assert list(tmp_path.iterdir()) == []


def test_missing_domain_of_a_data_set_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for domain in ("amazon", "webcam"):
        (tmp_path / "data" / "office10" / domain).mkdir(parents=True)
    assert exit_code_of("feature-shift", "--dry-run") == 0
    assert "skipped: feature-shift-office10-quick, domain 'dslr' of data set 'office10'" in capsys.readouterr().err


def test_failed_runs_are_listed_with_their_commands(tmp_path):
    done = fedmosaic("reproduce", *TINY, "--no-figures", "--set", "train.lr=1e30", cwd=tmp_path)
    assert done.returncode == 1
    assert "no run is finished: there is nothing to report yet" in done.stderr
    assert done.stderr.count("diverged") >= 2
    assert "  retry: fedmosaic baseline fedct --preset quickstart-label-skew --set data.scheme=iid" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: 2 of 2 jobs failed, the first: quickstart-misleading-changed-"
    )


# Stopping


@contextmanager
def started(folder):
    """Run the study in the background and kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", "reproduce", *LONG],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def checkpointed_rounds(folder):
    """The round of the newest checkpoint of each run."""
    numbers: dict[str, int] = {}
    for path in folder.glob("runs/*/*/seed-0/checkpoints/round-*"):
        run = path.parents[1].parent.name
        numbers[run] = max(numbers.get(run, 0), int(path.name.removeprefix("round-")))
    return numbers


def jobs_in(folder):
    """The processes with this working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="on other systems processes outlive their parents")
def test_the_same_command_continues_after_kill_and_interrupt(tmp_path):
    with started(tmp_path) as killed:
        wait_until(lambda: len(checkpointed_rounds(tmp_path)) == 2, killed)
        killed.kill()
    wait_until(lambda: not jobs_in(tmp_path))
    before = checkpointed_rounds(tmp_path)
    with started(tmp_path) as stopped:
        wait_until(lambda: all(checkpointed_rounds(tmp_path).get(run, 0) > before[run] for run in before), stopped)
        stopped.send_signal(signal.SIGINT)
        _, errors = read_outputs(stopped)
    assert stopped.returncode == 130
    assert errors.splitlines()[-1] == "stopped: run the same command again to continue"
    assert "2 started" not in errors
    assert errors.count("1 started") == 2
    wait_until(lambda: not jobs_in(tmp_path))
    logs = list((tmp_path / "runs").rglob("rounds.jsonl"))
    for log in logs:
        rounds = [json.loads(line)["round"] for line in log.read_text().splitlines()]
        assert rounds == [number for number in range(1, max(rounds) + 1) for _ in range(5)], "every round exactly once"
