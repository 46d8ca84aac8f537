"""Renamed configuration keys: accepted as input, stored under the keys of version 0.1.0."""

from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.config.key_names import (
    STORED_KEYS,
    STORED_VALUES,
    display_assignment,
    display_key,
    display_value,
    stored_key,
)
from fedmosaic_cli.config.layers import ConfigLayers, field_names
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.run_config import resolve_run_config, run_config_from_dict
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import method_schema

SPELLINGS = [
    ("data.fraction=0.5", "data.share=0.5"),
    ("data.public_pool_size=600", "data.public_from=600"),
    ("train.image_device=host", "train.images=host"),
    ("methods.fedmosaic.voter=local", "methods.fedmosaic.votes_from=shadow"),
    ("methods.fedmosaic.voter=model", "methods.fedmosaic.votes_from=self"),
    ("methods.fedmosaic.voter=outlier-exposed", "methods.fedmosaic.votes_from=doubting"),
    ("methods.gated.outlier_weight=0.5", "methods.gated.doubt=0.5"),
    ("methods.gated.warmup_fraction=0.3", "methods.gated.warmup_share=0.3"),
]


def quickstart(*assignments: str) -> ConfigLayers:
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart").layers)
    for assignment in assignments:
        layers.add_assignment(assignment)
    return layers


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_renamed_keys_exist():
    for section, keys in STORED_KEYS.items():
        schema = {"data": DataSettings, "train": TrainSettings, "methods": method_schema("gated")}[section]
        assert set(keys.values()) <= set(field_names(schema))
        assert not set(keys) & set(field_names(schema))


@pytest.mark.parametrize(("new", "old"), SPELLINGS)
def test_both_spellings_store_the_same(new, old):
    method = "gated" if "gated" in new else "fedmosaic"
    by_new, by_old, default = (
        resolve_run_config("x", quickstart(*spelling), method, 0, DataDirs()).to_dict()
        for spelling in ([new], [old], [])
    )
    assert by_new == by_old
    assert (by_new == default) == (new == "methods.fedmosaic.voter=model")


@pytest.mark.parametrize(("new", "old"), SPELLINGS)
def test_only_the_old_spelling_causes_a_notice(new, old):
    assert quickstart(new).notices == []
    notices = quickstart(old, old).notices
    assert notices[0] == f"{old.partition('=')[0]} is now {new.partition('=')[0]}"
    assert len(notices) == (2 if "votes_from" in old else 1)


def test_a_stored_configuration_causes_no_notice():
    config = resolve_run_config("x", quickstart("methods.gated.voter=local"), "gated", 0, DataDirs())
    assert config.to_dict()["methods"]["gated"]["votes_from"] == "shadow"
    assert run_config_from_dict(config.to_dict(), "config.yaml", DataDirs()) == config
    layers = ConfigLayers()
    layers.add("config.yaml", {"methods": config.to_dict()["methods"]}, is_stored=True)
    assert layers.notices == []


def test_a_stored_configuration_has_stored_keys_only():
    content = resolve_run_config("x", quickstart(), "local", 0, DataDirs()).to_dict()
    content["data"]["fraction"] = 0.5
    with pytest.raises(RequestError, match=r"data\.fraction"):
        run_config_from_dict(content, "config.yaml", DataDirs())


def test_both_spellings_in_one_section_are_refused():
    with pytest.raises(RequestError, match=r"both fraction and share are given \(data\): use fraction"):
        ConfigLayers().add("file", {"data": {"fraction": 0.5, "share": 0.5}})


def test_a_later_spelling_overrides_an_earlier_one():
    layers = quickstart("data.share=0.5", "data.fraction=0.25")
    assert layers.values["data"]["share"] == 0.25


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("data.share=2", "data.fraction is 2 (--set): it must be"),
        ("data.fraction=2", "data.fraction is 2 (--set): it must be"),
        ("methods.fedmosaic.voter=me", "methods.fedmosaic.voter is 'me' (--set): it must be 'model', 'local' or"),
        ("data.fractoin=1", "data.fraction"),
        ("methods.fedmosaic.outlier_weight=1", "methods.fedmosaic.outlier_weight has no effect on FedMosaic"),
        ("data.public_pool_size=1", "(data.public_pool_size)"),
    ],
)
def test_errors_show_the_new_names(assignment, words):
    with pytest.raises(RequestError) as error:
        resolve_run_config("x", quickstart(assignment), "fedmosaic", 0, DataDirs())
    assert words in str(error.value)
    assert "share" not in str(error.value)


def test_the_command_line_prints_notices_and_shows_new_names(invoke, tmp_path):
    (tmp_path / "more.yaml").write_text(yaml.safe_dump({"methods": {"fedmosaic": {"votes_from": "shadow"}}}))
    options = ("--preset", "quickstart", "--set", "data.share=0.9", "--config", "more.yaml", "--dry-run", "--json")
    result = invoke("train", *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines()[:3] == [
        "note: methods.fedmosaic.votes_from is now methods.fedmosaic.voter",
        "note: methods.fedmosaic.voter shadow is now local",
        "note: data.share is now data.fraction",
    ]
    shown = {entry["key"]: (entry["value"], entry["origin"]) for entry in json.loads(result.stdout)["configuration"]}
    assert shown["data.fraction"] == (0.9, "--set")
    assert shown["methods.fedmosaic.voter"] == ("local", "file more.yaml")
    assert not {"data.share", "methods.fedmosaic.votes_from"} & shown.keys()


def test_a_run_stores_old_keys_and_resumes_without_notice(invoke, tmp_path):
    options = (
        "--preset",
        "quickstart",
        "--set",
        "train.image_device=host",
        "--name",
        "mine",
        "--set",
        "data.fraction=0.9",
    )
    assert invoke("baseline", "local", *options, "-q", "--rounds", 1).exit_code == 0
    stored = yaml.safe_load((tmp_path / "runs/mine/local/seed-0/config.yaml").read_text())
    assert (stored["train"]["images"], stored["data"]["share"]) == ("host", 0.9)
    resumed = invoke("baseline", "local", *options, "-q", "--rounds", 2, "--resume")
    assert (resumed.exit_code, resumed.stderr) == (0, "")
    changed = invoke("baseline", "local", *options[:-1], "data.fraction=0.8", "--rounds", 2, "--resume")
    assert changed.exit_code == 2
    assert "data.fraction was 0.9 and is now 0.8" in changed.stderr


def test_presets_use_new_names():
    for name in preset_names():
        layers = ConfigLayers()
        layers.add_all(load_preset(name).layers)
        assert layers.notices == []


def test_names_translate_both_ways():
    for section, keys in STORED_KEYS.items():
        prefix = "methods.gated" if section == "methods" else section
        for new, stored in keys.items():
            assert display_key(f"{prefix}.{stored}") == f"{prefix}.{new}"
            assert stored_key(f"{prefix}.{new}") == f"{prefix}.{stored}"
    for new, stored in STORED_VALUES["voter"].items():
        assert display_value("methods.gated.votes_from", stored) == new
    assert display_assignment("methods.gated.votes_from=shadow") == "methods.gated.voter=local"
    assert display_assignment("train.lr=0.1") == "train.lr=0.1"
    assert display_key("seed") == "seed"


def test_a_method_that_stores_the_new_name_of_another_method_accepts_it():
    layers = ConfigLayers()
    layers.add_assignment("methods.student.outlier_weight=0.5")
    layers.add_assignment("methods.gated.outlier_weight=0.25")
    assert layers.values["methods.student"] == {"outlier_weight": 0.5}
    assert layers.values["methods.gated"] == {"doubt": 0.25}
