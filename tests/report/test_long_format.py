"""Export of round logs in long format."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fedmosaic_cli.data.data_dirs import no_progress
from fedmosaic_cli.report import long_format
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.long_format import LONG_FIELDS, write_long_format
from fedmosaic_cli.report.selection import ReportSelection
from tests.report.runs_by_hand import Bench


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "runs")


def export(bench, selection=None):
    """Return the lines of the export as dictionaries, and the runs that are left out."""
    path = bench.folder.parent / "new" / "long.csv"
    groups = (selection or ReportSelection()).apply(comparison_groups(collect_runs(bench.folder)[0]))
    skipped = write_long_format(path, groups, no_progress)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == list(LONG_FIELDS)
        return list(reader), skipped


def test_each_number_of_a_log_is_one_line(bench):
    path = bench.write(hyperparameters={"trust": "paper"}, seed=4)
    lines, skipped = export(bench)
    assert not skipped
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    expected = {
        (row["client"], row["round"], name): float(value)
        for row in rows
        for name, value in row.items()
        if name not in ("client", "round") and value is not None
    }
    assert {(int(e["client"]), int(e["round"]), e["metric"]): float(e["value"]) for e in lines} == expected
    assert {tuple(line[name] for name in LONG_FIELDS[:5]) for line in lines} == {
        ("quick", "FedMosaic-U", "fedmosaic-entropy", '{"trust": "paper"}', "4")
    }


def test_only_selected_runs_are_exported_under_their_display_names(bench):
    bench.write("local")
    bench.write("fedavg")
    lines, _ = export(bench, ReportSelection(methods=("fedavg",), names={"quick": "Digits, 2", "fedavg": "Avg"}))
    assert {(line["setting"], line["method"], line["variant"]) for line in lines} == {("Digits, 2", "Avg", "fedavg")}


def test_truth_values_are_numbers_and_texts_are_left_out(bench):
    bench.write("gated", change=lambda row: {**row, "gate_on": row["client"] == 0, "message": "text"})
    lines, skipped = export(bench)
    assert not skipped
    assert {(line["client"], line["value"]) for line in lines if line["metric"] == "gate_on"} == {
        ("0", "1"),
        ("1", "0"),
    }
    assert "message" not in {line["metric"] for line in lines}


def test_a_damaged_log_is_named_and_the_others_are_exported(bench):
    bench.write("local")
    path = bench.write("fedavg")
    (path / "rounds.jsonl").write_text('{"round": 1}\n')
    lines, [skipped] = export(bench)
    assert {line["variant"] for line in lines} == {"local"}
    assert skipped.path == path
    assert "line 1" in skipped.reason


def test_logs_are_read_in_blocks(bench, monkeypatch):
    bench.write("local", rounds=5)
    whole, _ = export(bench)
    monkeypatch.setattr(long_format, "LINES_PER_BLOCK", 3)
    groups = comparison_groups(collect_runs(bench.folder)[0])
    blocks = list(long_format.long_format_blocks(groups, [], no_progress))
    assert len(blocks) == 1 + 3 + 1  # header, three full blocks and the rest of ten lines
    assert len(b"".join(blocks).splitlines()) == 1 + len(whole)


def test_nothing_is_written_if_the_export_fails(bench, monkeypatch):
    bench.write("local")
    monkeypatch.setattr(long_format, "log_blocks", lambda path, prefix: iter([b"x", None]))
    groups = comparison_groups(collect_runs(bench.folder)[0])
    with pytest.raises(TypeError):
        write_long_format(bench.folder.parent / "long.csv", groups, no_progress)
    assert [path.name for path in bench.folder.parent.iterdir()] == [Path("runs").name]
