"""Tables of evaluations on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fedmosaic_cli.cli.views import evaluation_view

AVERAGES = {"client_mean": 0.5, "sample_weighted": 0.5, "client_std": 0.0, "worst": 0.5, "worst_decile": 0.5}
METRICS = ("accuracy", "loss", "macro_f1", "balanced_accuracy", "calibration_error")


def make_result(classes: int, size: int) -> dict:
    """An evaluation of one client with an accuracy of one half."""
    confusion = [[0] * classes for _ in range(classes)]
    confusion[0][0], confusion[0][1] = size // 2, size - size // 2
    numbers = dict.fromkeys(METRICS, 0.5)
    client = {"client": 0, "domain": "[b]", "examples": size, **numbers, "confusion": confusion, "gain": None}
    return {
        **dict.fromkeys(METRICS, AVERAGES),
        "class_names": [f"class{number}" for number in range(classes)],
        "per_client": [client],
        "collaboration": None,
        "no_collaboration": "no Local run",
    }


@pytest.mark.parametrize(
    ("paths", "parent", "labels"),
    [
        (["runs/q/a/s", "runs/q/b/s"], "runs/q", ["a/s", "b/s"]),
        (["runs/q/a/s"], "", ["runs/q/a/s"]),
        (["a/s", "b/s"], "", ["a/s", "b/s"]),
        (["a", "/b"], "", ["a", "/b"]),
        (["/x/a", "/x/b"], "/x", ["a", "b"]),
        (["a/s", "a/s/t"], "a", ["s", "s/t"]),
    ],
)
def test_the_common_parent_is_split_off(paths, parent, labels):
    assert evaluation_view.split_common_parent([Path(path) for path in paths]) == (parent, labels)


def test_no_number_is_cut_on_80_columns(capsys, monkeypatch):
    monkeypatch.setattr(evaluation_view, "stdout_console", lambda: Console(width=80, markup=False, highlight=False))
    full = {**AVERAGES, **dict.fromkeys(AVERAGES, 1.0)}
    result = {**make_result(2, 10), **dict.fromkeys(METRICS, full)}
    result["collaboration"] = {"helped": 10, "unharmed": 20, "hurt": 30}
    paths = [Path("runs/quickstart/fedmosaic-entropy/seed-0"), Path("runs/quickstart/centralized/seed-0")]
    evaluation_view.show_evaluations(dict.fromkeys(paths, result), "test", verbose=False)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("100.00") == 2 * 8
    assert shown.count("10/20/30") == 2
    assert max(map(len, shown.split("each client")[0].splitlines())) <= 80


@pytest.mark.parametrize(("classes", "drawn"), [(20, True), (21, False)])
def test_small_confusion_matrices_are_shown(capsys, classes, drawn):
    evaluation_view.show_evaluations({Path("run"): make_result(classes, 10)}, "test", verbose=True)
    shown = capsys.readouterr().out
    assert ("class19" in shown) is drawn
    assert ("the confusion matrices of 21 classes are only in the file" in shown) is not drawn
    assert "compared with Local: no Local run" in shown
    assert "[b]" in shown, "names are not interpreted as markup"


def test_missing_confusion_matrices_are_reported(capsys):
    result = make_result(3, 10)
    result["per_client"][0]["confusion"] = None
    evaluation_view.show_evaluations({Path("run"): result}, "test", verbose=True)
    assert "too large to store" in capsys.readouterr().out
