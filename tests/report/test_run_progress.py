"""How far runs are, told from their files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.run_progress import RunStatus, WatchedRun, WatchedRuns
from fedmosaic_cli.storage.lock import LOCK_FILE, directory_lock
from tests.report.runs_in_progress import begin, end, lines, play, row


def test_a_run_that_is_made_is_running_and_its_time_is_foretold(tmp_path):
    run = begin(tmp_path / "run", rounds=10, played=4)
    with directory_lock(run):
        found = WatchedRun(run).poll()
    assert (found.status, found.round, found.num_rounds, found.reason) == (RunStatus.RUNNING, 4, 10, "")
    assert found.mean_accuracy == pytest.approx(0.05)
    assert found.mean_trust == pytest.approx(0.04)
    assert found.elapsed_seconds == 8.0
    # Six rounds of two seconds, of which up to one may be over.
    assert 10 <= found.remaining_seconds <= 12
    assert [point[0] for point in found.history] == [1, 2, 3, 4]
    assert [client["client"] for client in found.client_rows] == [0, 1, 2]
    assert found.client_rows[2] == row(4, 2)


def test_the_time_to_come_is_told_by_the_latest_rounds(tmp_path):
    run = begin(tmp_path / "run", rounds=50, played=20)
    (run / "timings.jsonl").write_text("".join(f'{{"seconds": {s}}}\n' for s in [100.0] * 20 + [1.0] * 20))
    with directory_lock(run):
        assert 29 <= WatchedRun(run).poll().remaining_seconds <= 30


def test_where_nobody_makes_it_a_run_is_stopped_failed_or_finished(tmp_path):
    run = begin(tmp_path / "run", rounds=4, played=3)
    watched = WatchedRun(run)
    assert watched.poll().status is RunStatus.STOPPED
    assert watched.poll().remaining_seconds is None
    (run / "crash.txt").write_text("Traceback\n  somewhere\nValueError: too bad\n\n")
    found = watched.poll()
    assert (found.status, found.reason) == (RunStatus.FAILED, "ValueError: too bad")
    (run / "crash.txt").unlink()
    play(run, 4, 4)
    end(run, 4)
    assert watched.poll().status is RunStatus.FINISHED
    with directory_lock(run):  # other runs of the same command may still be under way
        assert watched.poll().status is RunStatus.FINISHED


def test_a_run_whose_turn_has_not_come_waits(tmp_path):
    with directory_lock(tmp_path / "run"):
        found = WatchedRun(tmp_path / "run").poll()
    assert (found.status, found.round, found.num_rounds) == (RunStatus.WAITING, 0, None)


def test_a_round_counts_when_all_clients_are_there(tmp_path):
    run = begin(tmp_path / "run", rounds=10, played=2)
    watched = WatchedRun(run)
    with (run / "rounds.jsonl").open("a") as log:
        log.write(lines([row(3, 0)]) + '{"round": 3, "cl')
    found = watched.poll()
    assert (found.status, found.round, len(found.history), len(found.client_rows)) == (RunStatus.STOPPED, 2, 2, 3)
    with (run / "rounds.jsonl").open("a") as log:
        log.write('ient": 1, "accuracy": 0.5}\n' + lines([row(3, 2)]))
    assert watched.poll().round == 3


def test_a_run_that_went_back_is_read_anew(tmp_path):
    run = begin(tmp_path / "run", rounds=10, played=8)
    watched = WatchedRun(run)
    assert watched.poll().round == 8
    for name in ("rounds.jsonl", "timings.jsonl"):
        (run / name).unlink()
    play(run, 1, 5)
    found = watched.poll()
    assert (found.round, found.elapsed_seconds, len(found.history)) == (5, 10.0, 5)


@pytest.mark.parametrize("clients", [2, 700])
def test_a_glance_at_the_end_of_a_long_log_tells_the_same(clients, tmp_path):
    """Whether rounds are smaller or larger than what is read at first."""
    run = begin(tmp_path / "run", rounds=1000, played=6 if clients == 700 else 900, clients=clients)
    assert (run / "rounds.jsonl").stat().st_size > 2 * (1 << 16)
    glance, whole = WatchedRun(run, with_history=False), WatchedRun(run)
    for _ in range(2):
        short, full = glance.poll(), whole.poll()
        assert (short.round, short.mean_accuracy, short.mean_trust) == (full.round, full.mean_accuracy, full.mean_trust)
        assert short.history == ()
        play(run, full.round + 1, full.round + 1, clients)


@pytest.mark.parametrize(
    ("name", "content", "state"),
    [
        ("config.yaml", "a: 1", RunStatus.FOREIGN),
        ("config.yaml", "[1, 2]", RunStatus.FOREIGN),
        ("config.yaml", "[" * 100_000, RunStatus.FOREIGN),
        ("config.yaml", "method: x\ntrain:\n  rounds: many\n", RunStatus.DAMAGED),
        ("config.yaml", "method: x\nother:\n  rounds: 3\n", RunStatus.DAMAGED),
        ("config.yaml", "method: x\ntrain:\n  inner:\n    rounds: 3\n", RunStatus.DAMAGED),
        ("rounds.jsonl", "nonsense\n", RunStatus.DAMAGED),
        ("rounds.jsonl", '{"round": 1}\n', RunStatus.DAMAGED),
        ("rounds.jsonl", '{"round": 1, "client": 0, "accuracy": NaN}\n', RunStatus.DAMAGED),
        ("rounds.jsonl", f'{{"round": 1, "client": 0, "accuracy": 1{"0" * 400}}}\n', RunStatus.DAMAGED),
        ("timings.jsonl", "nonsense\n", RunStatus.DAMAGED),
        ("summary.json", "{", RunStatus.DAMAGED),
        ("summary.json", '{"schema": 1}', RunStatus.DAMAGED),
        ("summary.json", '{"schema": 2}', RunStatus.NEWER),
        ("summary.json", '{"mean": 2}', RunStatus.FOREIGN),
    ],
)
def test_what_is_not_right_is_told_with_where_it_is(name, content, state, tmp_path):
    run = begin(tmp_path / "run", rounds=3, played=2)
    (run / name).write_text(content)
    watched = WatchedRun(run)
    for _ in range(2):  # the second look must not forget what the first has found
        found = watched.poll()
        assert found.status is state
        assert str(run / name) in found.reason


def test_a_finished_run_whose_log_is_short_or_gone_is_damaged(tmp_path):
    run = begin(tmp_path / "run", rounds=5, played=3)
    end(run, 5)
    assert WatchedRun(run).poll().status is RunStatus.DAMAGED
    (run / "rounds.jsonl").unlink()
    assert WatchedRun(run).poll().status is RunStatus.DAMAGED


def test_a_run_without_its_configuration_is_damaged(tmp_path):
    run = begin(tmp_path / "run", rounds=5, played=3)
    (run / "config.yaml").unlink()
    assert WatchedRun(run).poll().status is RunStatus.DAMAGED


def test_a_run_on_another_machine_is_alive_as_long_as_its_log_grows(tmp_path):
    """There may be no lock to see from here."""
    run = begin(tmp_path / "run", rounds=5, played=3)
    (run / LOCK_FILE).write_text(json.dumps({"pid": 1, "host": "another machine", "since": "today"}))
    watched = WatchedRun(run)
    assert watched.poll().status is RunStatus.RUNNING
    long_ago = time.time() - 1000
    os.utime(run / "rounds.jsonl", (long_ago, long_ago))
    assert watched.poll().status is RunStatus.STOPPED


def test_looking_changes_nothing(tmp_path):
    run = begin(tmp_path / "runs" / "a", rounds=5, played=3)
    (tmp_path / "runs" / "foreign").mkdir()
    (run / LOCK_FILE).write_text("left behind")

    def everything():
        return {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))}

    before = everything()
    watched = WatchedRuns(tmp_path / "runs")
    watched.poll()
    watched.poll()
    assert everything() == before


def test_a_lock_that_was_left_behind_is_tried_once(tmp_path, monkeypatch):
    run = begin(tmp_path / "run", rounds=5, played=3)
    (run / LOCK_FILE).write_text("left behind")
    tried = []
    monkeypatch.setattr("fedmosaic_cli.report.run_progress.is_locked", tried.append)
    watched = WatchedRun(run)
    assert [watched.poll().status for _ in range(3)] == [RunStatus.STOPPED] * 3
    assert tried == [run]


def test_a_run_that_is_taken_up_again_is_seen_although_its_lock_had_been_left(tmp_path):
    run = begin(tmp_path / "run", rounds=5, played=3)
    (run / LOCK_FILE).write_text("left behind")
    watched = WatchedRun(run)
    assert watched.poll().status is RunStatus.STOPPED
    with directory_lock(run):
        assert watched.poll().status is RunStatus.RUNNING


def test_all_runs_are_found_those_that_run_first(tmp_path):
    for name in ("a/x/seed-0", "a/x/seed-1", "b/seed-0"):
        begin(tmp_path / name, rounds=2, played=2)
    end(tmp_path / "a/x/seed-0", 2)
    begin(tmp_path / "b/seed-0/checkpoints/inner", rounds=2)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "config.yaml").write_text("somebody's own")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / LOCK_FILE).write_text("left behind")
    runs = WatchedRuns(tmp_path)
    with directory_lock(tmp_path / "b/seed-0"), directory_lock(tmp_path / "c/seed-0"):
        found = [(str(each.path.relative_to(tmp_path)), each.status.value) for each in runs.poll()]
    assert found == [
        ("b/seed-0", "running"),
        ("c/seed-0", "waiting"),
        ("a/x/seed-1", "stopped"),
        ("a/x/seed-0", "finished"),
    ]


def test_where_there_are_no_runs_that_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(RequestError, match=r"no runs here|no such directory"):
            WatchedRuns(path).poll()


NAMES = ("config.yaml", "rounds.jsonl", "timings.jsonl", "summary.json", "crash.txt", LOCK_FILE)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_subnormal=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(row(1, 0))), inner, max_size=3),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), content=st.binary(max_size=60) | VALUES.map(json.dumps), cut=st.integers(0, 400))
def test_nothing_that_lies_there_is_raised(name, content, cut, tmp_path_factory):
    run = begin(tmp_path_factory.mktemp("fuzz") / "run", rounds=2, played=2)
    end(run, 2)
    watched = [WatchedRun(run), WatchedRun(run, with_history=False)]
    whole = (run / name).read_bytes() if (run / name).exists() else b""
    data = content if isinstance(content, bytes) else content.encode()
    for damaged in (whole[:cut], data, whole[:cut] + data + b"\n" + whole[cut:]):
        (run / name).write_bytes(damaged)
        for each in (*watched, WatchedRun(Path(run))):
            assert isinstance(each.poll().status, RunStatus)
