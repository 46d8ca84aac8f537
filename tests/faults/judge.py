"""What is promised of every command, whatever it is given."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.conftest import Ending

MOST_SECONDS = 3.0


@dataclass
class Judge:
    """Types commands and holds how they end against the promise; counts what it saw.

    Seconds are the processor's: how long the machine was busy with something else is nobody's fault.
    """

    type_in: Callable[..., Ending]
    folder: Path
    codes: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0

    def __call__(self, *arguments: str, given: object = "", most_seconds: float = MOST_SECONDS) -> Ending:
        """How the command ended: well, or with the one line of a refusal, soon, and with no file more or less.

        `given` is what it was given to read, for whoever has to look into a broken promise.
        """
        before, began = everything_in(self.folder), time.process_time()
        ending = self.type_in(*arguments)
        seconds = time.process_time() - began
        told = f"{arguments}, given {given!r:.5000}: {ending.exit_code}, {ending.stderr}"
        assert ending.exit_code in (0, 2), told
        assert ending.exit_code == 0 or re.fullmatch(r"error: [^\n]{1,2100}\n", ending.stderr), told
        assert ending.exit_code == 0 or ending.stderr.removesuffix("\n").isprintable(), told
        assert "Traceback" not in ending.stderr, told
        assert ending.exit_code == 0 or everything_in(self.folder) == before, told
        assert seconds < most_seconds, f"{seconds:.1f} s, {told}"
        self.codes[ending.exit_code] += 1
        self.slowest = max(self.slowest, seconds)
        return ending

    def counts(self) -> dict[str, object]:
        """For the figures."""
        each = {f"exit {code}": count for code, count in self.codes.items()}
        return {"tried": self.codes.total(), **each, "slowest, in CPU seconds": f"{self.slowest:.2f}"}


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))
