"""Shell completion in bash: commands are loaded when needed, and torch never."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedmosaic_cli.cli import completion
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import preset_names
from fedmosaic_cli.data.datasets import DATASETS
from fedmosaic_cli.methods.registry import METHODS

# As the shell calls the console script; it prints torch if the command has imported it.
SCRIPT = """
import atexit, sys
atexit.register(lambda: print("torch") if "torch" in sys.modules else None)
from fedmosaic_cli.cli.app import app
app(prog_name="fedmosaic")
"""


def completed(line, tmp_path, **environment):
    """What bash offers for the last word of the line."""
    words = line.split(" ")
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_FEDMOSAIC_COMPLETE": "complete_bash"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **variables, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    assert result.returncode == 0
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedmosaic tr", ["train"]),
        ("fedmosaic train --stop", ["--stop-timeout"]),
        ("fedmosaic train --preset lowdata-c", ["lowdata-cifar10", "lowdata-cifar10-dir01"]),
        ("fedmosaic train --method dit", ["ditto"]),
        ("fedmosaic train --model vit-", ["vit-tiny"]),
        ("fedmosaic train --dataset domainn", ["domainnet"]),
        ("fedmosaic train --expertise count", ["count", "count-confidence"]),
        ("fedmosaic train --set train.lr", ["train.lr="]),
        ("fedmosaic train --preset quickstart --set methods.ditto.", ["methods.ditto.mu="]),
        ("fedmosaic baseline ditto al", ["all"]),
        ("fedmosaic partition --scheme pa", ["pathological"]),
        ("fedmosaic presets show public-si", ["public-size-cifar10"]),
        ("fedmosaic reproduce label", ["label-skew"]),
        ("fedmosaic reproduce hybrid --methods fedavg,dit", ["fedavg,ditto"]),
        ("fedmosaic check-method scaf", ["scaffold"]),
        ("fedmosaic fetch domainn", ["domainnet"]),
        ("fedmosaic train --device c", ["cpu", "cuda"]),
        ("fedmosaic train --preset no-such", []),
    ],
)
def test_bash_completes_names_without_torch(line, expected, tmp_path):
    assert completed(line, tmp_path) == expected


def test_all_names_are_offered():
    assert completion.complete_preset("") == preset_names()
    assert completion.complete_method("") == list(METHODS)
    assert completion.complete_baseline("") == ["all", *METHODS]
    assert completion.complete_dataset("") == list(DATASETS)


def test_every_offered_key_is_a_key():
    keys = completion.complete_assignment("")
    assert len(keys) == len(set(keys))
    assert {key.partition(".")[0] for key in keys} == {
        *("data", "model", "train", "privacy", "attack", "defence", "methods")
    }
    layers = ConfigLayers()
    for key in keys:
        layers.add_assignment(f"{key}null")
    assert layers.notices == [], "the names are the new ones"
