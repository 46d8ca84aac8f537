"""HTML and JSON out of text that may be anybody's: everything is escaped unless it is marked as markup."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# No browser may be shown these; a file system lets anybody name a directory with them.
CONTROL_CHARS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
VOID_ELEMENTS = {"br", "input"}


class Markup(str):
    """Text that is HTML already. Any other text is escaped where it is put into an element."""

    __slots__ = ()


def escape_html(text: object) -> Markup:
    """The text as HTML shows it, in an element as well as in an attribute."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(CONTROL_CHARS.sub("\ufffd", str(text))))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. None and False leave an attribute out; `class_` is class, `data_run` is data-run."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape_html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID_ELEMENTS:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join_markup(children)}</{name}>")


def join_markup(children: Iterable[object], separator: str = "") -> Markup:
    """Several pieces as one."""
    return Markup(separator.join(escape_html(child) for child in children))


def to_script_json(content: Any) -> str:
    """JSON that can lie inside a script element: no text in it can end the element, or a line of JavaScript."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def copyable_command(command: str) -> Markup:
    """A command with a button that copies it."""
    button = tag("button", "Copy", class_="copy", type="button", aria_label=f"Copy: {command}")
    return tag("div", tag("code", command), button, class_="command")


def scrollable(table: Markup, label: str) -> Markup:
    """A box of its own for what may be wider than the page, which a keyboard can scroll too."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def note_list(sentences: Sequence[str]) -> Markup:
    """A list of remarks, folded where it is long."""
    if not sentences:
        return Markup("")
    listed = tag("ul", *(tag("li", sentence) for sentence in sentences), class_="notes")
    return listed if len(sentences) <= 5 else tag("details", tag("summary", f"{len(sentences)} remarks"), listed)


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def format_percentage_points(difference: float) -> str:
    """A difference in percentage points, with its sign."""
    return format_signed(f"{100 * difference:+.2f}")


def format_signed(text: str) -> str:
    """A number with a minus that is as long as a plus, and without a sign where it is nothing; other text as it is."""
    if re.fullmatch(r"[+-]0(\.0+)?", text):
        return text[1:]
    return re.sub(r"^-(?=\d)", "\u2212", text)


def pluralize(count: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
