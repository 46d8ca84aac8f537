"""Every system call fails in every way in every command: nothing that was flushed is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from fedmosaic_cli.storage.checkpoints import read_newest_checkpoint
from fedmosaic_cli.storage.lock import LOCK_FILE, is_locked
from fedmosaic_cli.storage.runs import RunDirectory
from tests.faults.conftest import PARTITION, RUN, TRAINING, leftovers, results
from tests.faults.faulty_disk import ENDS, KINDS, SHORT, FaultyDisk, MachineStopped

SCENARIOS = {"partition": (PARTITION,), "training": TRAINING}


def requests_of(scenario, run_command, tmp_path) -> list[str]:
    """Return the system calls of a scenario without failures."""
    with pytest.MonkeyPatch.context() as patch:
        faultless = FaultyDisk(patch, tmp_path, tmp_path)
        for arguments in SCENARIOS[scenario]:
            assert run_command(*arguments).exit_code == 0
    return faultless.requests


def run_with_fault(scenario, kind, at, run_command, tmp_path, reference_run) -> str:
    """Make one call fail, continue, and compare the results; return the outcome of the failed command."""
    home, backup = tmp_path / "home", tmp_path / "backup"
    for folder in (home, backup):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    if scenario != "partition":
        shutil.copytree(reference_run / "shards", home / "shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        outcome = run_until_fault(scenario, kind, at, run_command, home, backup)
        remaining = remaining_lock(home)
        for arguments in SCENARIOS[scenario]:
            again = run_command(*arguments)
            assert again.exit_code == 0, (kind, at, again.stderr)
    expected = results(reference_run)
    wanted = expected if scenario != "partition" else {n: c for n, c in expected.items() if n.startswith("shards/")}
    assert results(home) == wanted, (kind, at)
    assert leftovers(home) in ([], remaining), (kind, at)
    return outcome


def remaining_lock(home) -> list[Path]:
    """Return the lock file of a finished run that could not be removed. It is not held, and `--resume` of a finished
    run writes nothing, so the file stays."""
    lock = home / RUN / LOCK_FILE
    if not lock.exists() or not RunDirectory(lock.parent).is_finished():
        return []
    assert not is_locked(lock.parent)
    return [lock]


def run_until_fault(scenario, kind, at, run_command, home, backup) -> str:
    reported = 0
    with pytest.MonkeyPatch.context() as patch:
        faulty = FaultyDisk(patch, home, backup, at, kind)
        for arguments in SCENARIOS[scenario]:
            try:
                result = run_command(*arguments)
            except MachineStopped:
                break
            reported = max(reported, result.last_reported_round)
            if result.exit_code:
                assert result.exit_code == 4, (kind, at, result.stderr)
                lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
                assert len(lines) == 1, (kind, at, result.stderr)
                assert "Traceback" not in result.stderr
                return f"exit 4 in {arguments[0]}"
        if not faulty.off:
            return "no matter"
    # The last reported round must be in an intact checkpoint.
    checkpoint, damaged = read_newest_checkpoint(home / RUN / "checkpoints")
    assert not damaged, (kind, at)
    assert (checkpoint.round if checkpoint else 0) >= reported
    return "machine stopped"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_some_disk_failures_lose_nothing(scenario, run_command, tmp_path, monkeypatch, reference_run):
    """Test some of the points that the slow test covers."""
    sweep(scenario, run_command, tmp_path, monkeypatch, reference_run, stride=74 if scenario == "training" else 22)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_disk_failure_loses_nothing(scenario, run_command, tmp_path, monkeypatch, reference_run, report_counts):
    report_counts(sweep(scenario, run_command, tmp_path, monkeypatch, reference_run, stride=1))


def sweep(scenario, run_command, tmp_path, monkeypatch, reference_run, stride) -> Counter[str]:
    counted = tmp_path / "counted"
    counted.mkdir()
    monkeypatch.chdir(counted)
    if scenario != "partition":
        shutil.copytree(reference_run / "shards", counted / "shards")
    requests = requests_of(scenario, run_command, counted)
    outcomes: Counter[str] = Counter()
    for number, kind in enumerate(KINDS):
        points = [at for at, name in enumerate(requests, start=1) if kind not in SHORT or name == "write"]
        for at in points[number % min(stride, len(points)) :: stride]:
            outcome = run_with_fault(scenario, kind, at, run_command, tmp_path, reference_run)
            outcomes[f"{kind}: {outcome}"] += 1
    for kind in KINDS:
        happened = {outcome for outcome in outcomes if outcome.startswith(kind)}
        if kind in ENDS:
            assert happened == {f"{kind}: machine stopped"}
        elif kind == "short write":
            assert happened == {f"{kind}: no matter"}
        else:
            assert any("exit 4" in outcome for outcome in happened), (kind, outcomes)
    return outcomes
