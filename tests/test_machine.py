"""The garbage collector runs rarely while modules load, and as usual during a run."""

from __future__ import annotations

import gc

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.machine import STARTUP_GC_THRESHOLDS, USUAL_GC_THRESHOLDS, collect_as_usual, collect_rarely


@pytest.fixture(autouse=True)
def unchanged_collector():
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.unit
def test_the_collector_is_as_usual_once_a_run_starts():
    collect_rarely()
    assert gc.get_threshold() == STARTUP_GC_THRESHOLDS
    collect_as_usual()
    assert gc.get_threshold() == USUAL_GC_THRESHOLDS
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


@pytest.mark.unit
def test_a_caller_of_the_api_keeps_its_collector():
    gc.set_threshold(123, 4, 5)
    frozen = gc.get_freeze_count()
    collect_as_usual()
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((123, 4, 5), frozen)


def test_a_run_ends_the_rare_collection(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    collect_rarely()
    assert CliRunner().invoke(app, ["train", "--preset", "quickstart", "--rounds", "1", "-q"]).exit_code == 0
    assert gc.get_threshold() == USUAL_GC_THRESHOLDS
