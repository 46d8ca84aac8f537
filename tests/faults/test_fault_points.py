"""Every single request to the disk fails, in every way, in every command: nothing that was kept is lost."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from fedmosaic_cli.storage.checkpoints import read_newest_checkpoint
from tests.faults.conftest import PARTITION, RUN, TRAINING, leftovers, results
from tests.faults.machine import ENDS, KINDS, SHORT, FaultyDisk, StoppedMachine

SCENARIOS = {"partition": (PARTITION,), "training": TRAINING}


def requests_of(scenario, type_in, tmp_path) -> list[str]:
    """What a scenario asks of the disk when nothing fails."""
    with pytest.MonkeyPatch.context() as patch:
        faultless = FaultyDisk(patch, tmp_path, tmp_path)
        for arguments in SCENARIOS[scenario]:
            assert type_in(*arguments).exit_code == 0
    return faultless.requests


def play(scenario, kind, at, type_in, tmp_path, undisturbed) -> str:
    """Let one request fail, go on, and compare. What became of the command that was hit."""
    home, attic = tmp_path / "home", tmp_path / "attic"
    for folder in (home, attic):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    if scenario != "partition":
        shutil.copytree(undisturbed / "shards", home / "shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        outcome = hit(scenario, kind, at, type_in, home, attic)
        for arguments in SCENARIOS[scenario]:
            again = type_in(*arguments)
            assert again.exit_code == 0, (kind, at, again.stderr)
    expected = results(undisturbed)
    wanted = expected if scenario != "partition" else {n: c for n, c in expected.items() if n.startswith("shards/")}
    assert results(home) == wanted, (kind, at)
    assert leftovers(home) == [], (kind, at)
    return outcome


def hit(scenario, kind, at, type_in, home, attic) -> str:
    told = 0
    with pytest.MonkeyPatch.context() as patch:
        faulty = FaultyDisk(patch, home, attic, at, kind)
        for arguments in SCENARIOS[scenario]:
            try:
                ending = type_in(*arguments)
            except StoppedMachine:
                break
            told = max(told, ending.rounds_told)
            if ending.exit_code:
                assert ending.exit_code == 4, (kind, at, ending.stderr)
                lines = [line for line in ending.stderr.splitlines() if line.startswith("error: ")]
                assert len(lines) == 1, (kind, at, ending.stderr)
                assert "Traceback" not in ending.stderr
                return f"exit 4 in {arguments[0]}"
        if not faulty.off:
            return "no matter"
    # However it ended: the last round that was told of is there, and whole.
    checkpoint, damaged = read_newest_checkpoint(home / RUN / "checkpoints")
    assert not damaged, (kind, at)
    assert (checkpoint.round if checkpoint else 0) >= told
    return "machine stopped"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_failure_here_and_there(scenario, type_in, tmp_path, monkeypatch, undisturbed):
    """A few points of every kind: those of the long test with the numbers of a stride."""
    sweep(scenario, type_in, tmp_path, monkeypatch, undisturbed, stride=37 if scenario == "training" else 11)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_failure_at_every_point(scenario, type_in, tmp_path, monkeypatch, undisturbed, figures):
    figures(sweep(scenario, type_in, tmp_path, monkeypatch, undisturbed, stride=1))


def sweep(scenario, type_in, tmp_path, monkeypatch, undisturbed, stride) -> Counter[str]:
    rehearsal = tmp_path / "rehearsal"
    rehearsal.mkdir()
    monkeypatch.chdir(rehearsal)
    if scenario != "partition":
        shutil.copytree(undisturbed / "shards", rehearsal / "shards")
    requests = requests_of(scenario, type_in, rehearsal)
    outcomes: Counter[str] = Counter()
    for number, kind in enumerate(KINDS):
        points = [at for at, name in enumerate(requests, start=1) if kind not in SHORT or name == "write"]
        for at in points[number % min(stride, len(points)) :: stride]:
            outcome = play(scenario, kind, at, type_in, tmp_path, undisturbed)
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
