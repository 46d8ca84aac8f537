"""Which runs are in the tables, and what is said of those that are not."""

from __future__ import annotations

import json
import shutil

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import collect


def test_a_copied_run_counts_once_and_the_kept_one_is_named(runs):
    first = runs("s", "local", 0, 0.9)
    shutil.copytree(first, first.with_name("seed-0-copy"))
    frame, skipped = collect(runs.folder)
    assert list(frame.path) == [first]
    assert str(first) in skipped[0].reason


def test_runs_on_other_shards_are_not_mixed_in(runs):
    runs("s", "local", 0, 0.9, digest="a" * 64)
    runs("s", "fedavg", 0, 0.9, digest="a" * 64)
    other = runs("s", "centralized", 0, 0.9, digest="b" * 64)
    runs("s", "centralized", 1, 0.9, digest="b" * 64)
    frame, skipped = collect(runs.folder)
    assert sorted(zip(frame.method, frame.seed, strict=True)) == [("centralized", 1), ("fedavg", 0), ("local", 0)]
    assert [run.path for run in skipped] == [other]
    assert "(bbbbbb) are not those of the other runs of s with seed 0 (aaaaaa)" in skipped[0].reason


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        "\x00\xff",
        '{"schema": 99}',
        '{"schema": 1}',
        '{"schema": 1, "shards": 3}',
    ],
)
def test_a_damaged_run_is_skipped_with_a_reason(runs, damage):
    runs("s", "local", 0, 0.9)
    bad = runs("s", "fedavg", 0, 0.9)
    (bad / "summary.json").write_text(damage, encoding="latin-1")
    frame, skipped = collect(runs.folder)
    assert len(frame) == 1
    assert [run.path for run in skipped] == [bad]
    assert skipped[0].reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", None),
        ("hyperparameters", [1]),
        ("accuracy", {"client_mean": 90}),
        ("accuracy", {"client_mean": 0.5, "per_client": ["x"]}),
        ("accuracy", {"client_mean": 0.5, "per_client": [7]}),
        ("shards", {"parameters": 3}),
        ("train", 3),
        ("bits", "many"),
        ("evaluation", None),
        ("rounds", {}),
    ],
)
def test_a_summary_with_a_wrong_value_is_skipped_with_a_reason(runs, key, value):
    runs("s", "local", 0, 0.9)
    bad = runs("s", "fedavg", 0, 0.9)
    summary = json.loads((bad / "summary.json").read_text())
    (bad / "summary.json").write_text(json.dumps({**summary, key: value}))
    frame, skipped = collect(runs.folder)
    assert [run.path for run in skipped] == [bad]
    assert len(frame) == 1


def test_an_unfinished_run_and_an_unknown_method_are_skipped(runs):
    (runs("s", "local", 0, 0.9) / "summary.json").unlink()
    runs("s", "fedmagic", 0, 0.9)
    frame, skipped = collect(runs.folder)
    assert frame.empty
    assert ["unknown method" in run.reason or "not finished" in run.reason for run in skipped] == [True, True]


def test_what_lies_in_models_and_checkpoints_of_a_run_is_no_run(runs):
    folder = runs("s", "local", 0, 0.9)
    shutil.copytree(folder, folder / "checkpoints" / "round-00010")
    frame, skipped = collect(runs.folder)
    assert (len(frame), skipped) == (1, [])


def test_no_directory_is_a_wrong_request(tmp_path):
    with pytest.raises(RequestError, match="no runs here"):
        collect(tmp_path / "missing")
