"""The Python API: the same files as the command line, results as DataFrames, one-line errors, a fast import."""

from __future__ import annotations

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

DOCS = Path(__file__).parent.parent / "docs" / "python-api.md"
SHORT = {"train.rounds": 2}
IDENTICAL = ("rounds.jsonl", "summary.json", "config.yaml", "shards.json")


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Run every test in an empty directory, and forget what it registers."""
    from fedmosaic_cli.data.datasets import DATASETS
    from fedmosaic_cli.methods.registry import METHODS
    from fedmosaic_cli.models.registered_models import MODELS
    from fedmosaic_cli.plugin_sources import SOURCES

    registries: list[dict[Any, Any]] = [METHODS, SOURCES, MODELS, DATASETS]
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
    assert result.path == Path("runs/quickstart/fedmosaic-entropy/seed-0")
    expected = tmp_path / "cli" / result.path
    assert result_bytes(result.path) == result_bytes(expected)
    assert {path.name for path in result.path.iterdir()} == {path.name for path in expected.iterdir()}
    assert tree_bytes(Path("shards")) == tree_bytes(tmp_path / "cli" / "shards")


def test_the_directory_of_a_run_does_not_change_its_bytes():
    experiment = fedmosaic.Experiment("quickstart", "local", overrides=SHORT)
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
        experiment.run(out="parts", on_event=interrupt)
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
    second = experiment.run(on_event=lambda event: seen.append(type(event).__name__))
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


ERRORS = {
    "unknown preset 'quickstrat' (preset): did you mean 'quickstart'?": {"preset": "quickstrat"},
    "unknown method 'dito' (method): did you mean 'ditto'?": {"method": "dito"},
    "unknown key 'train.ruonds' (overrides): did you mean 'train.rounds'?": {"overrides": {"train.ruonds": 1}},
    "unknown key 'trian' (overrides): did you mean 'train'?": {"overrides": {"trian": {"rounds": 1}}},
    "train.rounds is 'three' (overrides): it must be a whole number": {"overrides": {"train.rounds": "three"}},
    "train.rounds is 0 (overrides): it must be": {"overrides": {"train.rounds": 0}},
    "train.rounds is a object (overrides): use a number": {"overrides": {"train.rounds": object()}},
    "cannot read 'rounds=1' (overrides): write section.key=value": {"overrides": {"rounds": 1}},
    "3 is not a key (overrides)": {"overrides": {3: 1}},
    "model.width has no effect on a mlp (overrides): leave it out": {"overrides": {"model.width": 2}},
    "has no effect on FedMosaic with these values (overrides)": {"overrides": {"methods.fedmosaic.gate_folds": 3}},
    "unknown device 'tpu' (device)": {"device": "tpu"},
    "the seed is -1 (seed)": {"seed": -1},
    "no shards found (nowhere)": {"shards": "nowhere"},
    "no data to train on": {"preset": None},
    "is not a method (method)": {"method": dict},
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
        with pytest.raises(fedmosaic.FedMosaicError, match=r"client \d diverged in round 1 .*train.on_nan skip"):
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
        fedmosaic.Experiment("quickstart", "fedavg", overrides=SHORT).run(on_event=interrupt)
    return results


def test_results_are_data_frames_and_reports_those_of_the_command_line(two_seeds):
    with pytest.warns(fedmosaic.FedMosaicWarning, match=r"skipped .*fedavg.*not finished"):
        runs = fedmosaic.load("runs")
    assert (len(runs), len(list(runs)), len(runs.skipped)) == (4, 4, 1)
    assert runs[0].summary["method"] == "ditto"
    assert list(runs.runs.columns[:4]) == ["preset", "method", "variant", "seed"]
    assert sorted(runs.runs.accuracy) == sorted(result.accuracy for result in two_seeds)
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
        r"Result\(quickstart, local, seed 0: accuracy \d+\.\d\d % after 2 rounds, runs/.*\)", repr(two_seeds[0])
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
    assert (row.low_points, row.high_points) == pytest.approx((np.mean(points) - half, np.mean(points) + half))
    assert row.helped + row.unharmed + row.hurt == 20
    swapped = fedmosaic.compare(*two_seeds, baseline="ditto").set_index("method").loc["Local training"]
    assert (swapped.helped, swapped.hurt) == (row.hurt, row.helped)
    assert swapped.difference_points == pytest.approx(-row.difference_points)
    single = fedmosaic.compare(two_seeds[0], two_seeds[2]).set_index("method").loc["Ditto"]
    assert np.isnan(single.low_points)
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


def test_the_snippets_of_the_documentation_run(capsys):
    snippets = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(snippets) >= 8
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"snippet {number}", "exec", dont_inherit=True), namespace)
    assert "RoundResult(2: accuracy" in capsys.readouterr().out
    assert set(namespace["table"].method) == {"Local training", "Ditto (mu=0.1)"}


@pytest.mark.parametrize("name", ["Experiment", "load", "compare", "method", "Result", "Runs"])
def test_public_docstrings_have_an_example(name):
    assert "Example:" in (getattr(fedmosaic, name).__doc__ or "")
