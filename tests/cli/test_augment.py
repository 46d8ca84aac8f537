"""`train.augment` on the command line: stored only if set, and without effect at its default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import yaml
from typer.testing import CliRunner

import fedmosaic_cli as fedmosaic
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.common_options import AugmentChoice
from fedmosaic_cli.engine.train_settings import AugmentMode
from tests.cli.test_cli import SHORT

# Times, and the command line with its digest.
UNSTABLE = ("timings.jsonl", "env.json", "SHA256SUMS", "manifest.json", ".lock")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a run that a repetition reproduces, by name."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if path.name not in UNSTABLE}


def test_the_option_has_the_values_of_the_key():
    assert [choice.value for choice in AugmentChoice] == list(get_args(AugmentMode))


def test_none_changes_no_byte_of_a_run(invoke):
    for folder, options in (("without", ()), ("set", ("--set", "train.augment=none")), ("flag", ("--augment", "none"))):
        result = invoke("train", *SHORT, "-q", "--run-dir", folder, *options)
        assert result.exit_code == 0, result.stderr
    without = contents(Path("without"))
    assert {"config.yaml", "rounds.jsonl", "summary.json", "models/client-000.safetensors"} <= without.keys()
    assert contents(Path("set")) == contents(Path("flag")) == without
    assert not [name for name, content in without.items() if b"augment" in content]


def test_option_and_key_are_stored_and_give_the_same_run(invoke):
    for folder, options in (("flag", ("--augment", "crop-flip")), ("set", ("--set", "train.augment=crop-flip"))):
        assert invoke("train", *SHORT, "-q", "--run-dir", folder, *options).exit_code == 0
    assert invoke("train", *SHORT, "-q", "--run-dir", "without").exit_code == 0
    assert contents(Path("flag")) == contents(Path("set"))
    assert yaml.safe_load(Path("flag/config.yaml").read_text())["train"]["augment"] == "crop-flip"
    assert json.loads(Path("flag/summary.json").read_text())["train"]["augment"] == "crop-flip"
    assert Path("flag/rounds.jsonl").read_bytes() != Path("without/rounds.jsonl").read_bytes()


def test_a_run_is_resumed_with_the_same_augmentation_only(invoke):
    local = ("baseline", "local", "--preset", "quickstart", "-q")
    assert invoke(*local, "--rounds", 3, "--augment", "crop", "--run-dir", "whole").exit_code == 0
    assert invoke(*local, "--rounds", 2, "--augment", "crop", "--run-dir", "parts").exit_code == 0
    refused = invoke(*local, "--rounds", 3, "--run-dir", "parts", "--resume")
    assert refused.exit_code == 2
    assert "train.augment was 'crop' and is now 'none'" in refused.stderr
    assert invoke(*local, "--rounds", 3, "--augment", "crop", "--run-dir", "parts", "--resume").exit_code == 0
    whole, parts = contents(Path("whole")), contents(Path("parts"))
    names = [name for name in whole if "checkpoints" not in name]
    assert {name: parts[name] for name in names} == {name: whole[name] for name in names}


def test_clients_without_a_network_are_named_in_a_warning(invoke):
    forest = ("--set", "clients.0-2.model=random-forest", "--set", "clients.3.model=decision-tree", "--dry-run")
    warning = "warning: clients with a random-forest or decision-tree are trained without augmentation"
    augmented = invoke("train", *SHORT, "--augment", "flip", *forest)
    assert augmented.exit_code == 0, augmented.stderr
    assert augmented.stderr.count(warning) == 1
    assert f"{warning} (train.augment flip)" in augmented.stderr.splitlines()
    assert "augmentation" not in invoke("train", *SHORT, *forest).stderr
    assert "augmentation" not in invoke("train", *SHORT, "--augment", "flip", "--dry-run").stderr


def test_the_python_api_accepts_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = {"train.augment": "crop", "train.rounds": 1, "model.name": "random-forest", "model.trees": 3}
    experiment = fedmosaic.Experiment("quickstart", method="local", overrides=overrides)
    assert experiment.config.train.augment == "crop"
    with pytest.warns(fedmosaic.FedMosaicWarning, match="random-forest are trained without augmentation"):
        list(experiment.rounds())


@pytest.mark.parametrize("option", [("--augment", "mirror"), ("--set", "train.augment=mirror")])
def test_unknown_values_are_refused_with_the_allowed_ones(invoke, option):
    result = invoke("train", *SHORT, *option)
    assert result.exit_code == 2
    assert all(f"'{mode}'" in result.stderr for mode in ("none", "flip", "crop", "crop-flip"))


def test_dry_run_shows_the_key_if_it_is_set_and_plans_the_same_work(invoke):
    plain, augmented = (
        json.loads(invoke("train", *SHORT, "--dry-run", "--json", *options).stdout)
        for options in ((), ("--augment", "crop"))
    )
    shown = {entry["key"]: (entry["value"], entry["origin"]) for entry in augmented["configuration"]}
    assert shown["train.augment"] == ("crop", "flag")
    assert augmented["runs"] == plain["runs"]


def test_suggested_commands_repeat_the_option(invoke):
    result = invoke("train", *SHORT, "--augment", "crop")
    assert result.exit_code == 0, result.stderr
    [line] = [line for line in result.output.splitlines() if line.startswith("next: ")]
    assert "--augment crop" in line
