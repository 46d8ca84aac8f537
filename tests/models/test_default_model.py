"""The network of runs that name no model: chosen by the size of the images, and kept when an older run continues."""

from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.config.rerun_args import cli_args_for
from fedmosaic_cli.config.run_config import load_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.models.default_model import default_model
from fedmosaic_cli.models.model_settings import ModelSettings
from tests.data.files import save_images


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 8, 8), "mlp"),
        ((3, 15, 40), "mlp"),
        ((1, 16, 16), "cnn"),
        ((3, 32, 32), "cnn"),
        ((3, 95, 200), "cnn"),
        ((3, 96, 96), "resnet8"),
        ((1, 256, 256), "resnet8"),
    ],
)
def test_default_depends_on_the_shorter_side(shape, name):
    assert default_model(shape) == ModelSettings(name=name)


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in an empty directory with a folder of images, and return what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMOSAIC_CACHE", str(tmp_path / "cache"))
    for label in ("cat", "dog"):
        save_images(tmp_path / "mine" / label, 40, side=16, ending="png")

    def call(line):
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code == 0, done.output
        return done.output

    return call


def partition(invoke):
    invoke("partition --scheme iid --clients 2 --dataset folder --data-dir mine --public-size 10 --out shards -q")


def model_of(path):
    return yaml.safe_load((path / "config.yaml").read_text())["model"]


def planned_parameters(invoke, line):
    (run,) = json.loads(invoke(f"{line} --dry-run --json"))["runs"]
    return run["parameters"]


def test_run_on_own_images_has_a_convolutional_network(invoke, tmp_path):
    partition(invoke)
    invoke("baseline local --shards shards --rounds 1 -q --run-dir run")
    assert model_of(tmp_path / "run")["name"] == "cnn"
    (tmp_path / "own.yaml").write_text("data: {dataset: folder, scheme: iid, clients: 2, public_size: 10}\n")
    preset = planned_parameters(invoke, "baseline local --preset own.yaml --data-dir mine")
    assert preset == planned_parameters(invoke, "baseline local --shards shards")
    assert preset == planned_parameters(invoke, "baseline local --shards shards --model cnn")


def test_shards_tell_the_size_of_images_that_are_elsewhere(invoke, tmp_path):
    invoke("partition --scheme iid --clients 2 --dataset folder --data-dir mine --public-size 10 --out s --export -q")
    (tmp_path / "mine").rename(tmp_path / "moved")
    invoke("baseline local --shards s --rounds 1 -q --run-dir run")
    assert model_of(tmp_path / "run")["name"] == "cnn"


@pytest.mark.parametrize("option", ["--model mlp", "--set model.hidden=[8]", "--config file.yaml"])
def test_named_model_is_not_replaced(invoke, tmp_path, option):
    partition(invoke)
    (tmp_path / "file.yaml").write_text("model: {name: mlp}\n")
    invoke(f"baseline local --shards shards --rounds 1 -q --run-dir run {option}")
    assert model_of(tmp_path / "run")["name"] == "mlp"


def test_run_with_another_default_continues_with_its_model(invoke, tmp_path):
    partition(invoke)
    train = "baseline local --shards shards --set train.checkpoint_every=1 -q"
    for name, rounds in (("whole", 3), ("old", 1)):  # the default of older versions
        invoke(f"{train} --rounds {rounds} --run-dir {name} --model mlp")
    invoke(f"{train} --rounds 3 --run-dir old --resume")
    for path in ("rounds.jsonl", "models/client-000.safetensors", "models/client-001.safetensors", "config.yaml"):
        assert (tmp_path / "old" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes(), path
    assert model_of(tmp_path / "old")["name"] == "mlp"


def test_a_model_that_was_chosen_is_not_taken_for_the_old_default(invoke, monkeypatch):
    partition(invoke)
    train = "baseline local --shards shards --rounds 1 -q --run-dir run"
    monkeypatch.setattr("sys.argv", ["fedmosaic", *train.split(), "--model", "mlp"])
    invoke(f"{train} --model mlp")
    done = CliRunner().invoke(app, train.split())
    assert done.exit_code == 2
    assert "model.name was 'mlp' and is now 'cnn'" in done.stderr


def test_run_with_a_named_model_does_not_continue_with_the_default(invoke, tmp_path):
    partition(invoke)
    train = "baseline local --shards shards --set train.checkpoint_every=1 -q --run-dir run"
    invoke(f"{train} --rounds 1 --model resnet8")
    done = CliRunner().invoke(app, [*train.split(), "--rounds", "2", "--resume"])
    assert done.exit_code == 2
    assert "model.name was 'resnet8' and is now 'cnn'" in done.stderr


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_command_that_repeats_a_run_on_own_images_names_the_model(invoke, tmp_path, name):
    partition(invoke)
    invoke(f"baseline local --shards shards --rounds 1 -q --run-dir run --model {name}")
    config = load_run_config(tmp_path / "run" / "config.yaml", DataDirs())
    environment = {"arguments": ["baseline", "local", "--shards", "shards"], "shards": str(tmp_path / "shards")}
    words = cli_args_for(config, environment, DataDirs())
    assert f"model.name={name}" in words
