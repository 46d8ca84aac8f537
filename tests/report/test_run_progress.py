"""Progress of runs, read from their files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.run_progress import RunStatus, WatchedRun, WatchedRuns
from fedmosaic_cli.storage.lock import LOCK_FILE, directory_lock
from tests.report.runs_in_progress import create_run, finish_run, log_rounds, log_row, to_jsonl


def test_a_locked_run_is_running_and_has_an_estimated_remaining_time(tmp_path):
    run = create_run(tmp_path / "run", rounds=10, finished=4)
    with directory_lock(run):
        progress = WatchedRun(run).poll()
    assert (progress.status, progress.round, progress.num_rounds, progress.reason) == (RunStatus.RUNNING, 4, 10, "")
    assert progress.mean_accuracy == pytest.approx(0.05)
    assert progress.mean_trust == pytest.approx(0.04)
    assert progress.elapsed_seconds == 8.0
    # Six rounds of two seconds; up to one of them may have passed.
    assert 10 <= progress.remaining_seconds <= 12
    assert [point[0] for point in progress.history] == [1, 2, 3, 4]
    assert [client["client"] for client in progress.client_rows] == [0, 1, 2]
    assert progress.client_rows[2] == log_row(4, 2)


def test_the_remaining_time_follows_the_latest_rounds(tmp_path):
    run = create_run(tmp_path / "run", rounds=50, finished=20)
    (run / "timings.jsonl").write_text("".join(f'{{"seconds": {s}}}\n' for s in [100.0] * 20 + [1.0] * 20))
    with directory_lock(run):
        assert 29 <= WatchedRun(run).poll().remaining_seconds <= 30


def test_an_unlocked_run_is_stopped_failed_or_finished(tmp_path):
    run = create_run(tmp_path / "run", rounds=4, finished=3)
    watched = WatchedRun(run)
    assert watched.poll().status is RunStatus.STOPPED
    assert watched.poll().remaining_seconds is None
    (run / "crash.txt").write_text("Traceback\n  somewhere\nValueError: too bad\n\n")
    progress = watched.poll()
    assert (progress.status, progress.reason) == (RunStatus.FAILED, "ValueError: too bad")
    (run / "crash.txt").unlink()
    log_rounds(run, 4, 4)
    finish_run(run, 4)
    assert watched.poll().status is RunStatus.FINISHED
    with directory_lock(run):  # the command may still execute other runs
        assert watched.poll().status is RunStatus.FINISHED


def test_a_locked_run_without_configuration_is_waiting(tmp_path):
    with directory_lock(tmp_path / "run"):
        progress = WatchedRun(tmp_path / "run").poll()
    assert (progress.status, progress.round, progress.num_rounds) == (RunStatus.WAITING, 0, None)


def test_a_round_counts_when_all_clients_are_logged(tmp_path):
    run = create_run(tmp_path / "run", rounds=10, finished=2)
    watched = WatchedRun(run)
    with (run / "rounds.jsonl").open("a") as log:
        log.write(to_jsonl([log_row(3, 0)]) + '{"round": 3, "cl')
    progress = watched.poll()
    assert (progress.status, progress.round, len(progress.history), len(progress.client_rows)) == (
        RunStatus.STOPPED,
        2,
        2,
        3,
    )
    with (run / "rounds.jsonl").open("a") as log:
        log.write('ient": 1, "accuracy": 0.5}\n' + to_jsonl([log_row(3, 2)]))
    assert watched.poll().round == 3


def test_a_run_with_a_replaced_log_is_read_from_the_start(tmp_path):
    run = create_run(tmp_path / "run", rounds=10, finished=8)
    watched = WatchedRun(run)
    assert watched.poll().round == 8
    for name in ("rounds.jsonl", "timings.jsonl"):
        (run / name).unlink()
    log_rounds(run, 1, 5)
    progress = watched.poll()
    assert (progress.round, progress.elapsed_seconds, len(progress.history)) == (5, 10.0, 5)


@pytest.mark.parametrize("clients", [2, 700])
def test_reading_only_the_end_of_a_long_log_gives_the_same_values(clients, tmp_path):
    """Rounds may be smaller or larger than the first window."""
    run = create_run(tmp_path / "run", rounds=1000, finished=6 if clients == 700 else 900, clients=clients)
    assert (run / "rounds.jsonl").stat().st_size > 2 * (1 << 16)
    window, whole = WatchedRun(run, with_history=False), WatchedRun(run)
    for _ in range(2):
        short, full = window.poll(), whole.poll()
        assert (short.round, short.mean_accuracy, short.mean_trust) == (full.round, full.mean_accuracy, full.mean_trust)
        assert short.history == ()
        log_rounds(run, full.round + 1, full.round + 1, clients)


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
def test_a_damaged_file_is_named_in_the_reason(name, content, state, tmp_path):
    run = create_run(tmp_path / "run", rounds=3, finished=2)
    (run / name).write_text(content)
    watched = WatchedRun(run)
    for _ in range(2):  # the second poll must report the same
        progress = watched.poll()
        assert progress.status is state
        assert str(run / name) in progress.reason


def test_a_finished_run_with_an_incomplete_log_is_damaged(tmp_path):
    run = create_run(tmp_path / "run", rounds=5, finished=3)
    finish_run(run, 5)
    assert WatchedRun(run).poll().status is RunStatus.DAMAGED
    (run / "rounds.jsonl").unlink()
    assert WatchedRun(run).poll().status is RunStatus.DAMAGED


def test_a_run_without_its_configuration_is_damaged(tmp_path):
    run = create_run(tmp_path / "run", rounds=5, finished=3)
    (run / "config.yaml").unlink()
    assert WatchedRun(run).poll().status is RunStatus.DAMAGED


def test_a_run_on_another_machine_is_running_while_its_log_grows(tmp_path, monkeypatch):
    """The lock may not be visible from here."""
    run = create_run(tmp_path / "run", rounds=5, finished=3)
    (run / LOCK_FILE).write_text(json.dumps({"pid": 1, "host": "another machine", "since": "today"}))
    watched, now = WatchedRun(run), (run / "rounds.jsonl").stat().st_mtime
    monkeypatch.setattr("fedmosaic_cli.report.run_progress.time", SimpleNamespace(time=lambda: now))
    assert watched.poll().status is RunStatus.RUNNING
    now += 1000
    assert watched.poll().status is RunStatus.STOPPED


def test_polling_changes_no_file(tmp_path):
    run = create_run(tmp_path / "runs" / "a", rounds=5, finished=3)
    (tmp_path / "runs" / "foreign").mkdir()
    (run / LOCK_FILE).write_text("left behind")

    def modification_times():
        return {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))}

    before = modification_times()
    watched = WatchedRuns(tmp_path / "runs")
    watched.poll()
    watched.poll()
    assert modification_times() == before


def test_a_stale_lock_is_tested_once(tmp_path, monkeypatch):
    run = create_run(tmp_path / "run", rounds=5, finished=3)
    (run / LOCK_FILE).write_text("left behind")
    tested = []
    monkeypatch.setattr("fedmosaic_cli.report.run_progress.is_locked", tested.append)
    watched = WatchedRun(run)
    assert [watched.poll().status for _ in range(3)] == [RunStatus.STOPPED] * 3
    assert tested == [run]


def test_a_resumed_run_with_a_stale_lock_is_running(tmp_path):
    run = create_run(tmp_path / "run", rounds=5, finished=3)
    (run / LOCK_FILE).write_text("left behind")
    watched = WatchedRun(run)
    assert watched.poll().status is RunStatus.STOPPED
    with directory_lock(run):
        assert watched.poll().status is RunStatus.RUNNING


def test_all_runs_are_found_and_running_ones_are_first(tmp_path):
    for name in ("a/x/seed-0", "a/x/seed-1", "b/seed-0"):
        create_run(tmp_path / name, rounds=2, finished=2)
    finish_run(tmp_path / "a/x/seed-0", 2)
    create_run(tmp_path / "b/seed-0/checkpoints/inner", rounds=2)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "config.yaml").write_text("mine: true")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / LOCK_FILE).write_text("left behind")
    runs = WatchedRuns(tmp_path)
    with directory_lock(tmp_path / "b/seed-0"), directory_lock(tmp_path / "c/seed-0"):
        progress = [(str(each.path.relative_to(tmp_path)), each.status.value) for each in runs.poll()]
    assert progress == [
        ("b/seed-0", "running"),
        ("c/seed-0", "waiting"),
        ("a/x/seed-1", "stopped"),
        ("a/x/seed-0", "finished"),
    ]


def test_a_directory_without_runs_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(RequestError, match=r"no runs here|no such directory"):
            WatchedRuns(path).poll()


NAMES = ("config.yaml", "rounds.jsonl", "timings.jsonl", "summary.json", "crash.txt", LOCK_FILE)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_subnormal=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(log_row(1, 0))), inner, max_size=3)
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), content=st.binary(max_size=60) | VALUES.map(json.dumps), cut=st.integers(0, 400))
def test_damaged_files_never_raise(name, content, cut, tmp_path_factory):
    run = create_run(tmp_path_factory.mktemp("fuzz") / "run", rounds=2, finished=2)
    finish_run(run, 2)
    watched = [WatchedRun(run), WatchedRun(run, with_history=False)]
    whole = (run / name).read_bytes() if (run / name).exists() else b""
    data = content if isinstance(content, bytes) else content.encode()
    for damaged in (whole[:cut], data, whole[:cut] + data + b"\n" + whole[cut:]):
        (run / name).write_bytes(damaged)
        for each in (*watched, WatchedRun(Path(run))):
            assert isinstance(each.poll().status, RunStatus)
