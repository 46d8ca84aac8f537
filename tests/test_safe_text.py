"""Foreign text is safe in terminals, text files and spreadsheets."""

from __future__ import annotations

import csv
import io

import pytest
from rich.table import Table
from rich.text import Text

from fedmosaic_cli.cli import console as printing
from fedmosaic_cli.report.formats.text_formats import records_to_csv
from fedmosaic_cli.storage.shard_manifest import distribution_csv

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\rc\x9bd\u202ee\x7f"
ESCAPED = r"a\x1b]0;title\x07\x1b[2Jb\rc\x9bd\u202ee\x7f"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_printed_lines_contain_no_control_characters(capsys, name):
    getattr(printing, f"print_{name}")(f"written: {HOSTILE}\tand\nmore")
    assert getattr(capsys.readouterr(), name.removeprefix("std")) == f"written: {ESCAPED}\tand\nmore\n"


def test_notes_contain_no_control_characters(capsys):
    printing.print_notes([HOSTILE])
    assert capsys.readouterr().err == f"note: {ESCAPED}\n"


@pytest.mark.parametrize("make_console", [printing.stdout_console, printing.stderr_console])
@pytest.mark.parametrize("wrap", [str, Text], ids=["str", "Text"])
def test_tables_contain_no_control_characters_but_those_of_colours(make_console, wrap):
    console = make_console()
    console.file, console._force_terminal, console.width = io.StringIO(), True, 200
    table = Table()
    table.add_column(wrap("run"))
    table.add_column(wrap(HOSTILE))
    table.add_row(wrap(HOSTILE), Text("red", style="red"))
    console.print(table)
    console.print(wrap(HOSTILE))
    lines = console.file.getvalue()
    for sequence in ("\x1b]0;", "\x07", "\x1b[2J", "\r", "\x9b", "\u202e", "\x7f"):
        assert sequence not in lines
    assert r"a\x1b]0;title" in lines


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        (" =1+1", "' =1+1"),
        ("\n=1+1", "'\n=1+1"),
        ("\ufeff=1+1", "'\ufeff=1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\r=1", r"\r=1"),
        ("cat", "cat"),
        ("-", "-"),
        ("-0.5", "-0.5"),
        ("+1e-3", "+1e-3"),
        ("\x1b[2J", r"\x1b[2J"),
    ],
)
def test_text_cells_cannot_become_formulas(text, cell):
    [header, row] = csv.reader(io.StringIO(records_to_csv(["name", text], [{"name": text, text: -1.5}])))
    assert header == ["name", cell]
    assert row == [cell, "-1.5"]


def test_class_names_cannot_become_formulas():
    split = {"size": 3, "class_counts": [1, 2]}
    manifest = {
        "class_names": ['=HYPERLINK("http://x")', "dog"],
        "clients": [{"id": 0, "domain": "@photo", "train": split, "test": split}],
    }
    [header, row] = csv.reader(io.StringIO(distribution_csv(manifest).decode()))
    assert header == ["client", "domain", '\'=HYPERLINK("http://x")', "dog"]
    assert row == ["0", "'@photo", "2", "4"]
