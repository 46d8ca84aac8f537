"""Options of `fedmosaic report` for figures."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.plots.figure_options import (
    DEFAULT_OPTIONS,
    FIGURE_FORMATS,
    MAX_CHOSEN_CLIENTS,
    MAX_WIDTH_INCHES,
    MIN_WIDTH_INCHES,
    FigureOptions,
    FigureStyle,
    FigureWidth,
)


def figure_option(name: str, text: str, default: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, show_default=default, metavar=metavar, rich_help_panel="Figures (with --out)")


StyleOption = Annotated[
    FigureStyle,
    figure_option("--style", "Titles and notes in the figures, or in files of captions.", "explained"),
]
WidthOption = Annotated[
    str | None,
    typer.Option(
        "--width",
        help="column, text, page (3.25, 5.5, 7 inches), or inches, e.g. 6.75.",
        show_default="page; text with paper",
        metavar="<width>",
        rich_help_panel="Figures (with --out)",
        autocompletion=lambda: list(FigureWidth),
    ),
]
SerifOption = Annotated[
    bool, typer.Option("--serif", help="A font like Times.", rich_help_panel="Figures (with --out)")
]
FormatOption = Annotated[str | None, figure_option("--format", "File formats: png, pdf, svg.", "png,pdf", "<formats>")]
ClientsOption = Annotated[
    str | None,
    figure_option("--clients", "Clients in figures of lambda and losses, e.g. 0-5,9.", "the first 6", "<clients>"),
]


def parse_figure_options(
    style: FigureStyle, width: str | None, serif: bool, formats: str | None, clients: str | None, drawn: bool
) -> FigureOptions:
    """Check the options together.

    Args:
        style: The value of `--style`.
        width: The value of `--width`.
        serif: Whether `--serif` is given.
        formats: The value of `--format`.
        clients: The value of `--clients`.
        drawn: Whether the command draws figures: `--out` without `--no-figures`.

    Raises:
        RequestError: A value cannot be read, or an option has no effect.
    """
    given = {
        "--style": style is not FigureStyle.explained,
        "--width": width is not None,
        "--serif": serif,
        "--format": formats is not None,
        "--clients": clients is not None,
    }
    unused = next((option for option, is_given in given.items() if is_given and not drawn), None)
    if unused:
        raise RequestError(f"{unused} has no effect without figures (fedmosaic report): add --out results")
    return FigureOptions(
        style,
        None if width is None else parse_width(width),
        serif,
        DEFAULT_OPTIONS.formats if formats is None else parse_formats(formats),
        None if clients is None else parse_clients(clients),
    )


def parse_width(text: str) -> FigureWidth | float:
    """Parse the name of a width, or a number of inches such as `6.75`."""
    name = text.strip().lower()
    if name in list(FigureWidth):
        return FigureWidth(name)
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", name) and MIN_WIDTH_INCHES <= float(name) <= MAX_WIDTH_INCHES:
        return float(name)
    raise RequestError(
        f"unknown width '{text}' (--width): choose from {', '.join(FigureWidth)}, or a number of inches from "
        f"{MIN_WIDTH_INCHES:g} to {MAX_WIDTH_INCHES:g}, e.g. --width 6.75"
    )


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse file formats such as `png,svg`."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    unknown = next((name for name in names if name not in FIGURE_FORMATS), None)
    if unknown is not None:
        allowed = ", ".join(FIGURE_FORMATS)
        raise RequestError(f"unknown format '{unknown}' (--format): choose from {allowed}, e.g. --format pdf,svg")
    return names


def parse_clients(text: str) -> tuple[int, ...]:
    """Parse client numbers and ranges such as `0-5,9`."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise RequestError(f"cannot read '{text}' (--clients): write numbers and ranges such as 0-5,9")
        if last - first >= MAX_CHOSEN_CLIENTS:
            raise too_many_clients(last - first + 1)
        numbers |= set(range(first, last + 1))
    if len(numbers) > MAX_CHOSEN_CLIENTS:
        raise too_many_clients(len(numbers))
    return tuple(sorted(numbers))


def too_many_clients(count: int) -> RequestError:
    return RequestError(f"{count} clients cannot be distinguished (--clients): choose at most {MAX_CHOSEN_CLIENTS}")
