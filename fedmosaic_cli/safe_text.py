"""Foreign text, such as names of directories and classes, made safe for terminals, text files and spreadsheets."""

from __future__ import annotations

import re

# Control characters but for tab and newline, characters that change the direction or the line of a text, and what
# undecodable bytes in file names become.
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
FORMULA_START = re.compile(r"[\s\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20].|[\t\r].", re.DOTALL)
"""What makes a spreadsheet read a cell as a formula: also after white space, and as a full-width character. A single
character is not a formula."""


def escape_control_characters(text: str) -> str:
    r"""Return a text with control characters written as escapes such as \x1b. Tabs and newlines are kept."""
    return CONTROL_CHARACTERS.sub(lambda match: ascii(match[0])[1:-1], text)


def to_csv_cell(value: object) -> object:
    """Return the value of a CSV cell. Text that a spreadsheet would read as a formula starts with an apostrophe.

    Numbers are not changed, also if they are text.
    """
    if not isinstance(value, str):
        return value
    text = escape_control_characters(value)
    return f"'{text}" if FORMULA_START.match(text) and not is_number(text) else text


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
