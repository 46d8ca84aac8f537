"""A run goes on to what it would have come to in one go; or it says that it does not, before and after."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from fedmosaic_cli.runner import environment
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import read_checksummed_json, remove_path, to_checksummed_json
from fedmosaic_cli.storage.lock import directory_lock
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


real_versions = environment.package_versions
OTHER = {
    "libraries": ("torch was", lambda patch: patch.setattr(environment, "package_versions", other_versions)),
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
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert ACCEPT in refused.stderr
    assert files_of(finished) == before
    assert type_in(*LONGER, ACCEPT).exit_code == 0
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["nonidentical"][0].startswith(f"after round 3: {words}")
    monkeypatch.undo()


def test_a_run_that_was_marked_stays_marked_and_the_report_says_so(finished, type_in):
    faster = (*LONGER, "--set", "train.lr=0.5")
    assert "train.lr was" in type_in(*faster).stderr
    assert type_in(*faster, ACCEPT).exit_code == 0
    further = [word if word != "5" else "6" for word in faster]
    assert type_in(*further).exit_code == 0, "from here on it is the same run"
    summary = json.loads((finished / "summary.json").read_text())
    assert len(summary["nonidentical"]) == 1
    for form, mark in (("--markdown", "†"), ("--latex", "\\textdagger{}"), ("--csv", ACCEPT), ("--json", ACCEPT)):
        assert mark in type_in("report", form).stdout
    assert "†" not in (finished.parents[3] / "tables" / "table.md").read_text(), "the table of before"


@pytest.mark.parametrize("change", ["model.hidden=[5]", "train.optimizer=sgd", "data.alpha=3"])
def test_what_would_be_another_run_is_refused_whatever_one_accepts(finished, type_in, change):
    ending = type_in(*LONGER, ACCEPT, "--set", change)
    assert ending.exit_code == 2
    assert ending.stderr.count("\n") == 1


def test_other_shards_under_the_same_name_are_noticed(finished, type_in, tmp_path):
    shutil.rmtree(tmp_path / "shards")
    assert type_in(*PARTITION, "--seed", "3").exit_code == 0
    ending = type_in(*LONGER)
    assert (ending.exit_code, ending.stderr.count("\n")) == (2, 1)
    assert "partition_seed was 0 and is now 3" in ending.stderr


def test_what_auto_chose_may_be_asked_for_by_name(finished, type_in):
    without = tuple(word for word in LONGER if word != "train.execution=threads")
    place = without.index("--set", without.index("methods.fedmosaic.warmup_rounds=1"))
    bare = without[:place] + without[place + 1 :]
    assert "the execution was threads and is now stacked" in type_in(*bare, "--execution", "stacked").stderr
    assert type_in(*bare, "--execution", "threads").exit_code == 0


def test_no_room_is_known_before_anything_is_written(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 3000)
    ending = type_in(*TRAIN)
    assert (ending.exit_code, ending.stderr.count("\n")) == (4, 1)
    assert "MB of disk space are needed" in ending.stderr
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    room = iter([10**9, 10**9, 10**9])
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: next(room, 0))
    ending = type_in(*TRAIN)
    assert ending.exit_code == 4
    assert "continue with --resume" in ending.stderr.splitlines()[-1]
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 10**9)
    again = type_in(*TRAIN)
    assert "resumed after round 2" in again.stderr
    for arguments in (("evaluate", str(RUN)), REPORT):
        assert type_in(*arguments).exit_code == 0
    assert results(tmp_path) == results(undisturbed)


def test_a_directory_in_use_names_its_user_and_is_not_touched(finished, type_in):
    with directory_lock(finished):
        before = files_of(finished)
        ending = type_in(*LONGER)
        assert (ending.exit_code, ending.stderr.count("\n")) == (3, 1)
        assert f"process {os.getpid()} on" in ending.stderr
        assert files_of(finished) == before


def test_nobody_is_refused_for_a_lock_that_was_left_behind(finished, type_in):
    (finished / ".lock").write_text('{"pid": 1, "host": "gone", "since": "long ago"}')
    assert type_in(*LONGER).exit_code == 0
    assert not (finished / ".lock").exists()


def start_run(folder, *more: str, once="checkpoints/round-00002"):
    """A run with many rounds, once it is under way."""
    arguments = [*TRAIN, "--rounds", "100000", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *arguments], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    while not (folder / RUN / once).exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


ENDLESS = ("--set", "train.local_steps=1000000")


@pytest.mark.parametrize(("signals", "grace", "words"), [(1, "0.5", "did not end within 0.5 s"), (2, "30", "at once")])
def test_a_round_that_does_not_end_is_not_waited_for(undisturbed, tmp_path, signals, grace, words):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    process = start_run(tmp_path, *ENDLESS, "--stop-timeout", grace, once="rounds.jsonl")
    for _ in range(signals):
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert words in errors


def test_a_reader_who_sleeps_does_not_keep_a_run_from_stopping(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    arguments = [sys.executable, "-m", "fedmosaic_cli", *TRAIN, *ENDLESS, "-q", "--stop-timeout", "0.5"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stderr=writer)
    while not (tmp_path / RUN / "rounds.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--stop-timeout", "0"), "the round did not finish within 0 s and is discarded"),
        ((), "stopped after round"),
    ],
)
def test_told_to_stop_a_run_ends_in_time(undisturbed, tmp_path, more, words):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    process = start_run(tmp_path, *more)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert words in errors
    assert "continue with --resume" in errors
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
        content = {**read_checksummed_json(manifest), "schema": schema}
        content["environment"]["versions"]["fedmosaic"] = "12.0"
        manifest.write_bytes(to_checksummed_json(content))
    before = files_of(finished)
    ending = type_in(*LONGER)
    assert (ending.exit_code, ending.stderr.count("\n")) == (2, 1)
    assert f"checkpoint of schema {schema}" in ending.stderr
    assert "fedmosaic 12.0" in ending.stderr
    assert files_of(finished) == before


def test_a_bug_leaves_its_traceback_in_the_run_directory(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")

    def buggy(*arguments):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("fedmosaic_cli.runner.run.build_summary", buggy)
    ending = type_in(*TRAIN)
    assert ending.exit_code == 1
    assert ending.stderr.splitlines()[-1].startswith("error: ZeroDivisionError: a bug (a bug in fedmosaic)")
    assert "Traceback" not in ending.stderr
    assert "in buggy" in (tmp_path / RUN / "crash.txt").read_text()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert type_in(*TRAIN).exit_code == 0
    assert not (tmp_path / RUN / "crash.txt").exists()


def test_shards_that_do_not_fit_are_not_begun(type_in, tmp_path, monkeypatch):
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 10_000)
    ending = type_in(*PARTITION, "--export")
    assert (ending.exit_code, ending.stderr.count("\n")) == (4, 1)
    assert list(tmp_path.iterdir()) == []


def test_readers_do_not_care_who_writes(finished, type_in):
    with directory_lock(finished):
        assert type_in("evaluate", str(RUN)).exit_code == 0
        assert type_in("report").exit_code == 0


def test_a_failure_before_the_first_round_leaves_nothing_in_the_way(type_in, undisturbed, tmp_path, monkeypatch):
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")

    def greedy(*arguments, **more):
        raise MemoryError

    monkeypatch.setattr("fedmosaic_cli.runner.run.build_federation", greedy)
    assert type_in(*TRAIN).exit_code == 4
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert type_in(*(word for word in TRAIN if word != "--resume")).exit_code == 0


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_where_checkpoints_are_gone_nothing_is_begun_again_unasked(finished, type_in, state):
    shutil.rmtree(finished / "checkpoints")
    if state == "finished":
        assert type_in(*TRAIN).exit_code == 0, "there is nothing to do"
    else:
        for name in ("summary.json", "SHA256SUMS"):
            (finished / name).unlink()
    before = files_of(finished)
    ending = type_in(*LONGER)
    assert (ending.exit_code, ending.stderr.count("\n")) == (3, 1)
    assert "its checkpoints are gone" in ending.stderr
    assert files_of(finished) == before


def test_the_first_of_many_runs_is_not_begun_if_the_last_cannot_be(finished, type_in):
    both = ("baseline", "local", "fedavg", *TRAIN[1 : TRAIN.index("methods.fedmosaic.warmup_rounds=1") - 1])
    assert type_in(*both).exit_code == 0
    other = finished.parents[1] / "fedavg" / "seed-0"
    (other / "summary.json").unlink()
    for manifest in other.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    longer = [word if word != "3" else "5" for word in both]
    local = files_of(finished.parents[1] / "local")
    ending = type_in(*longer)
    assert ending.exit_code == 3
    assert "fedavg" in ending.stderr
    assert files_of(finished.parents[1] / "local") == local


SENSELESS = {
    "no files": lambda manifest: manifest.pop("files"),
    "config": lambda manifest: manifest.update(config=[1]),
    "environment": lambda manifest: manifest.update(environment=[]),
    "schema": lambda manifest: manifest.update(schema="2"),
    "names": lambda manifest: manifest["files"].update({"../../x": {"size": 1, "sha256": ""}}),
    "round": lambda manifest: manifest.update(round=True),
}


@pytest.mark.parametrize("change", SENSELESS.values(), ids=SENSELESS)
def test_a_checkpoint_that_makes_no_sense_is_passed_over(finished, type_in, change):
    path = finished / "checkpoints" / "round-00003" / "manifest.json"
    manifest = read_checksummed_json(path)
    change(manifest)
    path.write_bytes(to_checksummed_json(manifest))
    ending = type_in(*LONGER)
    assert ending.exit_code == 0, ending.stderr
    assert "using the checkpoint of round 2" in ending.stderr


ODD_PLACES = ["config.yaml", "env.json", "rounds.jsonl", "SHA256SUMS", "summary.json", ".lock", "models"]


@pytest.mark.parametrize("name", [*ODD_PLACES, "checkpoints/round-00003/manifest.json", "checkpoints"])
@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_neither_read_nor_replaced(finished, type_in, name, kind):
    """A pipe could be read for ever; and nothing is taken away before it is clear that the run can go on."""
    remove_path(finished / name)
    (os.mkfifo if kind == "pipe" or name in ("models", "checkpoints") else os.mkdir)(finished / name)
    before = files_of(finished)
    for arguments in (("report",), ("evaluate", str(RUN))):
        assert type_in(*arguments).exit_code in (0, 2)
    (finished / "evaluation.json").write_bytes(before[finished / "evaluation.json"])
    ending = type_in(*LONGER)
    if ending.exit_code == 0:
        assert "manifest" in name, ending.stderr
        return
    assert (ending.exit_code, ending.stderr.count("\n")) == (2, 1)
    assert str(RUN / name) in ending.stderr
    assert files_of(finished) == before


@pytest.mark.parametrize("content", ["", "x", "0" * 64 + "  ../../x\n"])
def test_digests_that_are_none_are_named(finished, type_in, content):
    (finished / "SHA256SUMS").write_text(content)
    assert "SHA256SUMS" in type_in("evaluate", str(RUN)).stderr
    assert "SHA256SUMS" in type_in("report").stderr
    assert "SHA256SUMS" in type_in(*TRAIN).stderr
    assert type_in("report").stderr == ""


def test_a_finished_run_has_no_other_learning_rate(finished, type_in):
    ending = type_in(*TRAIN, "--set", "train.lr=0.5", ACCEPT)
    assert ending.exit_code == 2
    assert "the run is finished, under another configuration: train.lr" in ending.stderr


def test_a_run_without_its_configuration_is_still_one(finished, type_in):
    (finished / "config.yaml").unlink()
    assert "mend the run with --resume" in type_in("evaluate", str(RUN)).stderr
    assert "FedMosaic" in type_in("report").stdout
    assert type_in(*TRAIN).exit_code == 0
    assert type_in("evaluate", str(RUN)).exit_code == 0


@pytest.mark.parametrize("grace", ["-1", "nan", "inf", "1e12"])
def test_a_grace_that_no_clock_knows(type_in, tmp_path, grace):
    ending = type_in(*TRAIN, "--stop-timeout", grace)
    assert (ending.exit_code, ending.stderr.count("\n")) == (2, 1)
    assert "--stop-timeout" in ending.stderr


def test_a_client_may_be_left_out_of_a_run_that_it_had_stopped(type_in, tmp_path):
    wild = ("baseline", "local", "--preset", "quickstart", "--rounds", "2", "--set", "train.optimizer=sgd", "-q")
    wild = (*wild, "--set", "clients.0.lr=1e20", "--set", "train.local_steps=1")
    assert type_in(*wild).exit_code == 1
    assert type_in(*wild, "--resume", "--on-nan", "skip").exit_code == 0
    summary = json.loads((tmp_path / "runs" / "quickstart" / "local" / "seed-0" / "summary.json").read_text())
    assert (summary["nonidentical"], summary["left_out"]) == ([], {"0": 2})
