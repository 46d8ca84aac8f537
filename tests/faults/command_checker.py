"""Checks what every command guarantees, whatever its input."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.conftest import CommandResult

MAX_CPU_SECONDS = 60.0
"""Most commands need less than one. The limit finds input that takes a command out of all proportion."""


@dataclass
class CommandChecker:
    """Runs commands, checks how they end and counts the exit codes.

    Time is measured in CPU seconds, which depend little on the load of the machine.
    """

    run_command: Callable[..., CommandResult]
    folder: Path
    codes: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0

    def __call__(self, *arguments: str, given: object = "", max_seconds: float = MAX_CPU_SECONDS) -> CommandResult:
        """Run a command that must succeed or fail with one error line, in finite time and without leaving files.

        `given` describes the input for the failure message.
        """
        before, began = all_paths(self.folder), time.process_time()
        result = self.run_command(*arguments)
        seconds = time.process_time() - began
        message = f"{arguments}, given {given!r:.5000}: {result.exit_code}, {result.stderr}"
        assert result.exit_code in (0, 2), message
        # Old names of keys are noted before the error.
        error = re.sub(r"\A(note: [^\n]+\n)*", "", result.stderr)
        assert result.exit_code == 0 or re.fullmatch(r"error: [^\n]{1,2100}\n", error), message
        assert result.exit_code == 0 or error.removesuffix("\n").isprintable(), message
        assert "Traceback" not in result.stderr, message
        assert result.exit_code == 0 or all_paths(self.folder) == before, message
        assert seconds < max_seconds, f"{seconds:.1f} s, {message}"
        self.codes[result.exit_code] += 1
        self.slowest = max(self.slowest, seconds)
        return result

    def counts(self) -> dict[str, object]:
        """Return the counts for the test report."""
        each = {f"exit {code}": count for code, count in self.codes.items()}
        return {"tried": self.codes.total(), **each, "slowest, in CPU seconds": f"{self.slowest:.2f}"}


def all_paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))
