"""The list of mutants fits the code, and every mutant fails a test; see `benchmarks/mutants.py`."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="source distributions have no benchmarks")


@pytest.fixture
def mutants(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mutants")


def test_every_mutant_changes_exactly_one_place_of_its_file(mutants):
    for mutant in mutants.MUTANTS:
        mutated = mutants.mutated_text(mutant, ROOT)
        assert mutated != (ROOT / mutant.file).read_text(), mutant.name
        ast.parse(mutated)


def test_mutants_have_different_names_and_cover_every_area(mutants):
    assert max(Counter(mutant.name for mutant in mutants.MUTANTS).values()) == 1
    areas = {"methods", "cotraining", "data", "labels", "report", "storage", "engine", "federation", "runner"}
    assert {mutant.package for mutant in mutants.MUTANTS} == areas


def test_tests_of_mutants_exist(mutants):
    for test in {test for mutant in mutants.MUTANTS for test in mutant.test_ids}:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        assert not name or re.search(rf"^(def|class) {name}\b", (ROOT / path).read_text(), re.MULTILINE), test


@pytest.mark.parametrize(("old", "count"), [("no such text", 0), ("return", 2)])
def test_mutant_that_does_not_fit_its_file_is_refused_in_one_line(mutants, tmp_path, old, count):
    mutant = replace(mutants.MUTANTS[0], old=old)
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    (tmp_path / mutant.file).write_text("return\nreturn\n")
    with pytest.raises(mutants.MutantError, match=f"^the old text of '{mutant.name}' occurs {count} times .*$"):
        mutants.mutated_text(mutant, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("right = 1", "right = 2", "killed"),
        ("unused = 1", "unused = 2", "survived"),
        ("right = 1", "right = = 1", "broken"),
        ("right = 1", "raise ImportError", "broken"),
    ],
)
def test_mutants_are_killed_by_failed_tests_only(mutants, tmp_path, old, new, outcome):
    """A file that cannot be imported fails every test, whatever it tests."""
    package, tests = tmp_path / "fedmosaic_cli", tmp_path / "tests"
    for folder in (package, tests):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (package / "module.py").write_text("right = 1\nunused = 1\n")
    (tests / "test_it.py").write_text(
        "from fedmosaic_cli.module import right\n\ndef test_right():\n    assert right == 1\n"
    )
    mutant = replace(mutants.MUTANTS[0], path="module.py", old=old, new=new, tests=("test_it.py",))
    mutants.check_unmutated(tmp_path, [mutant])
    assert mutants.check_mutant(tmp_path, mutant).outcome == outcome
    assert (package / "module.py").read_text() == "right = 1\nunused = 1\n"


def test_tests_that_fail_in_the_unchanged_repository_are_refused(mutants, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_wrong():\n    assert False\n")
    with pytest.raises(mutants.MutantError, match="tests fail in the unchanged repository"):
        mutants.check_unmutated(tmp_path, [replace(mutants.MUTANTS[0], tests=("test_it.py",))])


def test_unknown_name_of_a_mutant_is_refused(mutants, capsys):
    with pytest.raises(SystemExit):
        mutants.main(["--only", "no-such-mutant"])
    assert "no mutant is called 'no-such-mutant' (--only)" in capsys.readouterr().err


@pytest.mark.slow
def test_every_mutant_is_killed():
    done = subprocess.run([sys.executable, BENCHMARKS / "mutants.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
