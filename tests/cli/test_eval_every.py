"""`train.eval_every`: rounds without an evaluation have null in the log, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.report.plots.canvas import new_figure_with_axes
from fedmosaic_cli.report.plots.figure_data import SeedBand
from fedmosaic_cli.report.plots.plot_style import method_line_styles
from fedmosaic_cli.report.plots.round_curves import draw_bands, evaluated_rounds_note, final_rounds_limits

SHORT = ("train", "--preset", "quickstart", "--rounds", "5", "--set", "methods.fedmosaic.warmup_rounds=1", "-q")
MEASURED = {"accuracy", "test_loss", "global_accuracy", "val_accuracy"}


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        return result

    return call


def rows(folder):
    return [json.loads(line) for line in Path(folder, "rounds.jsonl").read_text().splitlines()]


def summary(folder):
    return json.loads(Path(folder, "summary.json").read_text())


def models(folder):
    return [path.read_bytes() for path in sorted(Path(folder, "models").iterdir())]


def test_rounds_without_evaluation_are_null_and_change_nothing_else(invoke):
    invoke(*SHORT, "--run-dir", "all")
    invoke(*SHORT, "--run-dir", "some", "--eval-every", "2")
    assert models("all") == models("some")
    for every, some in zip(rows("all"), rows("some"), strict=True):
        assert every.keys() - some.keys() <= MEASURED
        assert {key: value for key, value in every.items() if key not in MEASURED} == {
            key: value for key, value in some.items() if key not in MEASURED
        }
        if some["round"] in (2, 4, 5):
            assert some == every
        else:
            assert (some["accuracy"], some["test_loss"]) == (None, None)
    complete, partial = summary("all"), summary("some")
    assert partial["accuracy"] == complete["accuracy"]
    assert partial["train"] == complete["train"], "the runs are comparable"
    assert partial["evaluation"]["every"] == 2
    assert partial["best_round"]["chosen_among"] == 3
    assert partial["best_round"]["round"] in (2, 4, 5)
    assert "every" not in complete["evaluation"]
    assert "chosen_among" not in complete["best_round"]
    assert "eval_every" not in Path("all/config.yaml").read_text()


def test_validation_accuracy_still_chooses_the_best_round(invoke):
    invoke(*SHORT, "--run-dir", "run", "--set", "train.eval_every=3", "--set", "data.val_fraction=0.2")
    assert summary("run")["best_round"]["chosen_on"] == "validation"
    assert summary("run")["best_round"]["chosen_among"] == 2


def test_a_resumed_run_is_identical(invoke):
    every = ("--eval-every", "4")
    invoke(*SHORT, *every, "--run-dir", "once")
    invoke(*SHORT[:4], "4", *SHORT[5:], *every, "--run-dir", "twice")
    invoke(*SHORT, *every, "--run-dir", "twice", "--resume")
    assert rows("once") == rows("twice")
    assert models("once") == models("twice")


@pytest.mark.parametrize("validation", [(), ("--set", "data.val_fraction=0.2")], ids=["test", "validation"])
def test_an_extended_run_has_the_summary_of_a_run_in_one_go(invoke, validation):
    """Its former last round stays in the log with its evaluation, but cannot be the best round."""
    every = ("--eval-every", "4", *validation)
    invoke(*SHORT, *every, "--run-dir", "once")
    invoke(*SHORT[:4], "3", *SHORT[5:], *every, "--run-dir", "extended")
    invoke(*SHORT, *every, "--run-dir", "extended", "--resume")
    evaluated = [
        {row["round"] for row in rows(folder) if row["accuracy"] is not None} for folder in ("once", "extended")
    ]
    assert evaluated == [{4, 5}, {3, 4, 5}]
    assert summary("extended") == summary("once")
    assert summary("extended")["best_round"]["chosen_among"] == 2
    assert models("extended") == models("once")


def test_reports_and_watch_show_such_runs(invoke):
    for method in ("local", "fedavg"):
        invoke(*SHORT, "--rounds", "6", "--eval-every", "4", "--method", method)
    invoke(*SHORT, "--rounds", "6")
    result = invoke("report", "--out", "results", "--html", "page.html", "-q")
    assert "damaged" not in result.output
    assert "warning" not in result.output
    assert any("accuracy" in path.name for path in Path("results/figures").rglob("*")), "the curves are drawn"
    shown = invoke("watch", "--once").output
    assert "local" in shown


def test_progress_says_that_a_round_is_not_evaluated(invoke):
    shown = invoke(*SHORT[:-1], "--eval-every", "5").output
    assert shown.count("accuracy not evaluated") == 4


def test_the_suggested_baselines_are_evaluated_in_the_same_rounds(invoke):
    output = invoke(*SHORT[:-1], "--eval-every", "2").stdout
    assert "next: fedmosaic baseline all --preset quickstart --rounds 5 --eval-every 2 " in output


def test_curves_connect_evaluated_rounds_and_say_so():
    mean = np.array([np.nan, 0.5, np.nan, 0.7, 0.8])
    std = np.full(5, np.nan)
    bands = {("local", ""): SeedBand(mean, std), ("fedavg", ""): SeedBand(np.full(5, 0.6), std)}
    _, axes = new_figure_with_axes(4, 3)
    draw_bands(axes, bands, method_line_styles(list(bands)), has_bands=True)
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2, 4, 5], [1, 2, 3, 4, 5]]
    assert evaluated_rounds_note(bands) == "Local training: not evaluated in every round."
    assert final_rounds_limits(bands, True, 2) == (0.6, 0.8)
