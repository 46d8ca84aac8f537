"""kill -9 at any time: the run resumes, loses at most one round and ends in the same bytes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections import Counter

import pytest

from fedmosaic_cli.storage.checkpoints import read_newest_checkpoint
from tests.faults.conftest import RUN, leftovers
from tests.faults.processes import PIPELINE, ROUNDS, TRAIN, pause, require_no_orphans, results, resume, run, start
from tests.waiting import read_outputs, wait_until


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the directory of the finished pipeline and the duration of each command."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    durations = []
    for arguments in PIPELINE:
        began = time.monotonic()
        done = run(arguments, folder)
        assert done.returncode == 0, done.stderr
        durations.append(time.monotonic() - began)
    return folder, durations


def interrupted(folder, rng, uninterrupted, most) -> Counter[str]:
    """Finish the pipeline despite at most `most` kills at random times; return the kills per command."""
    reference_run, durations = uninterrupted
    kills: Counter[str] = Counter()
    for arguments, duration in zip(PIPELINE, durations, strict=True):
        while True:
            process = start(arguments, folder)
            try:
                # Training is the interesting target, so the other commands are killed less often.
                longest = 1.2 * duration if arguments is TRAIN else 4 * duration
                timeout = rng.uniform(0, longest) if kills.total() < most else None
                _, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills[arguments[0]] += 1
                require_no_orphans(process.pid)
                check_newest_checkpoint(folder)
                continue
            assert process.returncode == 0, errors
            break
    assert results(folder) == results(reference_run)
    assert_each_round_once(folder)
    assert leftovers(folder) in ([], [folder / RUN / ".lock"])
    return kills


def check_newest_checkpoint(folder) -> None:
    """Check that the newest checkpoint is intact and lacks at most one logged round."""
    log = folder / RUN / "rounds.jsonl"
    checkpoint, damaged = read_newest_checkpoint(folder / RUN / "checkpoints")
    assert not damaged
    logged = [line for line in log.read_text().splitlines() if line.endswith("}")] if log.exists() else []
    rounds = json.loads(logged[-1])["round"] if logged else 0
    assert (checkpoint.round if checkpoint else 0) >= rounds - 1


def assert_each_round_once(folder) -> None:
    rows = [json.loads(line) for line in (folder / RUN / "rounds.jsonl").read_text().splitlines()]
    assert [(row["round"], row["client"]) for row in rows] == [(r, c) for r in range(1, ROUNDS + 1) for c in range(3)]


def test_killed_run_resumes_to_the_same_bytes(tmp_path, uninterrupted):
    kill_often(3, random.Random(4), tmp_path, uninterrupted, most=3)


@pytest.mark.slow
def test_run_killed_two_hundred_times_resumes_to_the_same_bytes(tmp_path, uninterrupted, report_counts):
    report_counts(kill_often(200, random.Random(5), tmp_path, uninterrupted, most=1000))


def kill_often(number, rng, tmp_path, uninterrupted, most) -> Counter[str]:
    """Finish pipelines, each with at most `most` kills, until there were `number` kills; return the kills per command.

    The times of the kills are random, and so is how many of them come before a command has finished.
    """
    kills: Counter[str] = Counter()
    pipelines = 0
    while kills.total() < number:
        folder = tmp_path / f"killed-{pipelines}"
        folder.mkdir()
        kills += interrupted(folder, rng, uninterrupted, most)
        pipelines += 1
    return Counter({**kills, "pipelines finished with the same bytes": pipelines})


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def signalled(number, folder, rng, uninterrupted) -> str:
    """Send a signal at a random time and return how the command ended."""
    process = start(TRAIN, folder)
    time.sleep(rng.uniform(0, uninterrupted[1][1]))
    pause(process)  # so that the log shows how far the run is when the signal arrives
    log = folder / RUN / "rounds.jsonl"
    nearly_done = log.exists() and log.read_text().count("\n") == 3 * ROUNDS
    process.send_signal(number)
    resume(process)
    _, errors = read_outputs(process)
    require_no_orphans(process.pid)
    # Before the handlers are installed, the signal itself ends the process with the same shell exit code.
    # After the last round the signal may come too late.
    assert process.returncode in (CODES[number], -number) or (nearly_done and process.returncode == 0), errors
    if process.returncode == CODES[number]:
        assert "Traceback" not in errors
        assert any(
            words in errors
            for words in ("repeat the command to continue", "stopped on request", "all runs are finished")
        )
    return {0: "was done already", CODES[number]: "in order"}.get(process.returncode, "before it began")


@pytest.mark.parametrize("number", CODES)
def test_signal_at_a_random_time(number, tmp_path, uninterrupted):
    send_signals(number, 1, tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
def test_fifty_signals_at_random_times(number, tmp_path, uninterrupted, report_counts):
    report_counts(send_signals(number, 50, tmp_path, uninterrupted))


def send_signals(number, times, tmp_path, uninterrupted) -> Counter[str]:
    rng, taken = random.Random(number), Counter()
    for attempt in range(times):
        folder = with_shards(tmp_path / str(attempt), uninterrupted)
        taken[signalled(number, folder, rng, uninterrupted)] += 1
        done = run(TRAIN, folder)
        assert done.returncode == 0, done.stderr
        assert_trained_alike(folder, uninterrupted)
    return taken


def with_shards(folder, uninterrupted):
    """Create a directory with the shards."""
    shutil.copytree(uninterrupted[0] / "shards", folder / "shards")
    return folder


def assert_trained_alike(folder, uninterrupted) -> None:
    expected = results(uninterrupted[0])
    del expected[str(RUN / "evaluation.json")]
    assert results(folder) == expected


def test_two_concurrent_starts_give_one_run(tmp_path, uninterrupted):
    start_twice(1, tmp_path, uninterrupted)


@pytest.mark.slow
def test_fifty_concurrent_starts(tmp_path, uninterrupted):
    start_twice(50, tmp_path, uninterrupted)


def start_twice(times, tmp_path, uninterrupted) -> None:
    """Start a run twice. Its many rounds keep it running until the other process is refused."""
    expected = (uninterrupted[0] / RUN / "rounds.jsonl").read_text().splitlines()
    for attempt in range(times):
        folder = with_shards(tmp_path / str(attempt), uninterrupted)
        log = folder / RUN / "rounds.jsonl"
        both = [start((*TRAIN, "--rounds", "100000", "-q"), folder) for _ in range(2)]
        wait_until(lambda both=both: any(process.poll() is not None for process in both))
        [refused] = [process for process in both if process.poll() is not None]
        [running] = [process for process in both if process is not refused]
        _, errors = read_outputs(refused)
        assert refused.returncode == 3, errors
        assert "another process is writing here" in errors.splitlines()[-1]
        assert errors.count("error: ") == 1
        wait_until(lambda log=log: log.exists() and log.read_text().count("\n") > 3, running)
        running.send_signal(signal.SIGTERM)
        _, errors = read_outputs(running)
        assert running.returncode == CODES[signal.SIGTERM], errors
        lines = log.read_text().splitlines()
        assert lines[: len(expected)] == expected[: len(lines)]
        rows = [json.loads(line) for line in lines]
        assert [(row["round"], row["client"]) for row in rows] == [
            (number, client) for number in range(1, len(rows) // 3 + 1) for client in range(3)
        ]
