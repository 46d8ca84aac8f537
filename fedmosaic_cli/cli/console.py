"""Where output goes: results to stdout, progress and remarks to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console

# A pipe has no width: nothing is cut off in it.
PIPE_WIDTH = 1000
MAX_NOTES = 10


def stdout_console() -> Console:
    """For results. Made when needed, so that it follows whatever stdout is then."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def stderr_console() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else PIPE_WIDTH)


def print_stdout(text: str) -> None:
    """A plain line to stdout: no markup is read in it, no line is wrapped."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_stderr(text: str) -> None:
    """A plain line to stderr. Nobody needs to read it: work does not stop because the reader is gone."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def print_notes(lines: Iterable[str], overflow_hint: str = "see the manifest's remarks") -> None:
    """What there is to know about the data, a line each to stderr; the first of very many, and where the others are."""
    different = list(dict.fromkeys(lines))
    for line in different[:MAX_NOTES]:
        print_stderr(f"note: {line}")
    if len(different) > MAX_NOTES:
        print_stderr(f"note: ... and {len(different) - MAX_NOTES} more, {overflow_hint}")


def print_json(content: Any) -> None:
    print_stdout(json.dumps(content, indent=2))
