"""Flipped bits, truncated and deleted files: only intact data is used."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fedmosaic_cli.storage.files import is_temporary_path
from tests.faults.conftest import EVALUATE, REPORT, RUN, TRAIN, results

LONGER = tuple("5" if word == "3" and TRAIN[place - 1] == "--rounds" else word for place, word in enumerate(TRAIN))


def flip(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"flipped a bit in byte {place}"


def cut(path: Path, rng: random.Random) -> str:
    length = rng.randrange(path.stat().st_size)
    path.write_bytes(path.read_bytes()[:length])
    return f"cut to {length} bytes"


def delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "deleted"


@pytest.fixture(scope="module")
def longer(reference_run, tmp_path_factory):
    """Return the directory of the run after two more rounds."""
    from typer.testing import CliRunner

    from fedmosaic_cli.cli.app import app

    folder = tmp_path_factory.mktemp("longer")
    shutil.copytree(reference_run, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for arguments in (LONGER, EVALUATE, REPORT):
            assert CliRunner().invoke(app, list(arguments)).exit_code == 0
    return folder


def damage_and_repair(damage_file, rng, run_command, reference_run, longer, tmp_path) -> str:
    """Damage one file of a finished run, then read, repair and continue the run."""
    home = tmp_path / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(reference_run, home)
    files = sorted(path for path in (home / RUN).rglob("*") if path.is_file() and path.stat().st_size)
    victim = rng.choice(files)
    what = f"{victim.relative_to(home / RUN)} {damage_file(victim, rng)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        reported = look(run_command, home, reference_run, what)
        mended = run_command(*TRAIN)
        assert mended.exit_code == 0, (what, mended.stderr)
        names = {str(RUN / name) for name in ("evaluation.json",)}
        after, before = results(home), results(reference_run)
        assert {n: c for n, c in after.items() if n not in names} == {n: c for n, c in before.items() if n not in names}
        reported |= "warning" in mended.stderr
        further = run_command(*LONGER)
        assert further.exit_code == 0, (what, further.stderr)
        reported |= "warning" in further.stderr
        for arguments in (EVALUATE, REPORT):
            assert run_command(*arguments).exit_code == 0, what
    assert results(home) == results(longer), what
    if reported:
        return "reported"
    # Unused data: a checkpoint that is too old, or an evaluation that is written again.
    assert victim.parent.parent.name == "checkpoints" or victim.name.startswith("evaluation"), what
    return "not needed"


def look(run_command, home, reference_run, what) -> bool:
    """Read a damaged run, which must give the same result or report damage; return whether it did report."""
    reported = False
    for arguments in (EVALUATE, REPORT):
        result = run_command(*arguments)
        if result.exit_code:
            assert result.exit_code == 2, (what, result.stderr)
            assert "Traceback" not in result.stderr
            reported = True
        reported |= "skipped" in result.stderr or "damaged" in result.stderr
    tables = {name: content for name, content in results(home).items() if name.startswith("tables/")}
    assert tables == {name: content for name, content in results(reference_run).items() if name.startswith("tables/")}
    return reported


def damage(flips, cuts, deletions, run_command, reference_run, longer, tmp_path) -> Counter[str]:
    rng, outcomes = random.Random(20), Counter()
    for damage_file, times in ((flip, flips), (cut, cuts), (delete, deletions)):
        for _ in range(times):
            outcome = damage_and_repair(damage_file, rng, run_command, reference_run, longer, tmp_path)
            outcomes[f"{damage_file.__name__}: {outcome}"] += 1
    return outcomes


def test_some_damaged_files_are_detected(run_command, reference_run, longer, tmp_path):
    outcomes = damage(12, 6, 6, run_command, reference_run, longer, tmp_path)
    assert any("reported" in outcome for outcome in outcomes)


@pytest.mark.slow
def test_many_damaged_files_are_detected(run_command, reference_run, longer, tmp_path, report_counts):
    report_counts(damage(1000, 200, 50, run_command, reference_run, longer, tmp_path))


def test_damaged_checkpoint_is_quarantined_and_two_valid_ones_are_kept(run_command, reference_run, tmp_path):
    shutil.copytree(reference_run, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / RUN / "checkpoints" / "round-00003"
    (newest / "state.json").unlink()
    further = run_command(*LONGER)
    assert "round-00003/state.json" in further.stderr
    assert "using the checkpoint of round 2" in further.stderr
    names = sorted(path.name for path in newest.parent.iterdir())
    assert names[0].startswith("damaged-round-00003-")
    assert names[1:] == ["round-00004", "round-00005"]


def test_run_without_a_valid_checkpoint_is_unchanged(run_command, reference_run, tmp_path):
    shutil.copytree(reference_run, tmp_path, dirs_exist_ok=True)
    for manifest in (tmp_path / RUN / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = run_command(*LONGER)
    assert (result.exit_code, result.stderr.splitlines()[-1].count("no valid checkpoint")) == (3, 1)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and not is_temporary_path(path)}
    assert after == before
