"""The runs in the tables, and the reasons for skipped runs."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import collect_runs


def test_a_copied_run_counts_once_and_the_reason_names_the_kept_one(runs):
    first = runs("s", "local", 0, 0.9)
    shutil.copytree(first, first.with_name("seed-0-copy"))
    frame, skipped = collect_runs(runs.folder)
    assert list(frame.path) == [first]
    assert str(first) in skipped[0].reason


def test_runs_on_other_shards_are_skipped(runs):
    runs("s", "local", 0, 0.9, digest="a" * 64)
    runs("s", "fedavg", 0, 0.9, digest="a" * 64)
    other = runs("s", "centralized", 0, 0.9, digest="b" * 64)
    runs("s", "centralized", 1, 0.9, digest="b" * 64)
    frame, skipped = collect_runs(runs.folder)
    assert sorted(zip(frame.method, frame.seed, strict=True)) == [("centralized", 1), ("fedavg", 0), ("local", 0)]
    assert [run.path for run in skipped] == [other]
    assert "(bbbbbb) are not those of the other runs of s with seed 0 (aaaaaa)" in skipped[0].reason


def test_of_two_duplicates_the_one_on_the_common_shards_stays(runs):
    old = runs("s", "fedavg", 0, 0.1, digest="b" * 64, place="a/old")
    for variant in ("local", "centralized", "fedavg"):
        runs("s", variant, 0, 0.9, digest="a" * 64)
    frame, skipped = collect_runs(runs.folder)
    assert list(frame.accuracy) == [0.9] * 3
    assert [run.path for run in skipped] == [old]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "not written by fedmosaic"),
        ("\x00\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"mine": true}', "not written by fedmosaic"),
        ('{"schema": 99}', "newer fedmosaic, schema 99"),
        ('{"schema": 1}', "preset: Field required"),
        ('{"schema": 1, "shards": 3}', "Field required"),
    ],
)
def test_a_damaged_run_is_skipped_with_a_reason(runs, damage, reason):
    runs("s", "local", 0, 0.9)
    bad = runs("s", "fedavg", 0, 0.9)
    (bad / "summary.json").write_text(damage, encoding="latin-1")
    frame, skipped = collect_runs(runs.folder)
    assert len(frame) == 1
    assert [run.path for run in skipped] == [bad]
    assert reason in skipped[0].reason


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("seed", None, "seed"),
        ("seed", True, "seed"),
        ("hyperparameters", [1], "hyperparameters"),
        ("accuracy", {"client_mean": 90}, "accuracy.client_mean"),
        ("accuracy", {"client_mean": "0.5"}, "accuracy.client_mean"),
        ("accuracy", {"client_mean": True}, "accuracy.client_mean"),
        ("accuracy", {"client_mean": 0.5, "per_client": "0101"}, "accuracy.per_client"),
        ("accuracy", {"client_mean": 0.5, "per_client": ["x"]}, "accuracy.per_client.0"),
        ("accuracy", {"client_mean": 0.5, "per_client": [7]}, "accuracy.per_client.0"),
        ("accuracy", {"client_mean": 0.5, "per_client": [0.5, 0.6]}, "client_mean is not the mean"),
        ("shards", {"parameters": 3}, "shards.parameters"),
        ("train", 3, "train"),
        ("train", {"a": {"b": ["\x1b[31m"]}}, "cannot be printed"),
        ("train", json.loads("[" * 500 + "]" * 500), "train"),
        ("hyperparameters", json.loads('{"a":' * 500 + "1" + "}" * 500), "too deep"),
        ("bits", "many", "bits"),
        ("evaluation", None, "evaluation"),
        ("rounds", {}, "rounds"),
        ("preset", "a\x1b[2J", "cannot be printed"),
        ("preset", "a\nb", "cannot be printed"),
        ("device", "\ud800", "cannot be printed"),
        ("method", "fedmagic", "unknown method 'fedmagic'"),
    ],
)
def test_a_summary_with_a_wrong_value_is_skipped_with_a_reason(runs, key, value, named):
    runs("s", "local", 0, 0.9)
    bad = runs("s", "fedavg", 0, 0.9)
    summary = json.loads((bad / "summary.json").read_text())
    (bad / "summary.json").write_text(json.dumps({**summary, key: value}))
    frame, skipped = collect_runs(runs.folder)
    assert [run.path for run in skipped] == [bad]
    assert named in skipped[0].reason
    assert skipped[0].reason.isprintable()
    assert len(frame) == 1


def test_an_unfinished_run_is_skipped(runs):
    (runs("s", "local", 0, 0.9) / "summary.json").unlink()
    frame, [skipped] = collect_runs(runs.folder)
    assert frame.empty
    assert skipped.reason == "not finished, summary.json is missing"


def test_a_summary_that_is_not_a_file_is_skipped_with_a_reason(runs):
    folder, link = runs("s", "local", 0, 0.9), runs("s", "local", 1, 0.9)
    for run in (folder, link):
        (run / "summary.json").unlink()
        (run / "config.yaml").unlink()
    (folder / "summary.json").mkdir()
    (link / "summary.json").symlink_to("summary.json")
    frame, skipped = collect_runs(runs.folder)
    assert frame.empty
    assert [(run.path, run.reason) for run in skipped] == [
        (folder, "summary.json is not a file"),
        (link, "summary.json is not a file"),
    ]


def test_an_unreadable_directory_is_skipped_with_a_reason(runs, monkeypatch):
    runs("s", "local", 0, 0.9)
    unreadable, scandir = runs("s", "fedavg", 0, 0.9).parent, os.scandir

    def scandir_with_error(path):
        if path == str(unreadable):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scandir_with_error)
    frame, skipped = collect_runs(runs.folder)
    assert len(frame) == 1
    assert [(run.path, run.reason) for run in skipped] == [(unreadable, "cannot be read: Permission denied")]


def test_runs_behind_symbolic_links_are_found_once(runs, tmp_path):
    folder = runs("s", "local", 0, 0.9)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "s").symlink_to(runs.folder.absolute() / "s")
    (folder / "loop").symlink_to(runs.folder.absolute())
    assert len(collect_runs(runs.folder)[0]) == 1
    assert list(collect_runs(tmp_path / "elsewhere")[0].method) == ["local"]


def test_subdirectories_of_a_run_are_not_runs(runs):
    folder = runs("s", "local", 0, 0.9)
    shutil.copytree(folder, folder / "checkpoints" / "round-00010")
    frame, skipped = collect_runs(runs.folder)
    assert (len(frame), skipped) == (1, [])


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(RequestError, match="no such directory"):
        collect_runs(tmp_path / "missing")
