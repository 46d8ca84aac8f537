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
from tests.faults.processes import PIPELINE, ROUNDS, TRAIN, orphans, results, run, start


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


def interrupted(folder, rng, uninterrupted, most=1000) -> Counter[str]:
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
                assert orphans(process.pid) == []
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
    folder = tmp_path / "killed"
    folder.mkdir()
    assert interrupted(folder, random.Random(4), uninterrupted, most=3).total() == 3


@pytest.mark.slow
def test_run_killed_two_hundred_times_resumes_to_the_same_bytes(tmp_path, uninterrupted, report_counts):
    rng, pipelines = random.Random(5), 0
    kills: Counter[str] = Counter()
    while kills.total() < 200:
        folder = tmp_path / f"killed-{pipelines}"
        folder.mkdir()
        kills += interrupted(folder, rng, uninterrupted)
        pipelines += 1
    report_counts({"kills": kills.total(), "pipelines finished with the same bytes": pipelines, **kills})


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def signalled(number, folder, rng, uninterrupted) -> str:
    """Send a signal at a random time and return how the command ended."""
    process = start(TRAIN, folder)
    time.sleep(rng.uniform(0, uninterrupted[1][1]))
    log = folder / RUN / "rounds.jsonl"
    nearly_done = log.exists() and log.read_text().count("\n") == 3 * ROUNDS
    process.send_signal(number)
    _, errors = process.communicate(timeout=35)
    assert orphans(process.pid) == []
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
def test_fifty_concurrent_starts(tmp_path, uninterrupted, report_counts):
    report_counts({"slowest refusal, seconds": round(start_twice(50, tmp_path, uninterrupted), 2)})


def start_twice(times, tmp_path, uninterrupted) -> float:
    slowest = 0.0
    for attempt in range(times):
        folder = with_shards(tmp_path / str(attempt), uninterrupted)
        began = time.monotonic()
        both = [start(TRAIN, folder) for _ in range(2)]
        while all(process.poll() is None for process in both):
            time.sleep(0.01)
        took = time.monotonic() - began
        ends = sorted((process.communicate()[1], process.returncode) for process in both)
        by_code = {code: errors for errors, code in ends}
        assert set(by_code) == {0, 3}, ends
        assert by_code[3].count("\n") == 1
        assert "another process is writing here" in by_code[3]
        slowest = max(slowest, took)
        assert_trained_alike(folder, uninterrupted)
    return slowest
