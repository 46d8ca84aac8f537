"""A resumed run gives the result of an uninterrupted run, or reports before and after that it does not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from fedmosaic_cli.runner import environment
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import read_checksummed_json, remove_path, to_checksummed_json
from fedmosaic_cli.storage.lock import directory_lock
from tests.faults.conftest import PARTITION, REPORT, RUN, TRAIN, results
from tests.faults.test_damage import LONGER
from tests.waiting import HANG_SECONDS, read_outputs, wait_until

ACCEPT = "--allow-nonidentical"


@pytest.fixture
def finished(reference_run, tmp_path):
    shutil.copytree(reference_run, tmp_path, dirs_exist_ok=True)
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
def test_resume_in_another_environment_is_refused_or_recorded(finished, run_command, monkeypatch, words, change):
    before = files_of(finished)
    change(monkeypatch)
    refused = run_command(*LONGER)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert ACCEPT in refused.stderr
    assert files_of(finished) == before
    assert run_command(*LONGER, ACCEPT).exit_code == 0
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["nonidentical"][0].startswith(f"after round 3: {words}")
    monkeypatch.undo()


def test_nonidentical_resume_is_recorded_and_reported(finished, run_command):
    faster = (*LONGER, "--set", "train.lr=0.5")
    assert "train.lr was" in run_command(*faster).stderr
    assert run_command(*faster, ACCEPT).exit_code == 0
    further = [word if word != "5" else "6" for word in faster]
    assert run_command(*further).exit_code == 0, "from here on it is the same run"
    summary = json.loads((finished / "summary.json").read_text())
    assert len(summary["nonidentical"]) == 1
    for form, mark in (("--markdown", "†"), ("--latex", "\\textdagger{}"), ("--csv", ACCEPT), ("--json", ACCEPT)):
        assert mark in run_command("report", form).stdout
    assert "†" not in (finished.parents[3] / "tables" / "table.md").read_text(), "the table of before"


@pytest.mark.parametrize("change", ["model.hidden=[5]", "train.optimizer=sgd", "data.alpha=3"])
def test_resume_refuses_another_model_or_optimizer(finished, run_command, change):
    result = run_command(*LONGER, ACCEPT, "--set", change)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_resume_refuses_other_shards_of_the_same_name(finished, run_command, tmp_path):
    shutil.rmtree(tmp_path / "shards")
    assert run_command(*PARTITION, "--seed", "3").exit_code == 0
    result = run_command(*LONGER)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "partition_seed was 0 and is now 3" in result.stderr


def test_resume_accepts_the_execution_that_auto_chose(finished, run_command):
    without = tuple(word for word in LONGER if word != "train.execution=threads")
    place = without.index("--set", without.index("methods.fedmosaic.warmup_rounds=1"))
    bare = without[:place] + without[place + 1 :]
    assert "the execution was threads and is now stacked" in run_command(*bare, "--execution", "stacked").stderr
    assert run_command(*bare, "--execution", "threads").exit_code == 0


def test_full_disk_is_reported_before_anything_is_written(run_command, reference_run, tmp_path, monkeypatch):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 3000)
    result = run_command(*TRAIN)
    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)
    assert "MB of disk space are needed" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_disk_that_fills_up_keeps_the_last_checkpoint(run_command, reference_run, tmp_path, monkeypatch):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    room = iter([10**9, 10**9, 10**9])
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: next(room, 0))
    result = run_command(*TRAIN)
    assert result.exit_code == 4
    assert "repeat the command" in result.stderr.splitlines()[-1]
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 10**9)
    again = run_command(*TRAIN)
    assert "resumed after round 2" in again.stderr
    for arguments in (("evaluate", str(RUN)), REPORT):
        assert run_command(*arguments).exit_code == 0
    assert results(tmp_path) == results(reference_run)


def test_locked_directory_names_its_owner_and_is_unchanged(finished, run_command):
    with directory_lock(finished):
        before = files_of(finished)
        result = run_command(*LONGER)
        assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
        assert f"process {os.getpid()} on" in result.stderr
        assert files_of(finished) == before


def test_stale_lock_file_is_ignored(finished, run_command):
    (finished / ".lock").write_text('{"pid": 1, "host": "gone", "since": "long ago"}')
    assert run_command(*LONGER).exit_code == 0
    assert not (finished / ".lock").exists()


def newest_checkpoint(folder):
    """Return the round of the newest checkpoint of the run, 0 without checkpoints."""
    paths = (folder / RUN / "checkpoints").glob("round-*")
    return max((int(path.name.removeprefix("round-")) for path in paths), default=0)


def logged_rounds(folder):
    """Return the round of each line of the log, which has a line per client and round."""
    return [json.loads(line)["round"] for line in (folder / RUN / "rounds.jsonl").read_text().splitlines()]


def start_run(folder, *more: str, saved_round=2):
    """Start or resume a run with many rounds and wait until it has saved a round."""
    arguments = [*TRAIN, "--rounds", "100000", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *arguments], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    log = folder / RUN / "rounds.jsonl"
    wait_until(lambda: log.exists() and newest_checkpoint(folder) >= saved_round, process)
    return process


ENDLESS = ("--set", "train.local_steps=1000000")
NO_STOP_TIMEOUT = ("--stop-timeout", "86400")


@pytest.mark.parametrize(
    ("signals", "stop_timeout", "words"),
    [(1, ("--stop-timeout", "0.5"), "did not finish within 0.5 s"), (2, NO_STOP_TIMEOUT, "stopped immediately")],
)
def test_endless_round_is_aborted(reference_run, tmp_path, signals, stop_timeout, words):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    process = start_run(tmp_path, *ENDLESS, *stop_timeout, saved_round=0)
    process.send_signal(signal.SIGINT)
    if signals == 2:  # a second signal that arrives before the first is handled would be merged with it
        assert any("a second signal stops at once" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
    _, errors = read_outputs(process)
    assert process.returncode == 130
    assert words in errors


def test_blocked_stderr_does_not_prevent_stopping(reference_run, tmp_path):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    arguments = [sys.executable, "-m", "fedmosaic_cli", *TRAIN, *ENDLESS, "-q", "--stop-timeout", "0.5"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stderr=writer)
    wait_until((tmp_path / RUN / "rounds.jsonl").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_SECONDS) == 143
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("more", "words", "unsaved_rounds"),
    [
        # The process ends immediately, so its last round may be logged without a checkpoint.
        (("--stop-timeout", "0"), "the round did not finish within 0 s and is discarded", {0, 1}),
        (NO_STOP_TIMEOUT, "stopped after round", {0}),
    ],
)
def test_signal_stops_a_run_that_can_be_resumed(reference_run, tmp_path, more, words, unsaved_rounds):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    process = start_run(tmp_path, *more)
    process.send_signal(signal.SIGHUP)
    _, errors = read_outputs(process)
    assert process.returncode == 143
    assert words in errors
    assert "repeat the command to continue" in errors
    saved = newest_checkpoint(tmp_path)
    assert logged_rounds(tmp_path)[-1] - saved in unsaved_rounds
    resumed = start_run(tmp_path, *NO_STOP_TIMEOUT, saved_round=saved + 1)
    resumed.send_signal(signal.SIGHUP)
    _, errors = read_outputs(resumed)
    assert f"resumed after round {saved}" in errors
    assert logged_rounds(tmp_path) == [number for number in range(1, newest_checkpoint(tmp_path) + 1) for _ in range(3)]


def test_nohup_run_survives_sighup(reference_run, tmp_path):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "fedmosaic_cli", *TRAIN, "-q", "--rounds", "100000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: newest_checkpoint(tmp_path) >= 1, process)
    process.send_signal(signal.SIGHUP)
    later = newest_checkpoint(tmp_path) + 3
    wait_until(lambda: newest_checkpoint(tmp_path) >= later, process)
    process.kill()
    process.wait(HANG_SECONDS)


@pytest.mark.parametrize("schema", [1, 99])
def test_checkpoint_of_another_version_names_the_version(finished, run_command, schema):
    for manifest in finished.glob("checkpoints/*/manifest.json"):
        content = {**read_checksummed_json(manifest), "schema": schema}
        content["environment"]["versions"]["fedmosaic"] = "12.0"
        manifest.write_bytes(to_checksummed_json(content))
    before = files_of(finished)
    result = run_command(*LONGER)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"checkpoint of schema {schema}" in result.stderr
    assert "fedmosaic 12.0" in result.stderr
    assert files_of(finished) == before


def test_bug_writes_its_traceback_to_the_run_directory(run_command, reference_run, tmp_path, monkeypatch):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")

    def buggy(*arguments):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("fedmosaic_cli.runner.experiment.build_summary", buggy)
    result = run_command(*TRAIN)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ZeroDivisionError: a bug (a bug in fedmosaic)")
    assert "Traceback" not in result.stderr
    assert "in buggy" in (tmp_path / RUN / "crash.txt").read_text()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run_command(*TRAIN).exit_code == 0
    assert not (tmp_path / RUN / "crash.txt").exists()


def test_partition_checks_disk_space_first(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 10_000)
    result = run_command(*PARTITION, "--export")
    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)
    assert list(tmp_path.iterdir()) == []


def test_locked_run_can_be_read(finished, run_command):
    with directory_lock(finished):
        assert run_command("evaluate", str(RUN)).exit_code == 0
        assert run_command("report").exit_code == 0


def test_failure_before_the_first_round_does_not_block_a_new_run(run_command, reference_run, tmp_path, monkeypatch):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")

    def greedy(*arguments, **more):
        raise MemoryError

    monkeypatch.setattr("fedmosaic_cli.runner.experiment.build_federation", greedy)
    assert run_command(*TRAIN).exit_code == 4
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run_command(*(word for word in TRAIN if word != "--resume")).exit_code == 0


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_resume_without_checkpoints_is_refused(finished, run_command, state):
    shutil.rmtree(finished / "checkpoints")
    if state == "finished":
        assert run_command(*TRAIN).exit_code == 0, "there is nothing to do"
    else:
        for name in ("summary.json", "SHA256SUMS"):
            (finished / name).unlink()
    before = files_of(finished)
    result = run_command(*LONGER)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "its checkpoints are missing" in result.stderr
    assert files_of(finished) == before


def test_all_runs_are_checked_before_the_first_starts(finished, run_command):
    both = ("baseline", "local", "fedavg", *TRAIN[1 : TRAIN.index("methods.fedmosaic.warmup_rounds=1") - 1])
    both += ("--name", "shards")
    assert run_command(*both).exit_code == 0
    other = finished.parents[1] / "fedavg" / "seed-0"
    (other / "summary.json").unlink()
    for manifest in other.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    longer = [word if word != "3" else "5" for word in both]
    local = files_of(finished.parents[1] / "local")
    result = run_command(*longer)
    assert result.exit_code == 3
    assert "fedavg" in result.stderr
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
def test_invalid_checkpoint_is_skipped(finished, run_command, change):
    path = finished / "checkpoints" / "round-00003" / "manifest.json"
    manifest = read_checksummed_json(path)
    change(manifest)
    path.write_bytes(to_checksummed_json(manifest))
    result = run_command(*LONGER)
    assert result.exit_code == 0, result.stderr
    assert "using the checkpoint of round 2" in result.stderr


ODD_PLACES = ["config.yaml", "env.json", "rounds.jsonl", "SHA256SUMS", "summary.json", ".lock", "models"]


@pytest.mark.parametrize("name", [*ODD_PLACES, "checkpoints/round-00003/manifest.json", "checkpoints"])
@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_pipes_and_directories_are_neither_read_nor_replaced(finished, run_command, name, kind):
    """Reading a pipe might never end, and nothing is removed before it is clear that the run can be resumed."""
    remove_path(finished / name)
    (os.mkfifo if kind == "pipe" or name in ("models", "checkpoints") else os.mkdir)(finished / name)
    before = files_of(finished)
    for arguments in (("report",), ("evaluate", str(RUN))):
        assert run_command(*arguments).exit_code in (0, 2)
    (finished / "evaluation.json").write_bytes(before[finished / "evaluation.json"])
    result = run_command(*LONGER)
    if result.exit_code == 0:
        assert "manifest" in name, result.stderr
        return
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert str(RUN / name) in result.stderr
    assert files_of(finished) == before


@pytest.mark.parametrize("content", ["", "x", "0" * 64 + "  ../../x\n"])
def test_damaged_digest_file_is_named(finished, run_command, content):
    (finished / "SHA256SUMS").write_text(content)
    assert "SHA256SUMS" in run_command("evaluate", str(RUN)).stderr
    assert "SHA256SUMS" in run_command("report").stderr
    assert "SHA256SUMS" in run_command(*TRAIN).stderr
    assert run_command("report").stderr == ""


def test_finished_run_refuses_another_learning_rate(finished, run_command):
    result = run_command(*TRAIN, "--set", "train.lr=0.5", ACCEPT)
    assert result.exit_code == 2
    assert "another run is finished here: train.lr" in result.stderr


def test_resume_restores_a_missing_configuration(finished, run_command):
    (finished / "config.yaml").unlink()
    assert "repeat its command to repair the run" in run_command("evaluate", str(RUN)).stderr
    assert "FedMosaic" in run_command("report").stdout
    assert run_command(*TRAIN).exit_code == 0
    assert run_command("evaluate", str(RUN)).exit_code == 0


@pytest.mark.parametrize("grace", ["-1", "nan", "inf", "1e12"])
def test_invalid_stop_timeout_is_refused(run_command, tmp_path, grace):
    result = run_command(*TRAIN, "--stop-timeout", grace)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--stop-timeout" in result.stderr


def test_resume_can_skip_a_diverged_client(run_command, tmp_path):
    wild = ("baseline", "local", "--preset", "quickstart", "--rounds", "2", "--set", "train.optimizer=sgd", "-q")
    wild = (*wild, "--set", "clients.0.lr=1e20", "--set", "train.local_steps=1", "--name", "quickstart")
    assert run_command(*wild).exit_code == 1
    assert run_command(*wild, "--resume", "--on-nan", "skip").exit_code == 0
    summary = json.loads((tmp_path / "runs" / "quickstart" / "local" / "seed-0" / "summary.json").read_text())
    assert (summary["nonidentical"], summary["left_out"]) == ([], {"0": 2})
