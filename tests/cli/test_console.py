"""Wrapping of text and commands on a terminal and in a pipe."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from fedmosaic_cli.cli import console
from fedmosaic_cli.cli.app import exit_with_error
from fedmosaic_cli.errors import RequestError

COMMAND = "fedmosaic baseline local centralized fedavg fedprox fedct --preset quickstart --seeds 0,1,2"
NOTE = "note: the official test split of this data set is merged with the training split (protocol official)"


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    streams = {"stdout": TerminalText(), "stderr": TerminalText()}
    monkeypatch.setattr(console, "sys", SimpleNamespace(**streams))
    return streams


def test_text_on_a_terminal_is_wrapped_at_words(terminal):
    console.print_stderr(NOTE)
    console.print_text(NOTE)
    for stream in terminal.values():
        lines = stream.getvalue().splitlines()
        assert len(lines) > 1
        assert all(len(line) <= 40 for line in lines)
        assert " ".join(" ".join(lines).split()) == NOTE


def test_a_command_on_a_terminal_is_one_line(terminal):
    console.print_command(COMMAND, "next:")
    assert terminal["stdout"].getvalue() == f"next: {COMMAND}\n"


def test_a_quoted_command_within_a_sentence_is_not_broken(terminal):
    console.print_stderr(f"note: there is no Local run to compare with: '{COMMAND}' creates it, and then the report")
    assert f"'{COMMAND}'" in terminal["stderr"].getvalue()
    assert all(len(line) <= 40 or COMMAND in line for line in terminal["stderr"].getvalue().splitlines())


def test_a_path_longer_than_the_terminal_is_not_broken(terminal):
    path = "runs/quickstart/fedmosaic-entropy-with-a-long-name/seed-0"
    console.print_text(f"results are in the directory {path} and below")
    assert path in terminal["stdout"].getvalue()


def test_the_continuation_of_an_indented_line_is_indented(terminal):
    console.print_text("  " + "word " * 20)
    first, *others = terminal["stdout"].getvalue().splitlines()
    assert first.startswith("  word")
    assert all(line.startswith("    word") for line in others)


def test_nothing_is_wrapped_in_a_pipe(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    console.print_text(NOTE)
    console.print_stderr(NOTE)
    assert capsys.readouterr() == (NOTE + "\n", NOTE + "\n")


def test_control_characters_are_escaped_before_wrapping(terminal):
    console.print_text("a name\x1b[31m " * 10)
    assert "\x1b" not in terminal["stdout"].getvalue()


def test_an_error_on_a_terminal_is_wrapped_at_words(terminal):
    with pytest.raises(SystemExit) as stopped:
        exit_with_error(RequestError("unknown preset 'quikstart' (--preset): 'fedmosaic presets list' shows all"), [])
    assert stopped.value.code == 2
    assert terminal["stderr"].getvalue().splitlines() == [
        "error: unknown preset 'quikstart'",
        "  (--preset): 'fedmosaic presets list'",
        "  shows all",
    ]
