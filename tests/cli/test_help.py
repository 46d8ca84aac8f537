"""The help of every command: complete names, wrapped at words, options in groups."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import COMMANDS, app, load_command
from fedmosaic_cli.cli.help import break_command, wrap
from tests.cli.test_console import TerminalText


def all_commands():
    """The arguments that select each command, and the command."""
    yield (), None
    for name in COMMANDS:
        command = load_command(name)
        yield (name,), command
        for sub_name, sub_command in getattr(command, "commands", {}).items():
            yield (name, sub_name), sub_command


ALL_COMMANDS = dict(all_commands())
OPTIONS = {words: command for words, command in ALL_COMMANDS.items() if command is not None}


def command_help(words, columns):
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", ALL_COMMANDS, ids=" ".join)
def test_help_fits_the_terminal_and_cuts_nothing(words, columns):
    text = command_help(words, columns)
    assert max(map(len, text.splitlines())) <= columns
    for cut in ("…", "<bool>", "[bold]", "\b", "\x1b"):
        assert cut not in text


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_help_shows_each_option_with_its_placeholder_and_its_default_in_full(words, columns):
    text = command_help(words, columns)
    one_line = " ".join(text.split())
    visible = [p for p in OPTIONS[words].params if p.param_type_name == "option" and not p.hidden]
    for option in visible:
        for name in (*option.opts, *option.secondary_opts):
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name
        if option.metavar:
            assert f"{max(option.opts, key=len)} {option.metavar}" in text
        if isinstance(option.show_default, str):
            assert f"[default: {option.show_default}]" in one_line


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_flags_have_no_placeholder(words):
    text = command_help(words, 120)
    for option in OPTIONS[words].params:
        if getattr(option, "is_flag", False) and not option.hidden:
            assert not re.search(rf"{max(option.opts, key=len)} [A-Z]{{2,}}", text)


@pytest.mark.parametrize("command", ["train", "baseline"])
def test_options_of_training_commands_are_in_groups(command):
    ungrouped = [
        option.opts
        for option in load_command(command).params
        if option.param_type_name == "option" and not option.hidden and not option.rich_help_panel
    ]
    assert not ungrouped
    text = command_help((command,), 80)
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings[-7:] == [
        "What to train",
        "Training",
        "Data and runs",
        "Execution",
        "Differential privacy",
        "Clients at remote sites",
        "General",
    ]


def test_a_deprecated_option_is_not_shown():
    assert "--grace" not in command_help(("train",), 80)


def test_sentences_are_wrapped_once():
    lines = command_help(("evaluate",), 80).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("Computes accuracy"))
    paragraph = lines[start : lines.index("", start)]
    for line, following in pairwise(paragraph):
        assert len(line) + 1 + len(following.split()[0]) > 80


def test_a_long_example_continues_after_a_backslash_and_can_be_copied():
    line = "fedmosaic train --preset quickstart --method ./my_method.py:MyMethod --model ./my_model.py:MyModel --quiet"
    parts = break_command(line, 60)
    assert len(parts) > 1
    assert all(len(part) <= 60 for part in parts)
    assert " ".join("".join(parts).replace("\\", " ").split()) == line
    assert all(part.endswith(" \\") for part in parts[:-1])
    assert not any(part.endswith("--model \\") for part in parts)


def test_options_are_not_broken_at_their_hyphens():
    assert wrap("use --allow-nonidentical here", 12) == ["use", "--allow-nonidentical", "here"]


def test_help_is_coloured_on_a_terminal_that_allows_it(monkeypatch):
    from fedmosaic_cli.cli import console

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = TerminalText()
    monkeypatch.setattr(console.sys, "stdout", stream)
    with pytest.raises(SystemExit):
        app(["presets", "--help"])
    assert "\x1b[" in stream.getvalue()
