"""Mutation test: plausible wrong versions of rules, each of which must fail a test.

`python benchmarks/mutants.py` applies the mutants of `mutant_list.py` one at a time to a copy of the repository and
runs their tests. It ends with exit code 1 unless every mutant is killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from mutant_list import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mutant_list import Mutant

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("fedmosaic_cli", "presets", "tests", "pyproject.toml")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider")
TIMEOUT_SECONDS = 1800
UNMUTATED_TIMEOUT_SECONDS = 3600
PASSED, FAILED, TIMED_OUT = 0, 1, -1
"""`PASSED` and `FAILED` are exit codes of pytest; its other codes mean that tests could not be run. `TIMED_OUT` means
that pytest did not end in time."""
Outcome = Literal["killed", "survived", "broken"]


class MutantError(Exception):
    """A mutant cannot be applied, or its tests fail without it."""


@dataclass(frozen=True)
class MutantResult:
    """Result of the tests with a mutant. It is broken if they could not be run, or did not end in time."""

    mutant: Mutant
    outcome: Outcome
    seconds: float
    output: str


def mutated_text(mutant: Mutant, root: Path) -> str:
    """Return the mutated content of the mutant's file below `root`.

    Raises:
        MutantError: The old text does not occur exactly once.
    """
    path = root / mutant.file
    text = path.read_text() if path.is_file() else ""
    count = text.count(mutant.old)
    if count != 1:
        raise MutantError(
            f"the old text of '{mutant.name}' occurs {count} times ({mutant.file}): adapt benchmarks/mutant_list.py"
        )
    return text.replace(mutant.old, mutant.new)


def copy_repository(target: Path) -> None:
    """Copy the package, presets and tests, including new files that git does not ignore."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED),
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(root: Path, tests: Sequence[str], timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[int, str]:
    """Run tests in a copy of the repository; return the exit code of pytest and its output."""
    environment = {
        # Not the options of a pytest that runs this script, such as its directory for temporary files.
        **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        # Hypothesis: the same examples for every mutant, and no search for simpler ones.
        "CI": "1",
        "FEDMOSAIC_NO_SHRINK": "1",
    }
    try:
        done = subprocess.run(
            (*PYTEST, *tests),
            cwd=root,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT, f"no result after {timeout_seconds} seconds"
    return done.returncode, done.stdout + done.stderr


def last_lines(output: str, count: int = 5) -> str:
    return "\n".join(output.strip().splitlines()[-count:])


def check_unmutated(root: Path, mutants: Sequence[Mutant]) -> None:
    """Run the tests of all mutants together, each once. Raise `MutantError` if one fails without a mutant."""
    selected = dict.fromkeys(test for mutant in mutants for test in mutant.test_ids)
    files = {test for test in selected if "::" not in test}
    tests = [test for test in selected if test in files or test.split("::")[0] not in files]
    code, output = run_tests(root, tests, UNMUTATED_TIMEOUT_SECONDS)
    if code != PASSED:
        raise MutantError(
            f"tests fail in the unchanged repository (benchmarks/mutant_list.py): fix them first\n{last_lines(output)}"
        )


def check_mutant(root: Path, mutant: Mutant) -> MutantResult:
    """Apply a mutant to a copy of the repository, run its tests, and undo it."""
    path, started = root / mutant.file, time.monotonic()
    mutated, original = mutated_text(mutant, root), path.read_text()
    path.write_text(mutated)
    try:
        code, output = run_tests(root, mutant.test_ids)
    finally:
        path.write_text(original)
    outcomes: dict[int, Outcome] = {PASSED: "survived", FAILED: "killed"}
    return MutantResult(mutant, outcomes.get(code, "broken"), time.monotonic() - started, output)


def run_all(mutants: Sequence[Mutant], num_workers: int) -> list[MutantResult]:
    """Check all mutants, each worker in its own copy of the repository."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(num_workers):
            copy_repository(Path(folder) / str(number))
            free.put(Path(folder) / str(number))

        def check(mutant: Mutant) -> MutantResult:
            root = free.get()
            try:
                result = check_mutant(root, mutant)
            finally:
                free.put(root)
            print(f"{result.outcome:8}  {result.seconds:5.1f} s  {mutant.name}", flush=True)
            return result

        for mutant in mutants:
            mutated_text(mutant, Path(folder) / "0")
        print(f"run the tests of {len(mutants)} mutants in the unchanged repository", flush=True)
        check_unmutated(Path(folder) / "0", mutants)
        with ThreadPoolExecutor(num_workers) as pool:
            return list(pool.map(check, mutants))


def summary_lines(results: Sequence[MutantResult]) -> list[str]:
    """Return a table of all packages and, for each mutant that is not killed, the end of pytest's output."""
    lines = [f"{'package':12}  mutants  killed  survived  broken"]
    for package in sorted({result.mutant.package for result in results}):
        outcomes = [result.outcome for result in results if result.mutant.package == package]
        counts = [len(outcomes), *(outcomes.count(outcome) for outcome in ("killed", "survived", "broken"))]
        lines.append(f"{package:12}  {counts[0]:7}  {counts[1]:6}  {counts[2]:8}  {counts[3]:6}")
    for result in results:
        if result.outcome != "killed":
            lines += [f"\n{result.outcome}: {result.mutant.name} ({result.mutant.file})", last_lines(result.output)]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="check these mutants only")
    parser.add_argument("--list", action="store_true", help="print the names of all mutants")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are checked at the same time (default: 1)")
    options = parser.parse_args(arguments)
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in options.only or () if name not in by_name]
    if unknown:
        parser.error(f"no mutant is called '{unknown[0]}' (--only): --list prints all names")
    mutants = [by_name[name] for name in options.only] if options.only else MUTANTS
    if options.list:
        print("\n".join(f"{mutant.name:48}  {mutant.file}" for mutant in mutants))
        return 0
    started = time.monotonic()
    try:
        results = run_all(mutants, max(1, options.workers))
    except MutantError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n" + "\n".join(summary_lines(results)))
    num_killed = sum(result.outcome == "killed" for result in results)
    print(f"\n{num_killed} of {len(results)} mutants killed in {time.monotonic() - started:.0f} seconds")
    return 0 if num_killed == len(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
