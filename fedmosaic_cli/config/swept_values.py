"""Several values of one key: `--set methods.ditto.mu=0.01,0.1,1` makes one run per value."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSING_BRACKETS = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class SweptAssignments:
    """Assignments with one value each.

    Attributes:
        assignments: One `section.key=value` per key, in the order of the command line.
        values: The chosen value of each key that has several values.
    """

    assignments: tuple[str, ...] = ()
    values: dict[str, str] = field(default_factory=dict)


def expand_assignments(assignments: Iterable[str]) -> list[SweptAssignments]:
    """Return the product of the values of all assignments; the last one varies fastest.

    Raises:
        RequestError: A value is empty, or two values of one key are equal.
    """
    choices = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        values = split_values(text)
        if len(values) > 1 and not all(values):
            raise RequestError(f"a value is empty in '{assignment}' (--set): write values such as 0.1,1")
        if len(set(values)) < len(values):
            raise RequestError(f"a value is repeated in '{assignment}' (--set): write each value once")
        choices.append([(key.strip(), equals, value, len(values) > 1) for value in values])
    return [
        SweptAssignments(
            tuple(f"{key}{equals}{value}" for key, equals, value, _ in chosen),
            {key: value for key, _, value, is_swept in chosen if is_swept},
        )
        for chosen in product(*choices)
    ]


def split_values(text: str) -> list[str]:
    """Split a value at commas outside brackets, braces and quotes. Unbalanced text is one value."""
    parts, start, expected, quote = [], 0, list[str](), ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and text[:position].rstrip()[-1:] in ("", *"[{(,:"):
            quote = char
        elif char in CLOSING_BRACKETS:
            expected.append(CLOSING_BRACKETS[char])
        elif expected and char == expected[-1]:
            expected.pop()
        elif char == "," and not expected:
            parts.append(text[start:position])
            start = position + 1
    if quote or expected:
        return [text]
    return [part.strip() for part in (*parts, text[start:])] if parts else [text]
