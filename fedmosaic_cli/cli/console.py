"""Output of commands: results to stdout, progress and notes to stderr.

On a terminal, text is wrapped at words, and commands are not wrapped, so that they can be copied. In a pipe nothing is
wrapped. Names of files, classes and runs may contain control characters. They are escaped here, in everything that is
printed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedmosaic_cli.safe_text import escape_control_characters

# Lines in a pipe are not wrapped or cut.
PIPE_WIDTH = 1000
MAX_NOTES = 10
MIN_WRAP_WIDTH = 20
CONTINUATION_INDENT = "  "
# A quoted command with what follows it directly, a command after a colon at the end of the line, or a word.
UNBREAKABLE = re.compile(r"'(?:fedmosaic|pip|python|python3) [^']*'\S*|(?<=: )fedmosaic .+$|\S+")


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
    """Print text to stdout as it is: a file's content, or lines that are formatted already."""
    text = escape_control_characters(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_text(text: str) -> None:
    """Print a sentence to stdout. On a terminal it is wrapped at words, but not within quoted commands."""
    print_stdout(wrap_words(escape_control_characters(text), stdout_console().width) if sys.stdout.isatty() else text)


def print_command(command: str, label: str = "") -> None:
    """Print a shell command to stdout as one line that can be copied, after a label such as `next:`."""
    print_stdout(f"{label} {command}" if label else command)


def print_stderr(text: str) -> None:
    """Print a line to stderr, wrapped like `print_text`; a closed stderr is ignored."""
    text = escape_control_characters(text)
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            text = wrap_words(text, stderr_console().width)
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def wrap_words(text: str, width: int) -> str:
    """Break a line between words. Quoted commands, and words longer than the width, are not broken.

    Args:
        text: One line. Its leading spaces are kept, and continuation lines are indented further.
        width: Columns of the terminal.
    """
    if cell_len(text) <= width or width < MIN_WRAP_WIDTH:
        return text
    margin = " " * (len(text) - len(text.lstrip(" ")))
    lines = [margin]
    for word in UNBREAKABLE.findall(text):
        is_start = not lines[-1].strip()
        candidate = lines[-1] + word if is_start else f"{lines[-1]} {word}"
        if is_start or cell_len(candidate) <= width:
            lines[-1] = candidate
        else:
            lines.append(margin + CONTINUATION_INDENT + word)
    return "\n".join(lines)


def print_notes(lines: Iterable[str], overflow_hint: str = "see the manifest's remarks") -> None:
    """Print different notes to stderr, at most `MAX_NOTES`, and where to find the others."""
    different = list(dict.fromkeys(lines))
    for line in different[:MAX_NOTES]:
        print_stderr(f"note: {line}")
    if len(different) > MAX_NOTES:
        print_stderr(f"note: ... and {len(different) - MAX_NOTES} more, {overflow_hint}")


def print_json(content: Any) -> None:
    print_stdout(json.dumps(content, indent=2))
