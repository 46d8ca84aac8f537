"""A run goes on to what it would have come to in one go; or it says that it does not, before and after."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from fedmosaic_cli import disk
from fedmosaic_cli.experiment import environment
from fedmosaic_cli.files import read_sealed, sealed
from fedmosaic_cli.lock import locked
from tests.faults.conftest import PARTITION, REPORT, RUN, TRAIN, results
from tests.faults.test_damage import LONGER

ACCEPT = "--allow-nonidentical"


@pytest.fixture
def finished(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    return tmp_path / RUN


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def other_versions():
    return {**real_versions(), "torch": "1.0", "typer": "0.1"}


real_versions = environment.versions
OTHER = {
    "libraries": ("torch was", lambda patch: patch.setattr(environment, "versions", other_versions)),
    "instructions": (
        "the CPU's instructions was",
        lambda patch: patch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "ABACUS"),
    ),
    "threads": (
        "the number of threads was 1 and is now 3",
        lambda patch: patch.setattr("torch.get_num_threads", lambda: 3),
    ),
}


@pytest.mark.parametrize(("words", "change"), OTHER.values(), ids=OTHER)
def test_other_circumstances_are_refused_or_marked_for_good(finished, type_in, monkeypatch, words, change):
    before = files_of(finished)
    change(monkeypatch)
    refused = type_in(*LONGER)
    assert refused.code == 2
    assert words in refused.stderr
    assert ACCEPT in refused.stderr
    assert files_of(finished) == before
    assert type_in(*LONGER, ACCEPT).code == 0
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["nonidentical"][0].startswith(f"after round 3: {words}")
    monkeypatch.undo()


def test_a_run_that_was_marked_stays_marked_and_the_report_says_so(finished, type_in):
    faster = (*LONGER, "--set", "train.lr=0.5")
    assert "train.lr was" in type_in(*faster).stderr
    assert type_in(*faster, ACCEPT).code == 0
    further = [word if word != "5" else "6" for word in faster]
    assert type_in(*further).code == 0, "from here on it is the same run"
    summary = json.loads((finished / "summary.json").read_text())
    assert len(summary["nonidentical"]) == 1
    for form, mark in (("--markdown", "†"), ("--latex", "\\textdagger{}"), ("--csv", ACCEPT), ("--json", ACCEPT)):
        assert mark in type_in("report", form).stdout
    assert "†" not in (finished.parents[3] / "tables" / "table.md").read_text(), "the table of before"


@pytest.mark.parametrize("change", ["model.hidden=[5]", "train.optimizer=sgd", "data.alpha=3"])
def test_what_would_be_another_run_is_refused_whatever_one_accepts(finished, type_in, change):
    ending = type_in(*LONGER, ACCEPT, "--set", change)
    assert ending.code == 2
    assert ending.stderr.count("\n") == 1


def test_other_shards_under_the_same_name_are_noticed(finished, type_in, tmp_path):
    shutil.rmtree(tmp_path / "shards")
    assert type_in(*PARTITION, "--seed", "3").code == 0
    ending = type_in(*LONGER)
    assert (ending.code, ending.stderr.count("\n")) == (2, 1)
    assert "partition_seed was 0 and is now 3" in ending.stderr


def test_what_auto_chose_may_be_asked_for_by_name(finished, type_in):
    without = tuple(word for word in LONGER if word != "train.execution=threads")
    place = without.index("--set", without.index("methods.fedmosaic.warmup_rounds=1"))
    bare = without[:place] + without[place + 1 :]
    assert "the execution was threads and is now stacked" in type_in(*bare, "--execution", "stacked").stderr
    assert type_in(*bare, "--execution", "threads").code == 0


def test_no_room_is_known_before_anything_is_written(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    monkeypatch.setattr(disk, "free_bytes", lambda path: 3000)
    ending = type_in(*TRAIN)
    assert (ending.code, ending.stderr.count("\n")) == (4, 1)
    assert "MB of room are needed" in ending.stderr
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    room = iter([10**9, 10**9, 10**9])
    monkeypatch.setattr(disk, "free_bytes", lambda path: next(room, 0))
    ending = type_in(*TRAIN)
    assert ending.code == 4
    assert "go on with --resume" in ending.stderr.splitlines()[-1]
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**9)
    again = type_in(*TRAIN)
    assert "resumed after round 2" in again.stderr
    for arguments in (("evaluate", str(RUN)), REPORT):
        assert type_in(*arguments).code == 0
    assert results(tmp_path) == results(undisturbed)


def test_a_directory_in_use_names_its_user_and_is_not_touched(finished, type_in):
    with locked(finished):
        before = files_of(finished)
        ending = type_in(*LONGER)
        assert (ending.code, ending.stderr.count("\n")) == (3, 1)
        assert f"process {os.getpid()} on" in ending.stderr
        assert files_of(finished) == before


def test_nobody_is_refused_for_a_lock_that_was_left_behind(finished, type_in):
    (finished / ".lock").write_text('{"pid": 1, "host": "gone", "since": "long ago"}')
    assert type_in(*LONGER).code == 0
    assert not (finished / ".lock").exists()


def start_long_run(folder, *more: str):
    """A run with many rounds, once it is under way."""
    arguments = [*TRAIN, "--rounds", "100000", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *arguments], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    while not (folder / RUN / "checkpoints" / "round-00002").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--grace", "0"), "the round did not end within 0 s and is dropped"),
        ((), "stopped after round"),
    ],
)
def test_told_to_stop_a_run_ends_in_time(undisturbed, tmp_path, more, words):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    process = start_long_run(tmp_path, *more)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert words in errors
    assert "go on with --resume" in errors
    played = json.loads((tmp_path / RUN / "rounds.jsonl").read_text().splitlines()[-1])["round"]
    assert (tmp_path / RUN / "checkpoints" / f"round-{played:05d}").is_dir() or "dropped" in errors


def test_a_process_that_outlives_its_terminal_does(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "fedmosaic_cli", *TRAIN, "-q"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(1)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("schema", [1, 99])
def test_a_checkpoint_of_another_version_names_the_version(finished, type_in, schema):
    for manifest in finished.glob("checkpoints/*/manifest.json"):
        content = {**read_sealed(manifest), "schema": schema}
        content["environment"]["versions"]["fedmosaic"] = "12.0"
        manifest.write_bytes(sealed(content))
    before = files_of(finished)
    ending = type_in(*LONGER)
    assert (ending.code, ending.stderr.count("\n")) == (2, 1)
    assert f"checkpoint of schema {schema}" in ending.stderr
    assert "fedmosaic 12.0" in ending.stderr
    assert files_of(finished) == before


def test_a_bug_leaves_its_traceback_in_the_run_directory(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")

    def buggy(*arguments):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("fedmosaic_cli.experiment.run.summarise", buggy)
    ending = type_in(*TRAIN)
    assert ending.code == 1
    assert ending.stderr.splitlines()[-1].startswith("error: ZeroDivisionError: a bug (a bug in fedmosaic)")
    assert "Traceback" not in ending.stderr
    assert "in buggy" in (tmp_path / RUN / "crash.txt").read_text()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert type_in(*TRAIN).code == 0
    assert not (tmp_path / RUN / "crash.txt").exists()


def test_shards_that_do_not_fit_are_not_begun(type_in, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10_000)
    ending = type_in(*PARTITION, "--export")
    assert (ending.code, ending.stderr.count("\n")) == (4, 1)
    assert list(tmp_path.iterdir()) == []


def test_readers_do_not_care_who_writes(finished, type_in):
    with locked(finished):
        assert type_in("evaluate", str(RUN)).code == 0
        assert type_in("report").code == 0
