"""The text of `--help`: options in groups, wrapped at words, with complete option names at any width.

Typer's own formatter cuts option names and shows types of flags, in a way that changes between its versions. This one
uses only names, help texts, defaults and panels of the options.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from enum import Enum
from typing import Any

from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from fedmosaic_cli.cli.console import stdout_console

MIN_COLUMNS, MAX_COLUMNS, DEFAULT_COLUMNS = 40, 100, 80
# Help starts in this column at most; a longer option has its help on the next line.
MAX_OPTION_COLUMNS = 28
MARGIN, GAP = "  ", "  "
DEFAULT_PANEL = "Options"
GENERAL_PANEL = "General"
HEADING_STYLE, OPTION_STYLE, METAVAR_STYLE = "bold", "cyan", "yellow"
# Paragraphs that start with this character keep their lines.
KEEP_LINES = "\b"


class HelpCommand(TyperCommand):
    """A command with this module's help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(render_help(self, ctx))


class HelpGroup(TyperGroup):
    """A group of commands with this module's help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(render_help(self, ctx))


def choices(values: type[Enum]) -> str:
    """Return the values of an option as its metavar, e.g. `auto|cpu`."""
    return "|".join(str(value.value) for value in values)


def render_help(command: Any, context: Any) -> str:
    """Return the help of a command, in colour if stdout is a terminal that wants colour."""
    columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
    width = min(MAX_COLUMNS, max(MIN_COLUMNS, columns))
    blocks = [usage_lines(command, context, width), *description_blocks(command.help or "", width)]
    arguments = command_arguments(command, context)
    if arguments:
        rows = [(Text(argument_name(argument), METAVAR_STYLE), parameter_help(argument)) for argument in arguments]
        blocks.append(titled_rows("Arguments", rows, width))
    if hasattr(command, "commands"):
        rows = [(Text(name, OPTION_STYLE), first_paragraph(item.help)) for name, item in command.commands.items()]
        blocks.append(titled_rows("Commands", rows, width))
    for name, options in option_panels(command, context).items():
        blocks.append(titled_rows(name, [(option_text(option), parameter_help(option)) for option in options], width))
    console = stdout_console()
    with console.capture() as capture:
        console.print(Text("\n\n").join(Text("\n").join(block) for block in blocks), soft_wrap=True)
    return capture.get()


def command_arguments(command: Any, context: Any) -> list[Any]:
    return [parameter for parameter in command.get_params(context) if parameter.param_type_name == "argument"]


def option_panels(command: Any, context: Any) -> dict[str, list[Any]]:
    """Return the visible options by the heading of their group, in the order of their declaration."""
    options = [p for p in command.get_params(context) if p.param_type_name != "argument" and not p.hidden]
    panels: dict[str, list[Any]] = {}
    for option in options:
        is_help = "--help" in option.opts
        name = getattr(option, "rich_help_panel", None) or (GENERAL_PANEL if is_help else DEFAULT_PANEL)
        panels.setdefault(name, []).append(option)
    if len(panels) <= 2 and DEFAULT_PANEL not in panels:  # a command with general options only
        panels = {DEFAULT_PANEL: [option for group in panels.values() for option in group]}
    last = [panel for panel in (DEFAULT_PANEL, GENERAL_PANEL) if panel in panels]
    return {panel: panels[panel] for panel in [*(name for name in panels if name not in last), *last]}


def usage_lines(command: Any, context: Any, width: int) -> list[Text]:
    """Return the usage of a command."""
    pieces = [context.command_path, "[OPTIONS]", *map(argument_usage, command_arguments(command, context))]
    text = " ".join([*pieces, "COMMAND ..."] if hasattr(command, "commands") else pieces)
    return [Text.assemble(("Usage: ", HEADING_STYLE), "\n".join(wrap(text, width - 7, "  ")))]


def description_blocks(text: str, width: int) -> list[list[Text]]:
    """Return the paragraphs of a docstring: sentences wrapped, examples line by line."""
    blocks = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.lstrip("\n").startswith(KEEP_LINES):
            blocks.append([Text(line) for line in wrap(" ".join(paragraph.split()), width)])
            continue
        heading, *lines = paragraph.lstrip("\n").removeprefix(KEEP_LINES).strip("\n").splitlines()
        title = Text.from_markup(heading).plain.rstrip(":")
        blocks.append([heading_text(title), *(Text(part) for line in lines for part in break_command(line, width))])
    return blocks


def break_command(line: str, width: int) -> list[str]:
    """Break an example before options, with backslashes, so that it can be copied with its line breaks."""
    command = MARGIN + line
    if len(command) <= width:
        return [command]
    lines = [MARGIN]
    for word in line.split(" "):
        candidate = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        # The backslash needs two columns.
        if len(candidate) <= width - 2 or not lines[-1].strip():
            lines[-1] = candidate
            continue
        # Keep an option and its value together.
        *head, last = lines[-1].split(" ")
        if last.startswith("--") and any(head):
            lines[-1] = " ".join(head)
            lines.append(f"{MARGIN * 2}{last} {word}")
        else:
            lines.append(MARGIN * 2 + word)
    return [f"{part} \\" for part in lines[:-1]] + lines[-1:]


def titled_rows(title: str, rows: list[tuple[Text, str]], width: int) -> list[Text]:
    """Return a heading and two columns: names, and their help."""
    longest = max(len(name) for name, _ in rows)
    indent = len(MARGIN) + min(longest, MAX_OPTION_COLUMNS) + len(GAP)
    lines = [heading_text(title)]
    for name, text in rows:
        help_lines = wrap(text, width - indent)
        line = Text(MARGIN) + name
        if len(line) + len(GAP) > indent:
            lines.append(line)
            line = Text()
        for number, part in enumerate(help_lines):
            start = line if number == 0 else Text()
            lines.append(start + Text(" " * (indent - len(start)) + part))
        if not help_lines:
            lines.append(line)
    return lines


def heading_text(title: str) -> Text:
    return Text(f"{title}:", HEADING_STYLE)


def option_text(option: Any) -> Text:
    """Return the names of an option, short ones first, and the placeholder of its value."""
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in (*option.opts, *option.secondary_opts) if name.startswith("--")]
    text = Text(", ".join([*short, *long]), OPTION_STYLE)
    if not option.is_flag and not option.count:
        text.append(f" {option.metavar or long[0].removeprefix('--').upper()}", METAVAR_STYLE)
    return text


def argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def argument_usage(argument: Any) -> str:
    name = argument_name(argument) + ("" if argument.nargs == 1 else "...")
    return name if argument.required else f"[{name}]"


def parameter_help(parameter: Any) -> str:
    """Return the help of an option or argument, followed by its environment variable and default value."""
    parts = [" ".join((parameter.help or "").split())]
    if parameter.envvar:
        parts.append(f"[env: {parameter.envvar}]")
    default = default_text(parameter)
    if default:
        parts.append(f"[default: {default}]")
    if parameter.required:
        parts.append("[required]")
    return " ".join(part for part in parts if part)


def default_text(parameter: Any) -> str:
    """Return the default value for the help; empty for flags and for options without one."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.default
    is_shown = parameter.show_default and default not in (None, (), []) and not callable(default)
    if not is_shown or (isinstance(default, bool) and not parameter.secondary_opts):
        return ""
    if isinstance(default, bool):
        return str((parameter.opts if default else parameter.secondary_opts)[0]).removeprefix("--")
    return str(default.value if isinstance(default, Enum) else default)


def first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break text between words; option names and other words with hyphens are not broken."""
    return textwrap.wrap(text, max(width, 10), subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
