"""Options that repeat an existing run with another method or seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.rerun_args import cli_args_for, parse_option_values
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs


def run_of(preset="quickstart", *assignments, setting="quickstart", method="ditto", seed=3, partition_seed=None):
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    for assignment in assignments:
        layers.add_assignment(assignment)
    return resolve_run_config(setting, layers, method, seed, DataDirs(), partition_seed)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, {}),
        ([], {}),
        (["train"], {}),
        (["train", "--preset", "a", "--preset=b", "--set"], {"--preset": "b", "--set": ""}),
        (["train", 3, "--seed", 4], {"--seed": "4"}),
    ],
)
def test_option_values_are_parsed(arguments, expected):
    assert parse_option_values(arguments) == expected


def test_changes_to_a_preset_become_options():
    changes = ("train.rounds=7", "data.alpha=0.3", "train.optimizer=sgd", "methods.ditto.mu=3")
    words = ["--set", "data.alpha=0.3", "--rounds", "7", "--set", "train.optimizer=sgd"]
    named = run_of("quickstart", *changes, setting="quickstart-alpha-0.3-optimizer-sgd")
    environment = {"arguments": ["train", "--preset", "quickstart"]}
    assert cli_args_for(named, environment, DataDirs()) == ["--preset", "quickstart", *words]
    # Without the name of the run, the command would find another one.
    run = run_of("quickstart", *changes)
    assert cli_args_for(run, {}, DataDirs()) == ["--preset", "quickstart", "--name", "quickstart", *words]


def test_augmentation_becomes_an_option_even_if_it_is_turned_off(tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text("train: {augment: crop}")
    environment = {"arguments": ["train", "--preset", "quickstart", "--config", str(file)]}
    words = ["--preset", "quickstart", "--config", str(file)]
    flipped = run_of("quickstart", "train.augment=flip", setting="quickstart-augment-flip")
    preset = {"arguments": ["train", "--preset", "quickstart"]}
    assert cli_args_for(flipped, preset, DataDirs()) == ["--preset", "quickstart", "--set", "train.augment=flip"]
    cropped = run_of("quickstart", "train.augment=crop", setting="quickstart-augment-crop")
    assert cli_args_for(cropped, environment, DataDirs()) == words
    assert cli_args_for(run_of(), environment, DataDirs()) == [*words, "--set", "train.augment=none"]


def test_values_without_effect_on_results_are_omitted():
    run = run_of("quickstart", "train.workers=1", "train.execution=threads", "train.checkpoint_every=3")
    assert cli_args_for(run, {"arguments": ["train", "--workers", "1", "--device", "cpu"]}, DataDirs()) == [
        *("--preset", "quickstart", "--device", "cpu")
    ]


def test_federation_options_are_kept_unless_sites_were_simulated():
    arguments = ["train", "--engine", "flower", "--federation", "ours"]
    for more, words in (([], arguments[1:]), (["--simulate-sites", "10"], []), (["--local-sites", "10"], [])):
        found = cli_args_for(run_of(), {"arguments": [*arguments, *more]}, DataDirs())
        assert found == ["--preset", "quickstart", *words]


def test_shards_are_named_relative_to_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_of(setting="mine", seed=1, partition_seed=5)
    arguments = ["train", "--preset", "quickstart", "--shards", "../elsewhere/mine"]
    for place, shown in ((tmp_path / "mine", "mine"), (Path("/far/mine"), "/far/mine")):
        environment = {"arguments": arguments, "shards": str(place)}
        assert cli_args_for(run, environment, DataDirs()) == ["--preset", "quickstart", "--shards", shown]


def test_moved_shards_are_found_by_their_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_of(setting="mine", seed=1, partition_seed=5)
    environment = {"arguments": ["train", "--shards", "data/mine"], "shards": "/far/data/mine", "shards_digest": "a"}
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for digest, shown in (("a", "data/mine"), ("b", "/far/data/mine")):
        (tmp_path / "data" / "mine" / "manifest.json").write_text(json.dumps({"digest": digest}))
        assert cli_args_for(run, environment, DataDirs())[:2] == ["--shards", shown]


def test_recorded_files_are_found_in_the_recorded_directory(tmp_path, monkeypatch):
    run = run_of("quickstart", "train.lr=0.5", setting="mine-lr-0.5")
    arguments = ["train", "--preset", "mine.yaml", "--config", "own.yaml"]
    environment = {"arguments": arguments, "directory": str(tmp_path)}
    # Without the preset, differences from it are unknown: only its name is returned.
    assert cli_args_for(run, environment, DataDirs()) == ["--preset", "mine.yaml"]
    (tmp_path / "mine.yaml").write_text("extends: quickstart\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    preset = ["--preset", str(tmp_path / "mine.yaml")]
    assert cli_args_for(run, environment, DataDirs()) == [*preset, "--set", "train.lr=0.5"]
    (tmp_path / "own.yaml").write_text("train:\n  lr: 0.5\n")
    assert cli_args_for(run, environment, DataDirs()) == [*preset, "--config", str(tmp_path / "own.yaml")]
    monkeypatch.chdir(tmp_path)
    assert cli_args_for(run, environment, DataDirs()) == ["--preset", "mine.yaml", "--config", "own.yaml"]


def test_an_experiment_name_is_kept():
    run = run_of("quickstart", "data.public_size=50", setting="small-u")
    environment = {"arguments": ["train", "--preset", "quickstart", "--name", "small-u"]}
    words = ["--preset", "quickstart", "--name", "small-u", "--set", "data.public_size=50"]
    assert cli_args_for(run, environment, DataDirs()) == words
    environment = {"arguments": ["train", "--shards", "/far/mine", "--name", "small-u"], "shards": "/far/mine"}
    assert cli_args_for(run, environment, DataDirs())[:4] == ["--shards", "/far/mine", "--name", "small-u"]
