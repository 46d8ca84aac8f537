"""The Python API: the same files as the command line, results as DataFrames, one-line errors, a fast import."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmosaic_cli as fedmosaic
from tests.conftest import fedmosaic as command

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "python-api.md"
EXAMPLES = ROOT / "docs" / "examples"
SHORT = {"train.rounds": 2}
IDENTICAL = ("rounds.jsonl", "summary.json", "config.yaml", "shards.json")


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Run every test in an empty directory, and forget what it registers."""
    from fedmosaic_cli.data.datasets import DATASETS
    from fedmosaic_cli.methods.registry import METHODS
    from fedmosaic_cli.models.registered_models import MODELS
    from fedmosaic_cli.plugin_sources import REFERENCES, SOURCES

    registries: list[dict[Any, Any]] = [METHODS, SOURCES, REFERENCES, MODELS, DATASETS]
    contents = [dict(registry) for registry in registries]
    monkeypatch.chdir(tmp_path)
    yield
    for registry, content in zip(registries, contents, strict=True):
        registry.clear()
        registry.update(content)


def result_bytes(run: Path) -> dict[str, bytes]:
    """The content of the files that do not depend on time or command line."""
    files = [*(run / name for name in IDENTICAL), *sorted((run / "models").iterdir())]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def tree_bytes(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def import_in_new_process(script: str) -> None:
    root = str(Path(fedmosaic.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


# Import


def test_the_import_loads_no_large_library():
    import_in_new_process(
        "import sys\n"
        "before = set(sys.modules)\n"
        "import fedmosaic_cli\n"
        "loaded = {name for name in set(sys.modules) - before if '.' not in name}\n"
        "assert not {'torch', 'pandas', 'pydantic', 'matplotlib', 'numpy', 'yaml', 'rich'} & loaded, loaded\n"
        "assert {name for name in sys.modules if name.startswith('fedmosaic_cli.')} == set()\n"
    )


def test_methods_can_be_defined_and_experiments_configured_without_torch():
    import_in_new_process(
        "import sys\n"
        "import fedmosaic_cli as fedmosaic\n"
        "@fedmosaic.method\n"
        "class Mine(fedmosaic.FedAvg):\n"
        "    mu: float = 0.1\n"
        "assert fedmosaic.Experiment('quickstart', method=Mine(mu=2.0)).config.method.mu == 2.0\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_every_export_resolves_and_is_listed():
    assert len(set(fedmosaic.__all__)) == len(fedmosaic.__all__)
    for name in fedmosaic.__all__:
        assert getattr(fedmosaic, name) is not None, name
    assert set(fedmosaic.__all__) <= set(dir(fedmosaic))
    with pytest.raises(AttributeError, match="no attribute 'Experimnet'"):
        _ = fedmosaic.Experimnet


def test_type_checkers_see_every_export():
    text = Path(fedmosaic.__file__).read_text(encoding="utf-8")
    declared = text.partition("if TYPE_CHECKING:")[2].partition("__version__")[0]
    names = set(re.findall(r"\w+", " ".join(re.findall(r"import (.*)", declared))))
    assert names - {"Any"} == set(fedmosaic.__all__)


@pytest.mark.parametrize("first", ["import fedmosaic_cli.report.collect", "pass"])
def test_report_is_a_function_and_still_a_package(first):
    import_in_new_process(
        f"{first}\n"
        "import fedmosaic_cli\n"
        "try:\n"
        "    fedmosaic_cli.report('nowhere')\n"
        "except fedmosaic_cli.FedMosaicError as error:\n"
        "    assert 'no such directory (nowhere)' in str(error)\n"
        "import fedmosaic_cli.report.collect as collect\n"
        "assert fedmosaic_cli.report.collect is collect\n"
    )


# Runs


def test_a_run_has_the_bytes_of_the_command_line(tmp_path):
    (tmp_path / "cli").mkdir()
    arguments = ("--preset", "quickstart", "--rounds", "2", "--set", "methods.fedmosaic.warmup_rounds=1")
    done = command("train", *arguments, "--quiet", cwd=tmp_path / "cli")
    assert done.returncode == 0, done.stderr
    overrides = {**SHORT, "methods.fedmosaic.warmup_rounds": 1}
    result = fedmosaic.Experiment("quickstart", overrides=overrides).run()
    assert result.path == Path("runs/quickstart/fedmosaic-entropy-warmup-rounds-1/seed-0")
    expected = tmp_path / "cli" / result.path
    assert result_bytes(result.path) == result_bytes(expected)
    assert {path.name for path in result.path.iterdir()} == {path.name for path in expected.iterdir()}
    assert tree_bytes(Path("shards")) == tree_bytes(tmp_path / "cli" / "shards")


def test_the_directory_of_a_run_does_not_change_its_bytes():
    experiment = fedmosaic.Experiment("quickstart", "local", overrides=SHORT, name="mine")
    default, other = experiment.run(), experiment.run(out="elsewhere/mine")
    assert other.path == Path("elsewhere/mine")
    assert result_bytes(default.path) == result_bytes(other.path)
    assert {path.name for path in Path().iterdir()} == {"runs", "elsewhere", "shards"}


@pytest.mark.parametrize("every", [1, 10])
def test_an_interrupted_run_continues_with_the_same_bytes(every):
    overrides = {"train.rounds": 3, "train.checkpoint_every": every}
    whole = fedmosaic.Experiment("quickstart", "ditto", overrides=overrides).run(out="whole")

    def interrupt(event: Any) -> None:
        if getattr(event, "round", 0) == 1:
            raise KeyboardInterrupt

    experiment, seen = fedmosaic.Experiment("quickstart", "ditto", overrides=overrides), []
    with pytest.raises(KeyboardInterrupt):
        experiment.run(out="parts", callbacks=[interrupt])
    assert not Path("parts/summary.json").exists()
    assert not Path("parts/crash.txt").exists()
    parts = experiment.run(out="parts", callbacks=[seen.append])
    kinds = [type(event).__name__ for event in seen]
    resumed = seen[kinds.index("RunResumed")]
    assert resumed.round == (1 if every == 1 else 0)
    assert kinds.count("RoundCompleted") == 3 - resumed.round
    assert result_bytes(parts.path) == result_bytes(whole.path)


def test_a_finished_run_is_returned_without_training():
    experiment, seen = fedmosaic.Experiment("quickstart", "local", overrides=SHORT), []
    first = experiment.run()
    second = experiment.run(callbacks=[lambda event: seen.append(type(event).__name__)])
    assert "RoundCompleted" not in seen
    assert second.summary == first.summary
    with pytest.raises(fedmosaic.FedMosaicError, match=r"not empty .*: add resume=True to continue"):
        experiment.run(resume=False)


def test_rounds_in_memory_have_the_numbers_of_a_run_and_write_nothing():
    experiment = fedmosaic.Experiment(
        "quickstart", "fedct", seed=3, overrides={**SHORT, "methods.fedct.warmup_rounds": 1}
    )
    rounds = list(experiment.rounds())
    assert list(Path().iterdir()) == []
    result = experiment.run()
    assert [each.number for each in rounds] == [1, 2]
    assert [row for each in rounds for row in each.rows] == [
        {key: value for key, value in row.items() if key not in result.identity} for row in result.log_rows()
    ]
    assert rounds[-1].accuracy == result.accuracy
    assert list(rounds[-1].clients.client) == list(range(10))
    assert rounds[-1].trust == rounds[-1].clients["lambda"].astype(float).mean()
    assert repr(rounds[0]).startswith("RoundResult(1: accuracy ")


def test_rounds_in_memory_refuse_states_on_disk():
    experiment = fedmosaic.Experiment("quickstart", "local", overrides={**SHORT, "train.client_state": "disk"})
    with pytest.raises(fedmosaic.FedMosaicError, match="states cannot be on disk"):
        next(experiment.rounds())


def test_rounds_without_trust_have_none():
    (only,) = fedmosaic.Experiment("quickstart", "local", overrides={"train.rounds": 1}).rounds()
    assert only.trust is None


def test_callback_objects_get_the_events_of_their_methods():
    class Recorder:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_start(self, event: Any) -> None:
            self.seen.append(("start", event.num_workers > 0))

        def on_round(self, event: Any) -> None:
            self.seen.append(("round", event.round))

        def on_finish(self, event: Any) -> None:
            self.seen.append(("finish", event.summary["rounds"]))

    recorder = Recorder()
    fedmosaic.Experiment("quickstart", "local", overrides=SHORT).run(callbacks=[recorder])
    assert recorder.seen == [("start", True), ("round", 1), ("round", 2), ("finish", 2)]
    with pytest.raises(fedmosaic.FedMosaicError, match=r"3 is not a callback \(callbacks\)"):
        fedmosaic.Experiment("quickstart", "local").run(callbacks=[3])


def test_a_run_on_existing_shards_records_the_equivalent_command():
    first = fedmosaic.Experiment("quickstart", "local", overrides=SHORT, name="mine").run()
    shards = next(Path("shards").iterdir())
    experiment = fedmosaic.Experiment(None, "local", shards=shards, overrides={"train.rounds": 1}, device="cpu")
    result = experiment.run(out="second")
    assert first.summary["preset"] == "mine"
    assert result.summary["shards"]["digest"] == first.summary["shards"]["digest"]
    words = [
        "train",
        "--method",
        "local",
        "--shards",
        str(shards),
        "--seed",
        "0",
        "--device",
        "cpu",
        "--run-dir",
        "second",
    ]
    assert experiment.command_line("second") == (*words, "--set", "train.rounds=1")


def test_what_the_command_line_prints_as_a_warning_is_a_python_warning():
    experiment = fedmosaic.Experiment("quickstart", overrides={"train.rounds": 1})
    with pytest.warns(fedmosaic.FedMosaicWarning, match="equals Local here"):
        experiment.run()


# Configuration


def test_overrides_accept_python_values_and_nested_dictionaries():
    overrides = {
        "train": {"lr": np.float64(1e-7), "rounds": np.int64(4)},
        "model.hidden": (32, 16),
        "methods.fedmosaic.trust": "paper",
        "clients.0-1": {"lr": 0.5},
        "train.clients_per_round": None,
    }
    config = fedmosaic.Experiment("quickstart", overrides=overrides).config
    assert (config.train.lr, config.train.rounds, list(config.model.hidden)) == (1e-7, 4, [32, 16])
    assert config.method.trust == "paper"
    assert config.train_settings_for(1).lr == 0.5
    assert type(config.train.rounds) is int


def test_the_fields_of_an_instance_are_its_hyperparameters():
    from fedmosaic_cli.methods.ditto import Ditto
    from fedmosaic_cli.methods.fedmosaic import FedMosaic

    assert fedmosaic.Experiment("quickstart", Ditto(mu=2.0)).config.method == Ditto(mu=2.0)
    assert fedmosaic.Experiment("quickstart", FedMosaic()).config.method == FedMosaic()
    assert fedmosaic.Experiment("quickstart", FedMosaic).config.method.trust == "stabilised"  # of the preset
    chosen = fedmosaic.Experiment("quickstart", Ditto(mu=2.0), overrides={"methods.ditto.mu": 3.0})
    assert chosen.config.method == Ditto(mu=3.0)


def test_a_class_that_is_not_built_in_is_registered():
    class OwnAverage(fedmosaic.FedAvg):
        pass

    experiment = fedmosaic.Experiment("quickstart", OwnAverage, overrides=SHORT)
    assert experiment.config.method.info.name == "own-average"
    fedavg = fedmosaic.Experiment("quickstart", "fedavg", overrides=SHORT)
    assert [each.rows for each in experiment.rounds()] == [each.rows for each in fedavg.rounds()]


# Plug-ins


OWN_DATA_PRESET = "quickstart-label-skew"  # quickstart needs 1,300 examples


def test_models_and_data_sets_are_names_references_classes_or_functions():
    def bright():
        images = np.random.default_rng(0).integers(0, 256, (600, 8, 8), dtype=np.uint8)
        return images, (images.mean(axis=(1, 2)) > 127).astype(int)

    overrides = {"train.rounds": 1, "data.public_size": 100}
    config = fedmosaic.Experiment("quickstart", "local", model="cnn", dataset="digits-domains").config
    assert (config.model.name, config.data.dataset) == ("cnn", "digits-domains")
    references = {"model": f"{EXAMPLES}/my_model.py:MyModel", "dataset": f"{EXAMPLES}/my_data.py:my_data"}
    experiment = fedmosaic.Experiment(OWN_DATA_PRESET, "local", overrides=overrides, **references)
    assert (experiment.config.model.name, experiment.config.data.dataset) == ("my-model", "my-data")
    assert list(experiment.config.plugins()) == ["models.my-model", "datasets.my-data"]
    (only,) = fedmosaic.Experiment(
        OWN_DATA_PRESET, "local", model=TinyNetwork, dataset=bright, overrides=overrides
    ).rounds()
    assert only.accuracy > 0.4
    again = fedmosaic.Experiment(OWN_DATA_PRESET, "local", model="tiny-network", dataset="bright", overrides=overrides)
    assert [each.rows for each in again.rounds()] == [only.rows]


def TinyNetwork(input_shape, num_classes):  # noqa: N802 - named like a class
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_classes))


def test_a_class_of_pairs_is_a_data_set():
    class Pairs:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return np.full((8, 8), index, np.uint8), index % 2

    overrides = {"train.rounds": 1, "data.public_size": 5, "data.clients": 2}
    (only,) = fedmosaic.Experiment("quickstart-label-skew", "local", dataset=Pairs, overrides=overrides).rounds()
    assert len(only.rows) == 2


PLUGIN_FILE = """
from torch import nn
import fedmosaic_cli as fedmosaic

class MyMethod(fedmosaic.FedAvg):
    strength: float = 0.5

class MyModel(nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], num_classes))

fedmosaic.register_model("other", MyModel)
"""


def test_the_recorded_command_names_the_files_of_plug_ins():
    Path("mine.py").write_text(PLUGIN_FILE, encoding="utf-8")
    experiment = fedmosaic.Experiment("quickstart", "mine.py:MyMethod", overrides=SHORT, model="mine.py:MyModel")
    start = ("train", "--method", "mine.py:MyMethod", "--model", "mine.py:MyModel", "--preset", "quickstart")
    assert experiment.command_line()[: len(start)] == start
    result = experiment.run(out="first")
    environment = json.loads((result.path / "env.json").read_text(encoding="utf-8"))
    words = environment["arguments"]
    words[words.index("first")] = "second"
    done = command(*words, "--quiet", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert result_bytes(Path("second")) == result_bytes(result.path)

    from fedmosaic_cli.methods.registry import METHODS

    for method in ("my-method", METHODS["my-method"], METHODS["my-method"]()):
        assert fedmosaic.Experiment("quickstart", method).command_line()[1:3] == ("--method", "mine.py:MyMethod")
    by_override = fedmosaic.Experiment("quickstart", "local", overrides={"model.name": "my-model"}).command_line()
    assert by_override[:5] == ("train", "--method", "local", "--plugin", "models=mine.py:MyModel")
    other = fedmosaic.Experiment("quickstart", "local", model="other").command_line()
    assert other[:7] == ("train", "--method", "local", "--model", "other", "--plugin", "mine.py")

    @fedmosaic.method
    class MyMethod(fedmosaic.FedAvg):
        pass

    assert fedmosaic.Experiment("quickstart", MyMethod).command_line()[2] == "my-method"
    assert fedmosaic.Experiment("quickstart", model=TinyNetwork).command_line()[4] == f"{__name__}:TinyNetwork"


def test_plug_ins_of_the_environment_are_imported(monkeypatch):
    Path("mine.py").write_text(PLUGIN_FILE, encoding="utf-8")
    monkeypatch.setenv("FEDMOSAIC_PLUGINS", "methods=mine.py:MyMethod")
    experiment = fedmosaic.Experiment("quickstart", "my-method", model="other")
    assert experiment.config.method.strength == 0.5


def test_check_method_lists_problems():
    class Forgetful(fedmosaic.FedAvg):
        def personal_model(self, client, received):
            return client.state["own"]

    checks = fedmosaic.check_method(Forgetful)
    assert list(checks.columns) == ["name", "problem", "skipped"]
    assert "KeyError" in checks.problem[0]
    with pytest.raises(fedmosaic.FedMosaicError, match=r"unknown method 'dito' \(method\): did you mean 'ditto'"):
        fedmosaic.check_method("dito")
    with pytest.raises(fedmosaic.FedMosaicError, match=r"unknown key .*\(overrides\)"):
        fedmosaic.check_method("ditto", {"methods.ditto.nu": 1})


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read steps and values by tag, as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    board.Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_the_tensorboard_callback_writes_what_the_command_line_writes():
    pytest.importorskip("tensorboard")
    experiment = fedmosaic.Experiment("quickstart", "local", overrides=SHORT)
    seen: list[Any] = []
    result = experiment.run(out="python", callbacks=[fedmosaic.TensorBoard(), seen.append])
    arguments = ("--method", "local", "--preset", "quickstart", "--rounds", "2", "--run-dir", "cli", "--quiet")
    done = command("train", *arguments, "--tensorboard", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    written = scalars(result.path / "tensorboard")
    assert written == scalars(Path("cli/tensorboard"))
    assert [step for step, _ in written["mean/accuracy"]] == [1, 2]
    assert "RoundCompleted" in [type(event).__name__ for event in seen]
    # A finished run gets event files, too; those of others stay.
    Path("logs").mkdir()
    for stamp in (1, 2):
        Path(f"logs/events.out.tfevents.{stamp}").touch()
    experiment.run(out="python", callbacks=[fedmosaic.TensorBoard("logs")])
    assert scalars(Path("logs")) == written
    assert len(list(Path("logs").iterdir())) == 3


def test_without_the_package_the_tensorboard_callback_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.runner.tensorboard_log.find_spec", lambda name: None)
    with pytest.raises(fedmosaic.FedMosaicError, match=r"not installed \(TensorBoard\): python -m pip install"):
        fedmosaic.TensorBoard()


def test_tensorboard_files_that_cannot_be_written_are_a_warning():
    pytest.importorskip("tensorboard")
    Path("taken").touch()
    with pytest.warns(fedmosaic.FedMosaicWarning, match="cannot write for TensorBoard"):
        result = fedmosaic.Experiment("quickstart", "local", overrides=SHORT).run(
            callbacks=[fedmosaic.TensorBoard("taken")]
        )
    assert result.summary["rounds"] == 2


ERRORS = {
    "unknown preset 'quickstrat' (preset): did you mean 'quickstart'?": {"preset": "quickstrat"},
    "unknown method 'dito' (method): did you mean 'ditto'?": {"method": "dito"},
    "unknown key 'train.ruonds' (overrides): did you mean 'train.rounds'?": {"overrides": {"train.ruonds": 1}},
    "unknown key 'trian' (overrides): did you mean 'train'?": {"overrides": {"trian": {"rounds": 1}}},
    "train.rounds is 'three' (overrides): it must be a whole number": {"overrides": {"train.rounds": "three"}},
    "train.rounds is 0 (overrides): it must be": {"overrides": {"train.rounds": 0}},
    "train.rounds is a object (overrides): use a number": {"overrides": {"train.rounds": object()}},
    "cannot read 'rounds=1' (overrides): write train.rounds=1": {"overrides": {"rounds": 1}},
    "3 is not a key (overrides)": {"overrides": {3: 1}},
    "model.width has no effect on a mlp (overrides): leave it out": {"overrides": {"model.width": 2}},
    "has no effect on FedMosaic with these values (overrides)": {"overrides": {"methods.fedmosaic.gate_folds": 3}},
    "unknown device 'tpu' (device)": {"device": "tpu"},
    "the seed is -1 (seed)": {"seed": -1},
    "no shards found (nowhere)": {"shards": "nowhere"},
    "no data to train on": {"preset": None},
    "is not a method (method)": {"method": dict},
    'needs validation data, but data.val_fraction is 0: use overrides={"data.val_fraction": 0.2}': {
        "method": "fedfomo"
    },
    "unknown model 'mpl' (model): did you mean 'mlp'?": {"model": "mpl"},
    "unknown data set 'digit' (dataset): did you mean 'digits'?": {"dataset": "digit"},
    "int is not a model (model): give a name, FILE.py:NAME or a class or function": {"model": 3},
    "ndarray is not a dataset (dataset): give a name": {"dataset": np.zeros((3, 8, 8), np.uint8)},
    "model.name is given twice (model, overrides)": {"model": "cnn", "overrides": {"model": {"name": "mlp"}}},
    'add preset="quickstart" or shards="DIR"': {"preset": None, "method": "local"},
    "'a b' is not a valid name for runs (name)": {"name": "a b"},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_are_one_line_and_name_the_parameter(message):
    with pytest.raises(fedmosaic.FedMosaicError) as caught:
        fedmosaic.Experiment(**ERRORS[message])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(Path().iterdir()) == []


def test_a_client_that_diverges_raises_the_error_of_the_run():
    overrides = {"train.rounds": 2, "train.lr": 1e30}
    experiment = fedmosaic.Experiment("quickstart", "local", overrides=overrides)
    for start in (lambda: list(experiment.rounds()), experiment.run):
        with pytest.raises(
            fedmosaic.FedMosaicError, match=r"client \d diverged in .*overrides={\"train.on_nan\": \"skip\"}"
        ):
            start()


# Results


@pytest.fixture
def two_seeds():
    """Runs of Local and Ditto with two seeds, and an unfinished one."""
    results = [
        fedmosaic.Experiment("quickstart", method, seed, overrides=SHORT).run()
        for method in ("local", "ditto")
        for seed in (0, 1)
    ]

    def interrupt(event: Any) -> None:
        if getattr(event, "round", 0) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedmosaic.Experiment("quickstart", "fedavg", overrides=SHORT).run(callbacks=[interrupt])
    return results


def test_results_are_data_frames_and_reports_those_of_the_command_line(two_seeds):
    with pytest.warns(fedmosaic.FedMosaicWarning, match=r"skipped .*fedavg.*not finished"):
        runs = fedmosaic.load("runs")
    assert (len(runs), len(list(runs)), len(runs.skipped)) == (4, 4, 1)
    assert runs[0].summary["method"] == "ditto"
    assert list(runs.summary.columns[:4]) == ["preset", "method", "variant", "seed"]
    assert sorted(runs.summary.accuracy) == sorted(result.accuracy for result in two_seeds)
    assert len(runs.rounds) == 4 * 2 * 10
    assert len(runs.clients) == 4 * 10
    assert set(runs.clients["round"]) == {2}
    assert {"lambda", "test_loss", "bits_up"} <= set(runs.rounds.columns)
    one = fedmosaic.load(two_seeds[0].path)
    assert len(one) == 1
    assert one[0].rounds.equals(two_seeds[0].rounds)
    assert "accuracy" in runs._repr_html_()
    assert "<table" in two_seeds[0]._repr_html_()
    assert re.fullmatch(
        r"Result\(quickstart, local, seed 0: accuracy \d+\.\d\d % after 2 rounds, runs/.*\)",
        repr(two_seeds[0]),
    )

    table = fedmosaic.compare(runs).set_index("method")
    ditto = [result.accuracy for result in two_seeds[2:]]
    local = [result.accuracy for result in two_seeds[:2]]
    points = [100 * (ours - theirs) for ours, theirs in zip(ditto, local, strict=True)]
    row = table.loc["Ditto"]
    assert row.seeds == 2
    assert row.accuracy == pytest.approx(np.mean(ditto))
    assert row.difference_points == pytest.approx(np.mean(points))
    half = 12.706204736 * np.std(points, ddof=1) / np.sqrt(2)  # quantile of t with one degree of freedom
    assert (row.ci_low_points, row.ci_high_points) == pytest.approx((np.mean(points) - half, np.mean(points) + half))
    assert row.helped + row.unchanged + row.hurt == 20
    swapped = fedmosaic.compare(*two_seeds, baseline="ditto").set_index("method").loc["Local training"]
    assert (swapped.helped, swapped.hurt) == (row.hurt, row.helped)
    assert swapped.difference_points == pytest.approx(-row.difference_points)
    single = fedmosaic.compare(two_seeds[0], two_seeds[2]).set_index("method").loc["Ditto"]
    assert np.isnan(single.ci_low_points)
    with pytest.raises(fedmosaic.FedMosaicError, match=r"no runs of 'fedbn' \(baseline\): .*ditto, local"):
        fedmosaic.compare(runs, baseline="fedbn")

    for options, arguments in (
        ({}, ()),
        ({"statistics": True}, ("--statistics",)),
        ({"table": "all"}, ("--table", "all")),
    ):
        with pytest.warns(fedmosaic.FedMosaicWarning, match="skipped"):
            report = fedmosaic.report("runs", **options)
        for form in ("markdown", "latex", "csv"):
            done = command("report", f"--{form}", *arguments, cwd=Path.cwd())
            assert done.returncode == 0, done.stderr
            assert getattr(report, f"to_{form}")() == done.stdout
        assert set(report.to_frame().method) >= {"Ditto"}


def test_several_variants_of_a_baseline_must_be_told_apart():
    for mu in (0.1, 1.0):
        overrides = {**SHORT, "methods.ditto.mu": mu}
        fedmosaic.Experiment("quickstart", "ditto", overrides=overrides).run(out=f"runs/{mu}")
    with pytest.raises(fedmosaic.FedMosaicError, match=r"several variants of 'ditto' \(baseline\)"):
        fedmosaic.compare(baseline="ditto")
    titles = list(fedmosaic.compare(baseline="Ditto (mu=0.1)").method)
    assert len(titles) == 2


@pytest.mark.parametrize("function", ["load", "compare", "report"])
def test_directories_without_runs_are_refused(function):
    Path("empty").mkdir()
    with pytest.raises(fedmosaic.FedMosaicError, match=r"no finished runs \(empty\)"):
        getattr(fedmosaic, function)("empty")
    with pytest.raises(fedmosaic.FedMosaicError, match=r"no such directory \(nowhere\)"):
        getattr(fedmosaic, function)("nowhere")


def test_unknown_tables_are_refused():
    fedmosaic.Experiment("quickstart", "local", overrides={"train.rounds": 1}).run()
    with pytest.raises(fedmosaic.FedMosaicError, match=r"unknown table 'label-skw' \(table\): did you mean"):
        fedmosaic.report(table="label-skw")
    with pytest.raises(fedmosaic.FedMosaicError, match="no runs for the table 'hybrid'"):
        fedmosaic.report(table="hybrid")
    with pytest.raises(fedmosaic.FedMosaicError, match="omit table and paper"):
        fedmosaic.report(statistics=True, paper=True)


# Documentation


def python_snippets(path: Path) -> list[str]:
    """The Python code of a page or notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if path.suffix == ".md" else [text]


def definitions(path: Path) -> dict[str, Any]:
    """Execute the imports, functions and classes of a page, and return its names."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    nodes = [node for code in python_snippets(path) for node in ast.parse(code).body if isinstance(node, kinds)]
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile(ast.Module(nodes, []), path.name, "exec", dont_inherit=True), namespace)
    return namespace


PAGES = {
    "README.md": {"LocalHead"},
    "docs/python-api.md": {"LocalHead"},
    "docs/plugins.md": {"FedTeacher", "BestSoFar"},
    "docs/notebooks/first-experiment.ipynb": {"Mixture"},
    "docs/examples/my_method.py": {"MyMethod"},
}


@pytest.mark.parametrize("page", PAGES)
def test_the_methods_of_the_documentation_keep_the_contract(page):
    from fedmosaic_cli.method_checks.checks import check_method

    found = {
        name: value
        for name, value in definitions(ROOT / page).items()
        if isinstance(value, type) and issubclass(value, fedmosaic.Method) and value.__module__ == Path(page).stem
    }
    assert found.keys() == PAGES[page]
    for cls in found.values():
        name = fedmosaic.register_method(cls).info.name
        assert [(check.name, check.problem) for check in check_method(name) if check.problem] == []


def test_all_pages_with_methods_are_checked():
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"), *EXAMPLES.iterdir()]
    sources = {path.relative_to(ROOT).as_posix(): python_snippets(path) for path in files if path.is_file()}
    defining = re.compile(r"^class \w+\(.*(FedAvg|Local|Method)\):", flags=re.MULTILINE)
    assert {name for name, snippets in sources.items() if defining.search("\n".join(snippets))} == set(PAGES)


def test_the_examples_are_trained():
    reference = {"method": "MyMethod", "model": "MyModel", "dataset": "my_data"}
    files = {"method": "my_method", "model": "my_model", "dataset": "my_data"}
    plugins = {kind: f"{EXAMPLES}/{files[kind]}.py:{name}" for kind, name in reference.items()}
    overrides = {"train.rounds": 1, "data.public_size": 100}
    (only,) = fedmosaic.Experiment("quickstart", overrides=overrides, **plugins).rounds()
    assert len(only.rows) == 10


def test_the_snippets_about_plug_ins_run():
    namespace: dict[str, Any] = {"__name__": "plugins"}
    for number, snippet in enumerate(python_snippets(ROOT / "docs" / "plugins.md")):
        exec(compile(snippet, f"snippet {number}", "exec", dont_inherit=True), namespace)
    overrides = {"train.rounds": 2, "data.val_fraction": 0.2}
    for name in ("FedTeacher", "BestSoFar"):
        *_, last = fedmosaic.Experiment("quickstart", namespace[name], overrides=overrides).rounds()
        assert ("loss_teacher" in last.rows[0]) == (name == "FedTeacher")


def test_the_snippets_of_the_documentation_run(capsys):
    pytest.importorskip("tensorboard")
    snippets = python_snippets(DOCS)
    assert len(snippets) >= 8
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"snippet {number}", "exec", dont_inherit=True), namespace)
    assert "RoundResult(2: accuracy" in capsys.readouterr().out
    assert set(namespace["table"].method) == {"Local training", "Ditto (mu=0.1)"}


@pytest.mark.parametrize(
    "name", ["Experiment", "load", "compare", "method", "check_method", "Result", "Runs", "TensorBoard"]
)
def test_public_docstrings_have_an_example(name):
    assert "Example:" in (getattr(fedmosaic, name).__doc__ or "")
