"""Evaluation of saved models: events, and how often data is read."""

from __future__ import annotations

import shutil

import pytest

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.datasets import digits
from fedmosaic_cli.engine.network_learner import NetworkLearner
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.runner.evaluate import ClientEvaluated, RunEvaluated, evaluate_saved_models
from fedmosaic_cli.storage import shards as shard_records
from fedmosaic_cli.storage.runs import RunDirectory


@pytest.fixture
def runs(finished_runs, tmp_path):
    """Return a function that finds runs by method and seed."""
    shutil.copytree(finished_runs / "quickstart", tmp_path / "q")
    return lambda *names: [RunDirectory(tmp_path / "q" / name) for name in names]


def test_events_name_each_client_and_then_the_result(runs):
    events = list(evaluate_saved_models(runs("fedct/seed-0"), "test", "cpu", DataDirs()))
    assert [event.client for event in events[:-1] if isinstance(event, ClientEvaluated)] == list(range(10))
    assert isinstance(events[-1], RunEvaluated)
    assert events[-1].result["device"] == "cpu"


def test_data_is_read_once_for_runs_that_share_it(runs, monkeypatch):
    """In any order of the runs: the data once, and each of the two partitions once."""
    read: list[str] = []
    load_data, load_shards = digits.load_digits, shard_records.read_shards
    monkeypatch.setattr(digits, "load_digits", lambda: (read.append("data"), load_data())[1])
    monkeypatch.setattr(shard_records, "read_shards", lambda path: (read.append(path.name), load_shards(path))[1])
    asked = runs("local/seed-0", "local/seed-1", "fedct/seed-0", "fedct/seed-1", "centralized/seed-0")
    events = list(evaluate_saved_models(asked, "test", "cpu", DataDirs()))
    assert {event.files for event in events if isinstance(event, RunEvaluated)} == set(asked)
    assert sorted(read) == ["data", "quickstart-s0", "quickstart-s1"]


def test_a_network_is_built_once_for_clients_that_share_it(runs, monkeypatch):
    built = []
    first = NetworkLearner.initial_parameters
    monkeypatch.setattr(
        NetworkLearner, "initial_parameters", lambda self, seed: (built.append(seed), first(self, seed))[1]
    )
    list(evaluate_saved_models(runs("fedct/seed-0"), "test", "cpu", DataDirs()))
    assert len(built) == 1


def test_results_of_a_client_are_transferred_once(runs, monkeypatch):
    """Each transfer stalls a GPU."""
    import torch

    moved = []
    move = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: (moved.append(tuple(self.shape)), move(self))[1])
    list(evaluate_saved_models(runs("fedct/seed-0"), "test", "cpu", DataDirs()))
    assert len(moved) == 10
    assert {classes for _, classes in moved} == {10}


def test_half_precision_runs_are_evaluated_in_float32_on_a_cpu(runs):
    """Some CPUs do not support half precision; the weights are the same."""
    [files] = runs("fedct/seed-0")
    *_, full = evaluate_saved_models([files], "test", "cpu", DataDirs())
    text = files.config_path.read_text()
    assert "precision: float32" in text
    files.config_path.write_text(text.replace("precision: float32", "precision: bfloat16"))
    (files.path / "SHA256SUMS").unlink()
    *_, half = evaluate_saved_models([files], "test", "cpu", DataDirs())
    assert half.result == full.result
    assert half.result["precision"] == "float32"


def test_large_confusion_matrices_are_omitted(runs, monkeypatch):
    """Ten clients with ten classes each: a thousand numbers."""
    for most, kept in ((1000, True), (999, False)):
        monkeypatch.setattr("fedmosaic_cli.runner.evaluate.MAX_CONFUSION_COUNTS", most)
        *_, done = evaluate_saved_models(runs("fedct/seed-0"), "test", "cpu", DataDirs())
        assert [mark["confusion"] is not None for mark in done.result["per_client"]] == [kept] * 10


def test_outputs_that_are_not_finite_are_refused(runs, monkeypatch):
    predict = NetworkLearner.predict
    monkeypatch.setattr(NetworkLearner, "predict", lambda *arguments: predict(*arguments) * float("inf"))
    with pytest.raises(FedMosaicError, match="the outputs of client 0's model are not finite"):
        list(evaluate_saved_models(runs("fedct/seed-0"), "test", "cpu", DataDirs()))
