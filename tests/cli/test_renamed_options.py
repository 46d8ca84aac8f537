"""Old spellings of options: accepted, hidden, with a note."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.train_options import RENAMED_OPTIONS
from tests.conftest import fedmosaic

DRY_RUN = ("--preset", "quickstart", "--dry-run", "--json")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_old_option_names_do_the_same_and_print_one_note(invoke):
    expected = invoke("train", *DRY_RUN, "--tag", "mine", "--stop-timeout", 3)
    renamed = invoke("train", *DRY_RUN, "--label", "mine", "--grace=3")
    assert renamed.exit_code == expected.exit_code == 0
    assert renamed.stdout == expected.stdout
    assert "fedmosaic-entropy-mine/seed-0" in json.loads(renamed.stdout)["runs"][0]["path"]
    notes = [line for line in renamed.stderr.splitlines() if line not in expected.stderr.splitlines()]
    assert notes == ["note: --grace is now --stop-timeout", "note: --label is now --tag"]


@pytest.mark.parametrize("command", ["train", "baseline"])
def test_help_shows_only_the_new_names(tmp_path, command):
    shown = fedmosaic(command, "--help", cwd=tmp_path, COLUMNS="200").stdout
    for old, new in RENAMED_OPTIONS.items():
        assert new in shown.split()
        assert f" {old} " not in shown


def test_an_old_flag_is_accepted(invoke):
    result = invoke("train", "--preset", "quickstart", "--expose")
    assert result.exit_code == 2
    assert "note: --expose is now --allow-unauthenticated-network" in result.stderr
    assert "add --engine flower" in result.stderr


def test_old_and_new_name_together_are_refused(invoke):
    result = invoke("baseline", "local", "--preset", "quickstart", "--grace", 3, "--stop-timeout", 4)
    assert result.exit_code == 2
    assert result.stderr.endswith("both --grace and --stop-timeout are given (fedmosaic): use --stop-timeout\n")


def test_old_names_keep_the_limits_of_the_new_ones(invoke):
    result = invoke("train", "--preset", "quickstart", "--local-sites", 100)
    assert result.exit_code == 2
    # The wording between option, limit and value depends on the version of typer.
    assert result.stderr.startswith("error: ")
    assert "--local-sites" in result.stderr
    assert "100" in result.stderr
    assert "64" in result.stderr


def test_train_with_a_method_is_baseline(invoke):
    by_option = invoke("train", "--method", "ditto", "--method", "fedavg", *DRY_RUN)
    assert by_option.exit_code == 0, by_option.stderr
    assert by_option.stdout == invoke("baseline", "ditto", "fedavg", *DRY_RUN).stdout


def test_train_refuses_an_unknown_method(invoke):
    result = invoke("train", "--method", "fedavgg", "--preset", "quickstart")
    assert result.exit_code == 2
    assert "'fedavgg'" in result.stderr
    assert "fedavg" in result.stderr
