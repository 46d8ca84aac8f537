"""The list of presets: groups, durations and data sets."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli import console
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.views import presets_view
from fedmosaic_cli.config.presets import DURATIONS, load_preset, preset_names
from tests.data.files import write_cifar


def listed(*options):
    result = CliRunner().invoke(app, ["presets", "list", *map(str, options)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def facts(tmp_path):
    return {each["name"]: each for each in json.loads(listed("--json", "--data-dir", tmp_path))}


def test_all_presets_are_listed_with_their_descriptions_in_a_pipe(tmp_path):
    lines = listed("--data-dir", tmp_path).splitlines()
    for name in preset_names():
        [line] = [line for line in lines if line.split()[:1] == [name]]
        assert line.rstrip().endswith(load_preset(name).description)


def test_the_quickstart_is_first_and_groups_follow(tmp_path):
    lines = [line.rstrip() for line in listed("--data-dir", tmp_path).splitlines()]
    headings = [line for line in lines if line and not line.startswith((" ", "preset", "Times", "more"))]
    assert headings == [
        "Quickstart",
        "Few examples per client",
        "Paper, table label-skew",
        "Paper, table feature-shift",
        "Paper, table hybrid",
        "Other studies",
    ]
    assert lines[lines.index("Quickstart") + 1].split()[0] == "quickstart"


def test_each_preset_has_one_line_at_80_columns(facts, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(console, "PIPE_WIDTH", 80)
    presets_view.show_presets([presets_view.PresetFacts(**each) for each in facts.values()])
    lines = capsys.readouterr().out.splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("Times"))]
    assert max(map(len, table)) <= 80
    assert [line.split()[0] for line in table if line.startswith("  ") and line.split()] == [
        each["name"] for group in presets_view.group_names() for each in facts.values() if each["group"] == group
    ]


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_says_how_long_it_takes(name):
    preset = load_preset(name)
    assert preset.duration in DURATIONS
    assert re.search(r"^# .*(Time:|takes)", preset.path.read_text(), re.MULTILINE), "the comment has the measurement"


def test_facts_as_json(facts):
    assert facts["quickstart-label-skew"] == {
        "name": "quickstart-label-skew",
        "description": load_preset("quickstart-label-skew").description,
        "group": "Quickstart",
        "duration": "seconds",
        "rounds": 30,
        "clients": 10,
        "dataset": "digits",
        "dataset_found": True,
        "tables": ["label-skew"],
    }
    assert facts["hybrid-office10"]["tables"] == ["hybrid", "compact"]
    assert facts["public-size-cifar10"]["tables"] == []


def test_a_missing_data_set_is_marked(facts, tmp_path):
    assert not facts["practical-cifar10"]["dataset_found"]
    assert "cifar10 (missing)" in listed("--data-dir", tmp_path)
    write_cifar(tmp_path / "cifar-10-batches-py")
    assert "cifar10 (missing)" not in listed("--data-dir", tmp_path)


def test_the_duration_of_a_preset_is_not_inherited(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: quickstart\ntrain: {rounds: 7}\n")
    preset = load_preset(str(tmp_path / "mine.yaml"))
    assert preset.duration == ""
    facts = presets_view.preset_facts(preset, tmp_path)
    assert presets_view.duration_text(facts) == "7 rounds, 10 clients"
