"""Output of commands: results to stdout, progress and notes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console

# Lines in a pipe are not wrapped or cut.
PIPE_WIDTH = 1000
MAX_NOTES = 10


def stdout_console() -> Console:
    """Return a console for results. It is created per call because tests and callers replace `sys.stdout`."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def stderr_console() -> Console:
    """Return a console for progress and notes."""
    return Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else PIPE_WIDTH)


def print_stdout(text: str) -> None:
    """Print a line to stdout without markup or wrapping."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_stderr(text: str) -> None:
    """Print a line to stderr without markup or wrapping; a closed stderr is ignored."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def print_notes(lines: Iterable[str], overflow_hint: str = "see the manifest's remarks") -> None:
    """Print different notes to stderr, at most `MAX_NOTES`, and where to find the others."""
    different = list(dict.fromkeys(lines))
    for line in different[:MAX_NOTES]:
        print_stderr(f"note: {line}")
    if len(different) > MAX_NOTES:
        print_stderr(f"note: ... and {len(different) - MAX_NOTES} more, {overflow_hint}")


def print_json(content: Any) -> None:
    print_stdout(json.dumps(content, indent=2))
