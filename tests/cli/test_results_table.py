"""The table after training: means over seeds, the best method first."""

from __future__ import annotations

import io
import json
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.views.results_table import (
    RowRun,
    comparison_table,
    group_by_method,
    legend_lines,
    locations_line,
    results_table,
)
from fedmosaic_cli.cli.views.watch_view import ASCII_SYMBOLS, BLOCK_SYMBOLS
from fedmosaic_cli.storage.runs import RunDirectory

NUM_CLIENTS, NUM_ROUNDS = 4, 5


def finished(path, accuracy, *, bits_up=0, bits_down=0, method=None, curve=()):
    """A finished run with the given mean accuracy and accuracies over rounds."""
    path = Path(path)
    path.mkdir(parents=True)
    rows = [
        {"round": number, "client": client, "accuracy": value, "lambda": None}
        for number, value in enumerate(curve, start=1)
        for client in range(NUM_CLIENTS)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    variant = path.parent.name
    averages = ("client_mean", "sample_weighted", "worst")
    summary = {
        "method": method or variant.partition("-")[0],
        "variant": variant,
        "seed": int(path.name.rpartition("-")[2]) if path.name.startswith("seed-") else 0,
        "rounds": NUM_ROUNDS,
        "accuracy": dict.fromkeys(averages, accuracy),
        "bits": {"up": bits_up, "down": bits_down},
        "shards": {"clients": NUM_CLIENTS},
    }
    return RowRun(SimpleNamespace(files=RunDirectory(path)), summary)


def rendered(results, columns=80, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=columns, color_system=None, legacy_windows=False)
    console.print(results_table(group_by_method(results), console))
    stream.seek(0)
    return stream.read().splitlines()


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kilobyte = 8000 * NUM_CLIENTS * NUM_ROUNDS
    return [
        finished("runs/quick/local/seed-0", 0.80),
        finished("runs/quick/local/seed-1", 0.82),
        finished("runs/quick/ditto-mu-0.1/seed-0", 0.90, bits_up=19.2 * kilobyte, bits_down=0.5 * kilobyte),
        finished("runs/quick/ditto-mu-0.1/seed-1", 0.93, bits_up=19.2 * kilobyte, bits_down=0.5 * kilobyte),
        finished("runs/quick/fedmosaic-entropy/seed-0", 0.70, bits_up=2000 * kilobyte, curve=(0.1, 0.5, 0.7)),
        finished("runs/quick/centralized/seed-0", 0.95, bits_up=None, bits_down=None),
    ]


def test_each_method_has_one_row_and_the_best_is_first(results):
    rows = [line.split() for line in rendered(results)[2:]]
    assert [(row[0], row[1]) for row in rows] == [
        ("centralized*", "1"),
        ("ditto-mu-0.1", "2"),
        ("local*", "2"),
        ("fedmosaic-entropy", "1"),
    ]
    assert rows[1][2:5] == ["91.50", "±", f"{100 * stdev([0.90, 0.93]):.2f}"]
    assert rows[3][2:5] == ["70.00", "±", "-"], "one seed has no deviation"


def test_traffic_is_in_kilobytes_per_client_and_round(results):
    rows = {line.split()[0]: line.split()[7:9] for line in rendered(results)[2:]}
    assert rows["ditto-mu-0.1"] == ["19.2", "0.50"]
    assert rows["local*"] == ["0", "0"]
    assert rows["fedmosaic-entropy"][0] == "2,000"
    assert rows["centralized*"] == ["raw", "data"]
    legend = legend_lines(group_by_method(results), has_curves=False)
    assert "kB up, kB down: sent and received per client and round, 1 kB = 1000 bytes" in legend


def test_the_table_fits_80_columns_and_shows_a_curve(results):
    lines = rendered(results)
    assert max(map(len, lines)) <= 80
    assert lines[-1].rstrip().endswith("▁▆█")


@pytest.mark.parametrize(("encoding", "symbols"), [("utf-8", BLOCK_SYMBOLS), ("ascii", ASCII_SYMBOLS)])
def test_the_curve_has_symbols_of_the_encoding(results, encoding, symbols):
    lines = rendered(results, encoding=encoding)
    assert lines[-1].rstrip()[-3:] == symbols[0] + symbols[5] + symbols[7]
    assert ("±" in lines[1]) == (encoding == "utf-8")


def test_the_curve_is_left_out_where_it_does_not_fit(results):
    assert "round" in rendered(results, columns=78)[1]
    assert "round" not in rendered(results, columns=76)[1]
    assert rendered(results, columns=76)[3].split()[-2:] == ["19.2", "0.50"]


def test_a_damaged_log_leaves_out_the_curve(results):
    Path("runs/quick/fedmosaic-entropy/seed-0/rounds.jsonl").write_text("{")
    assert not any("▁" in line for line in rendered(results))


def test_one_run_is_a_table_of_one_row_without_deviation(results):
    _, units, row = rendered(results[2:3])
    assert "±" not in units + row
    assert row.split()[:3] == ["ditto-mu-0.1", "1", "90.00"]
    assert locations_line(group_by_method(results[2:3])) == "written to runs/quick/ditto-mu-0.1/seed-0"


def test_the_directory_is_named_once(results):
    assert locations_line(group_by_method(results)) == "written to runs/quick/<method>/seed-<seed>"
    assert locations_line(group_by_method(results[:2])) == "written to runs/quick/local/seed-<seed>"


def test_runs_of_several_settings_are_named_with_their_setting(results, tmp_path):
    other = finished("runs/quick-alpha-0.3/local/seed-0", 0.5)
    labels = [row.label for row in group_by_method([*results[:2], other])]
    assert labels == ["quick/local", "quick-alpha-0.3/local"]


def test_a_run_in_a_directory_of_another_layout_is_named_by_its_method(results):
    run = finished("mine/first", 0.5, method="ditto")
    run.summary["variant"] = "ditto"
    [row] = group_by_method([run])
    assert row.label == "ditto"
    assert locations_line([row]) == "written to mine/first"


def test_withheld_accuracies_are_last_and_named(results):
    results[0].summary["accuracy"] = {}
    last = rendered(results)[-1].split()
    assert last[0] == "local*"
    assert last[2] == "withheld"


def test_references_are_explained(results):
    assert any(line.startswith("* reference") for line in legend_lines(group_by_method(results), has_curves=True))
    assert not any(line.startswith("*") for line in legend_lines(group_by_method(results[2:4]), has_curves=True))


def test_without_local_runs_there_is_no_comparison(results):
    assert comparison_table(group_by_method(results)) is None


def test_training_with_two_seeds_prints_the_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app, ["baseline", "fedavg", "local", "--preset", "quickstart", "--rounds", "2", "--seeds", "0,1"]
    )
    assert result.exit_code == 0, result.output
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("fedavg"))
    summaries = [json.loads(Path(f"runs/quickstart/fedavg/seed-{seed}/summary.json").read_text()) for seed in (0, 1)]
    means = [100 * summary["accuracy"]["client_mean"] for summary in summaries]
    assert row[1:5] == ["2", f"{sum(means) / 2:.2f}", "±", f"{stdev(means):.2f}"]
    summary = summaries[0]
    kilobytes = summary["bits"]["up"] / 8000 / summary["shards"]["clients"] / summary["rounds"]
    assert float(row[7]) == pytest.approx(kilobytes, abs=0.05)
    assert "written to runs/quickstart/<method>/seed-<seed>" in result.stdout
    assert result.stdout.splitlines()[-1] == "next: fedmosaic report"
