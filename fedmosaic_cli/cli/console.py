"""Output of commands: results to stdout, progress and notes to stderr.

Names of files, classes and runs may contain control characters. They are escaped here, in everything that is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedmosaic_cli.safe_text import escape_control_characters

# Lines in a pipe are not wrapped or cut.
PIPE_WIDTH = 1000
MAX_NOTES = 10


class EscapingConsole(Console):
    """Escapes control characters in the text that it prints, but not its own colours and cursor movements."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a cell or a line as text. It is escaped before the width of a column is measured."""
        return super().render_str(escape_control_characters(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of everything that is printed, at any depth."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_control_characters(segment.text))


def stdout_console() -> Console:
    """Return a console for results. It is created per call because tests and callers replace `sys.stdout`."""
    return EscapingConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def stderr_console() -> Console:
    """Return a console for progress and notes."""
    return EscapingConsole(
        stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else PIPE_WIDTH
    )


def print_stdout(text: str) -> None:
    """Print a line to stdout without markup or wrapping."""
    text = escape_control_characters(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_stderr(text: str) -> None:
    """Print a line to stderr without markup or wrapping; a closed stderr is ignored."""
    with suppress(OSError, ValueError):
        sys.stderr.write(escape_control_characters(text) + "\n")
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
