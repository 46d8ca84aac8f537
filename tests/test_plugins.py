"""Methods, models and data sets from outside the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmosaic_cli import plugin_sources, plugins
from fedmosaic_cli.data.datasets import DATASETS
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS, STORED_INFO
from fedmosaic_cli.models.registered_models import MODELS
from tests.conftest import fedmosaic

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
SHORT = ("--preset", "quickstart", "--rounds", "2", "--name", "quickstart", "--tag", "")
METHOD = """
from fedmosaic_cli import FedAvg

class Mine(FedAvg):
    strength: float = 0.5
"""


@pytest.fixture(autouse=True)
def clean_registries():
    """Undo all registrations of a test."""
    registries = (METHODS, MODELS, DATASETS, STORED_INFO, plugin_sources.SOURCES, plugin_sources.REFERENCES)
    before = [dict(registry) for registry in registries]
    yield
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


def write(folder: Path, name: str, text: str) -> str:
    """Write a plug-in and return its path."""
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_class_becomes_a_method_with_its_own_name_and_hyperparameters(tmp_path):
    name = plugins.resolve_method(f"{write(tmp_path, 'mine.py', METHOD)}:Mine")
    assert name == "mine"
    assert METHODS["mine"](strength=0.1).strength == 0.1
    assert METHODS["mine"].info.title == "Mine"
    with pytest.raises(Exception, match=r"frozen|assign"):
        METHODS["mine"]().strength = 1.0


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (METHOD, "Other", "unknown name 'Other'"),
        ("class Mine:\n    pass\n", "Mine", "is not a method"),
        ("import nothing_like_this\n", "Mine", "line 1"),
        ("def broken(:\n", "Mine", "line 1"),
        ("1 / 0\n", "Mine", "ZeroDivisionError: division by zero"),
        ("from fedmosaic_cli import Method\nclass Mine(Method):\n    pass\n", "Mine", "does not define local_round"),
        (METHOD + "    def aggregate(self, uploads):\n        pass\n", "Mine", "aggregate has other parameters"),
        (METHOD.replace(" = 0.5", ""), "Mine", "strength has no default"),
    ],
)
def test_invalid_plugins_are_refused_in_one_line_with_their_place(tmp_path, text, name, words):
    path = write(tmp_path, "mine.py", text)
    with pytest.raises(RequestError) as error:
        plugins.resolve_method(f"{path}:{name}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert "mine.py" in str(error.value)


def test_a_built_in_name_cannot_be_replaced(tmp_path):
    text = METHOD + "    info = __import__('dataclasses').replace(FedAvg.info, name='ditto')\n"
    with pytest.raises(RequestError, match="the name 'ditto' is taken"):
        plugins.resolve_method(f"{write(tmp_path, 'mine.py', text)}:Mine")


def test_unknown_words_get_a_suggestion():
    with pytest.raises(RequestError, match="did you mean 'ditto'"):
        plugins.resolve_method("dito")
    with pytest.raises(RequestError, match=r"write mine\.py:NAME"):
        plugins.resolve_method("mine.py")
    with pytest.raises(RequestError, match="no module 'nothing_like_this'"):
        plugins.load_plugin("nothing_like_this")


def test_a_module_may_register_by_decorators(tmp_path):
    text = (
        "import fedmosaic_cli as fedmosaic\n@fedmosaic.method\nclass Decorated(fedmosaic.Local):\n    pass\n"
        "fedmosaic.register_dataset('ones', __import__('numpy').ones((40, 4, 4), 'uint8'), [0, 1] * 20)\n"
    )
    plugins.load_plugin(write(tmp_path, "mine.py", text))
    assert "decorated" in METHODS
    assert "ones" in DATASETS


def test_example_files_are_short():
    for name in ("my_method.py", "my_model.py"):
        assert len((EXAMPLES / name).read_text().splitlines()) <= 25


def test_own_method_model_and_data_train_report_and_resume(tmp_path):
    references = (
        *("--method", str(EXAMPLES / "my_method.py:MyMethod"), "--model", str(EXAMPLES / "my_model.py:MyModel")),
        *("--dataset", str(EXAMPLES / "my_data.py:my_data")),
    )
    done = fedmosaic("train", *SHORT, *references, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "quickstart" / "my-method" / "seed-0"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["method_info"]["title"] == "MyMethod"
    assert set(summary["plugins"]) == {"methods.my-method", "models.my-model", "datasets.my-data"}
    assert summary["model"]["name"] == "my-model"
    reported = fedmosaic("report", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    assert "MyMethod" in reported.stdout
    longer = fedmosaic("train", *SHORT, "--rounds", "3", "--resume", *references, cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    without = fedmosaic("evaluate", str(run), cwd=tmp_path)
    assert without.returncode == 2
    assert "unknown method 'my-method'" in without.stderr
    evaluated = fedmosaic("evaluate", str(run), *references, cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr


def test_a_changed_plugin_is_refused_on_resume(tmp_path):
    reference = f"{write(tmp_path, 'mine.py', METHOD)}:Mine"
    assert fedmosaic("train", *SHORT, "--method", reference, cwd=tmp_path).returncode == 0
    write(tmp_path, "mine.py", METHOD + "# changed\n")
    again = fedmosaic("train", *SHORT, "--rounds", "4", "--resume", "--method", reference, cwd=tmp_path)
    assert again.returncode == 2
    assert "the plug-in methods.mine was mine.py" in again.stderr
    assert again.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("phase", "arguments"),
    [("aggregate", "self, server, uploads, ctx"), ("local_round", "self, client, received, ctx")],
)
def test_an_exception_in_a_plugin_names_file_and_line(tmp_path, phase, arguments):
    text = METHOD + f"    def {phase}({arguments}):\n        return [][1]\n"
    done = fedmosaic("train", *SHORT, "--method", f"{write(tmp_path, 'mine.py', text)}:Mine", cwd=tmp_path)
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"IndexError in {phase}: list index out of range" in line
    assert "mine.py, line 7)" in line
    assert "Traceback" not in done.stderr


def test_stored_files_never_import_code(tmp_path):
    """A run names its method; the file that defined it is not imported unless the user names it."""
    marker = tmp_path / "imported"
    text = METHOD + f"\nopen({str(marker)!r}, 'a').write('x')\n"
    reference = f"{write(tmp_path, 'mine.py', text)}:Mine"
    assert fedmosaic("train", *SHORT, "--method", reference, cwd=tmp_path).returncode == 0
    assert marker.read_text() == "x"
    for command in (("report",), ("evaluate", "runs/quickstart/mine/seed-0"), ("train", *SHORT, "--resume")):
        fedmosaic(*command, cwd=tmp_path)
    assert marker.read_text() == "x"


class TestModels:
    """Any torch module that returns logits can be a model."""

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("def Net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3, 10))\n", "cannot process images"),
            ("def Net(hidden):\n    return nn.Flatten()\n", "needs 'hidden'"),
            ("def Net():\n    return nn.Flatten()\n", "has no linear layer"),
            ("def Net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n", "3 outputs for 10 classes"),
            (
                "def Net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))\n",
                "no softmax",
            ),
        ],
    )
    def test_unusable_networks_are_refused_in_one_line(self, tmp_path, text, words):
        reference = f"{write(tmp_path, 'net.py', 'from torch import nn' + chr(10) + text)}:Net"
        done = fedmosaic("train", *SHORT, "--model", reference, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "runs").exists()

    def test_dropout_is_reproducible(self, tmp_path):
        model = ("--model", str(EXAMPLES / "my_model.py:MyModel"))
        rounds = []
        for workers in ("1", "3"):
            done = fedmosaic(
                "baseline", "fedavg", *SHORT, *model, "--workers", workers, "--runs-dir", workers, cwd=tmp_path
            )
            assert done.returncode == 0, done.stderr
            rounds.append((tmp_path / workers / "quickstart" / "fedavg" / "seed-0" / "rounds.jsonl").read_bytes())
        assert rounds[0] == rounds[1]


class TestDatasets:
    """Arrays, pairs and torch data sets."""

    def load(self, *values, **options):
        plugins.register_dataset("mine", *values, **options)
        return DATASETS["mine"].load(Path(), None)

    def test_arrays_with_names_as_labels(self):
        dataset = self.load(np.zeros((4, 5, 6), np.uint8), ["b", "a", "b", "a"])
        assert dataset.images.shape == (4, 5, 6, 1)
        assert dataset.class_names == ("a", "b")
        assert dataset.labels.tolist() == [1, 0, 1, 0]

    def test_a_torch_data_set_of_float_images(self):
        class Pairs(torch.utils.data.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                return torch.full((3, 4, 4), index / 10), index % 3

        dataset = self.load(Pairs())
        assert dataset.images.shape == (6, 4, 4, 3)
        assert dataset.images[2, 0, 0, 0] == 51
        assert dataset.num_classes == 3

    @pytest.mark.parametrize(
        ("images", "labels", "words"),
        [
            (np.zeros((4, 5, 6)), [0] * 4, "uint8"),
            (np.zeros((4, 5, 6), np.uint8), [0] * 3, "one per image"),
            (np.zeros((4, 5, 6), np.uint8), [-1, 0, 1, 2], "number them from 0"),
            (3, None, "is no data set"),
        ],
    )
    def test_unusable_data_is_refused(self, images, labels, words):
        with pytest.raises(RequestError, match=words):
            self.load(images, labels)


def test_entry_points_are_used_by_name(tmp_path, monkeypatch):
    """An installed distribution offers a method; its version is recorded."""
    package = tmp_path / "site"
    info = package / "their_methods-1.2.dist-info"
    info.mkdir(parents=True)
    (package / "their_methods.py").write_text(METHOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[fedmosaic.methods]\ntheirs = their_methods:Mine\n")
    monkeypatch.syspath_prepend(str(package))
    assert plugins.resolve_method("theirs") == "mine"
    assert plugin_sources.SOURCES["methods", "mine"].distribution == "their-methods 1.2"
    sys.modules.pop("their_methods")


def test_help_and_errors_do_not_import_torch(tmp_path):
    code = "import sys, fedmosaic_cli.plugins; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "False"
