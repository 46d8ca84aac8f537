"""`fedmosaic reproduce`, with runs of two rounds on embedded data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmosaic_cli.cli.app import app
from tests.conftest import fedmosaic

# Five clients, a network of one layer: most of the time is start-up.
SMALL = ("--seeds", "0", "--data-dir", "nothing-here", "--set", "train.local_steps=1")
TINY = ("misleading", "--methods", "fedct", *SMALL, "--set", "train.rounds=2")
LONG = (
    *("misleading", "--methods", "fedct", *SMALL, "--set", "train.rounds=1500"),
    *("--set", "train.checkpoint_every=5", "--set", "train.execution=threads", "--no-figures"),
)


def asked(*arguments):
    """The exit code of a request, made in this process."""
    with pytest.raises(SystemExit) as leaving:
        app(["reproduce", *arguments])
    return leaving.value.code


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A study that was made, and what was said."""
    folder = tmp_path_factory.mktemp("tiny")
    return folder, fedmosaic("reproduce", *TINY, cwd=folder)


def test_it_ends_in_the_table_the_figures_and_a_page(tiny):
    folder, done = tiny
    assert done.returncode == 0, done.stderr
    assert "left out: misleading-cifar10-quick" in done.stderr
    assert "0 of 2 runs are done, 2 remain: about " in done.stderr
    assert "(a guess where no run here tells yet)" in done.stderr
    assert "[2/2] quickstart-misleading-changed-" in done.stderr
    assert "Local training" in done.stdout
    assert "Not the study's own settings: train.local_steps=1, train.rounds=2." in done.stdout
    assert "Left out: misleading-cifar10-quick" in done.stdout
    results = folder / "results" / "misleading-quick"
    assert {"table.md", "table.tex", "table.csv", "index.html", "figures"} <= {
        entry.name for entry in results.iterdir()
    }
    assert (results / "table.md").read_text() == done.stdout.rstrip("\n") + "\n"


def test_what_is_finished_is_not_made_again(tiny):
    folder, _ = tiny
    runs = sorted((folder / "runs").rglob("summary.json"))
    before = [path.stat().st_mtime_ns for path in runs]
    again = fedmosaic("reproduce", *TINY, "--no-figures", "--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    content = json.loads(again.stdout)
    assert [run["state"] for run in content["runs"]] == ["done", "done"]
    assert all(0 <= run["accuracy"] <= 1 for run in content["runs"])
    assert content["failures"] == []
    assert [path.stat().st_mtime_ns for path in runs] == before


def test_the_commands_of_what_is_missing_go_where_the_study_looks(tiny, monkeypatch, capsys):
    """The report of a named setting names it, and its preset with what was changed."""
    folder, _ = tiny
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        app(["report", "--quiet"])
    (command,) = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("    fedmosaic")]
    name = next((folder / "runs").iterdir()).name
    assert command.startswith(f"fedmosaic baseline centralized --preset quickstart --name {name} ")
    assert "--set data.scheme=iid" in command


def test_a_dry_run_makes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert asked("compact", "--dry-run", "--data-dir", "nothing-here", "--jobs", "3") == 0
    said = capsys.readouterr()
    assert "fedmosaic frequency  3 to do" in said.out
    assert "0 of 30 runs are done, 30 remain: about " in said.out
    assert " with 3 jobs (a guess where no run here tells yet)" in said.out
    assert said.err.startswith("left out: hybrid-office10-quick, data set 'office10' is not here (nothing-here): put ")
    assert asked("compact", "--dry-run", "--data-dir", "nothing-here", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["runs"]) == 30
    assert content["runs"][0]["command"] == (
        "fedmosaic baseline local --preset quickstart-hybrid --seeds 0 --data-dir nothing-here"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_all_are_listed(capsys):
    assert asked() == 0
    assert "label-skew     the table on label skew" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("label-skwe",), "did you mean 'label-skew'?"),
        (("compact", "--methods", "fedagv"), "did you mean 'fedavg'?"),
        (("compact", "--seeds", "0,0"), "write different whole numbers"),
        (("compact", "--set", "train.ruonds=2"), "did you mean 'train.rounds'?"),
        (("feature-shift", "--scale", "paper", "--data-dir", "nothing-here"), "nothing can be run here"),
    ],
)
def test_wrong_requests_are_refused(arguments, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert asked(*arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert line in error
    assert list(tmp_path.iterdir()) == []


def test_data_that_is_there_in_part_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for domain in ("amazon", "webcam"):
        (tmp_path / "data" / "office10" / domain).mkdir(parents=True)
    assert asked("feature-shift", "--dry-run") == 0
    assert "left out: feature-shift-office10-quick, domain 'dslr' of data set 'office10'" in capsys.readouterr().err


def test_runs_that_fail_are_named_with_their_commands(tmp_path):
    done = fedmosaic("reproduce", *TINY, "--no-figures", "--set", "train.lr=1e30", cwd=tmp_path)
    assert done.returncode == 1
    assert "no run is finished: there is nothing to report yet" in done.stderr
    assert done.stderr.count("diverged") >= 2
    assert "  again: fedmosaic baseline fedct --preset quickstart --set data.scheme=iid" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: 2 of 2 jobs failed, the first: quickstart-misleading-changed-"
    )


# Stopping


@contextmanager
def started(folder):
    """The study in the background; nothing of it is left in the end."""
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


def rounds_kept(folder):
    """How far the newest checkpoint of each run is."""
    numbers: dict[str, int] = {}
    for path in folder.glob("runs/*/*/seed-0/checkpoints/round-*"):
        run = path.parents[1].parent.name
        numbers[run] = max(numbers.get(run, 0), int(path.name.removeprefix("round-")))
    return numbers


def wait_for(what, patience=60.0):
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def jobs_in(folder):
    """Processes that work in a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere processes outlive those who started them")
def test_killed_or_stopped_the_same_command_goes_on(tmp_path):
    with started(tmp_path) as killed:
        wait_for(lambda: len(rounds_kept(tmp_path)) == 2)
        killed.kill()
    wait_for(lambda: not jobs_in(tmp_path), patience=5.0)
    kept = rounds_kept(tmp_path)
    with started(tmp_path) as stopped:
        wait_for(lambda: all(rounds_kept(tmp_path).get(run, 0) > kept[run] for run in kept))
        stopped.send_signal(signal.SIGINT)
        _, errors = stopped.communicate(timeout=45)
    assert stopped.returncode == 130
    assert errors.splitlines()[-1] == "stopped: the same command goes on from there"
    assert "2 begun" not in errors
    assert errors.count("1 begun") == 2
    assert jobs_in(tmp_path) == []
    logs = list((tmp_path / "runs").rglob("rounds.jsonl"))
    for log in logs:
        rounds = [json.loads(line)["round"] for line in log.read_text().splitlines()]
        assert rounds == [number for number in range(1, max(rounds) + 1) for _ in range(5)], "none twice, none left out"
