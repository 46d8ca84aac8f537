"""Bits flip, files are cut and deleted: whatever is left is used as far as it is right, and nothing else is."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fedmosaic_cli.storage.files import is_temporary_path
from tests.faults.conftest import EVALUATE, REPORT, RUN, TRAIN, results

LONGER = tuple("5" if word == "3" and TRAIN[place - 1] == "--rounds" else word for place, word in enumerate(TRAIN))


def flip(path: Path, chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return f"flipped a bit in byte {place}"


def cut(path: Path, chance: random.Random) -> str:
    length = chance.randrange(path.stat().st_size)
    path.write_bytes(path.read_bytes()[:length])
    return f"cut to {length} bytes"


def delete(path: Path, chance: random.Random) -> str:
    path.unlink()
    return "deleted"


@pytest.fixture(scope="module")
def longer(undisturbed, tmp_path_factory):
    """What the run comes to when it goes on for two more rounds."""
    from typer.testing import CliRunner

    from fedmosaic_cli.cli.app import app

    folder = tmp_path_factory.mktemp("longer")
    shutil.copytree(undisturbed, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for arguments in (LONGER, EVALUATE, REPORT):
            assert CliRunner().invoke(app, list(arguments)).exit_code == 0
    return folder


def suffer(injure, chance, type_in, undisturbed, longer, tmp_path) -> str:
    """Damage one file of a finished run; then look at it, mend it, and let it go on."""
    home = tmp_path / "home"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(undisturbed, home)
    files = sorted(path for path in (home / RUN).rglob("*") if path.is_file() and path.stat().st_size)
    victim = chance.choice(files)
    what = f"{victim.relative_to(home / RUN)} {injure(victim, chance)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        told = look(type_in, home, undisturbed, what)
        mended = type_in(*TRAIN)
        assert mended.exit_code == 0, (what, mended.stderr)
        names = {str(RUN / name) for name in ("evaluation.json",)}
        after, before = results(home), results(undisturbed)
        assert {n: c for n, c in after.items() if n not in names} == {n: c for n, c in before.items() if n not in names}
        told |= "warning" in mended.stderr
        further = type_in(*LONGER)
        assert further.exit_code == 0, (what, further.stderr)
        told |= "warning" in further.stderr
        for arguments in (EVALUATE, REPORT):
            assert type_in(*arguments).exit_code == 0, what
    assert results(home) == results(longer), what
    if told:
        return "told"
    # Nobody noticed, for nobody needed it: a checkpoint that was too old to be used, or words that nobody reads.
    assert victim.parent.parent.name == "checkpoints" or victim.name.startswith("evaluation"), what
    return "not needed"


def look(type_in, home, undisturbed, what) -> bool:
    """Whoever reads the damaged run says the same as before, or that something is wrong; whether it said so."""
    told = False
    for arguments in (EVALUATE, REPORT):
        ending = type_in(*arguments)
        if ending.exit_code:
            assert ending.exit_code == 2, (what, ending.stderr)
            assert "Traceback" not in ending.stderr
            told = True
        told |= "skipped" in ending.stderr or "damaged" in ending.stderr
    tables = {name: content for name, content in results(home).items() if name.startswith("tables/")}
    assert tables == {name: content for name, content in results(undisturbed).items() if name.startswith("tables/")}
    return told


def damage(flips, cuts, deletions, type_in, undisturbed, longer, tmp_path) -> Counter[str]:
    chance, outcomes = random.Random(20), Counter()
    for injure, times in ((flip, flips), (cut, cuts), (delete, deletions)):
        for _ in range(times):
            outcomes[f"{injure.__name__}: {suffer(injure, chance, type_in, undisturbed, longer, tmp_path)}"] += 1
    return outcomes


def test_damage_here_and_there(type_in, undisturbed, longer, tmp_path):
    outcomes = damage(12, 6, 6, type_in, undisturbed, longer, tmp_path)
    assert any("told" in outcome for outcome in outcomes)


@pytest.mark.slow
def test_damage_everywhere(type_in, undisturbed, longer, tmp_path, figures):
    figures(damage(1000, 200, 50, type_in, undisturbed, longer, tmp_path))


def test_a_checkpoint_found_damaged_is_put_aside_and_two_whole_ones_are_kept(type_in, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / RUN / "checkpoints" / "round-00003"
    (newest / "state.json").unlink()
    further = type_in(*LONGER)
    assert "round-00003/state.json" in further.stderr
    assert "using the checkpoint of round 2" in further.stderr
    names = sorted(path.name for path in newest.parent.iterdir())
    assert names[0].startswith("damaged-round-00003-")
    assert names[1:] == ["round-00004", "round-00005"]


def test_a_run_without_a_whole_checkpoint_ends_in_one_line_and_is_left_alone(type_in, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    for manifest in (tmp_path / RUN / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ending = type_in(*LONGER)
    assert (ending.exit_code, ending.stderr.splitlines()[-1].count("no valid checkpoint")) == (3, 1)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and not is_temporary_path(path)}
    assert after == before
