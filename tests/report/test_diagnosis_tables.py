"""Diagnosis tables: from summaries, from the logs of older runs, and gate decisions."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from fedmosaic_cli.labels.trust_diagnosis import diagnose_trust
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.diagnosis_tables import MAX_CLIENT_ROWS, build_diagnosis_tables, diagnosed_runs
from fedmosaic_cli.report.output_files import result_files
from tests.report.page_runs import page_of
from tests.report.runs_by_hand import Bench


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "runs")


def groups_in(bench):
    return comparison_groups(collect_runs(bench.folder)[0])


def result_texts(bench):
    return {name: content.decode() for name, content in result_files(groups_in(bench), [], [], None).items()}


def with_diagnosis(row):
    """Add the diagnosis keys of a log row."""
    return {**row, "vote_agreement": 0.5, "votes_differ": 0.125, "public_share": 0.25, "weighted_accuracy": 0.75}


def with_gate(row):
    decision = {"gate_agreement": 0.9, "gate_trust": 0.4, "gate_gain": -0.0125, "gate_error": 0.5}
    if row["round"] == 2 and row["client"] == 0:
        decision["gate_on"] = 0
    if row["round"] == 2 and row["client"] == 1:
        decision = {"gate_trust": 0.0, "gate_on": 1}
    return {**row, "lambda": 0.5 * row["client"], **(decision if row["round"] == 2 else {})}


def test_each_run_has_a_row_with_its_gains_over_local(bench):
    bench.write("local", accuracy=0.4)
    bench.write("fedavg", accuracy=0.9)
    bench.write("fedmosaic-entropy", change=with_diagnosis)
    bench.write("fedmosaic-entropy", seed=1, accuracy=0.3, change=with_diagnosis)  # Local has no run with this seed
    [table] = build_diagnosis_tables(groups_in(bench))
    assert table.title == "Diagnosis: quick"
    numbers = ("0.15", "0 of 2", "50.0", "12.5", "25.0", "75.0", "-")
    assert table.rows == (
        ("FedMosaic-U, seed 0", *numbers, "2/0/0", "+10.00"),
        ("FedMosaic-U, seed 1", *numbers, "-", "-"),
    )
    assert [head for head in table.header if "oracle" in head] == [
        "correct, weighted % (oracle)",
        "correct, majority % (oracle)",
    ]
    assert "true labels, which a federation does not have" in table.note


def test_there_is_no_diagnosis_without_co_training(bench):
    bench.write("local")
    bench.write("fedavg", change=lambda row: {**row, "lambda": 0.5})  # a log key of the same name
    assert build_diagnosis_tables(groups_in(bench)) == []
    assert not [name for name in result_texts(bench) if name.startswith("diagnosis")]
    assert '<section id="diagnosis"' not in page_of(bench.folder)


def test_the_diagnosis_in_the_summary_is_used(bench):
    run = bench.write("fedct")
    path = run / "summary.json"
    entry = diagnose_trust([{"round": 3, "client": 0, "lambda": 0.125, "bits_down": 8}], is_loss_based=False).to_dict()
    path.write_text(json.dumps({**json.loads(path.read_text()), "diagnosis": entry}))
    (run / "rounds.jsonl").unlink()
    [line] = diagnosed_runs(groups_in(bench)[0])
    assert line.diagnosis.median_lambda == 0.125


def test_older_runs_are_diagnosed_from_their_logs(bench):
    fades = bench.write(
        hyperparameters={"trust": "paper"}, change=lambda row: {**row, "lambda": 1e-9 * (row["round"] > 1)}
    )
    constant = bench.write(hyperparameters={"trust": 0.0}, change=lambda row: {**row, "lambda": 0.0})
    damaged = bench.write(hyperparameters={"trust": 1.0})
    (damaged / "rounds.jsonl").write_text('{"round": 2, "client": []}\n')
    [setting] = groups_in(bench)
    found = {run.method: run.diagnosis for run in diagnosed_runs(setting)}
    assert len(found) == 2, (fades, constant)
    warnings = {name: diagnosis.warnings() for name, diagnosis in found.items()}
    assert [bool(warned) for name, warned in sorted(warnings.items())] == [False, True]
    [table] = build_diagnosis_tables([setting])
    assert table.note.startswith("FedMosaic-U (trust=paper), seed 0: lambda is below 1e-6 for 2 of 2 clients")


def test_gate_decisions_are_listed_per_client(bench):
    bench.write("gated", change=with_gate)
    first, gates = build_diagnosis_tables(groups_in(bench))
    assert first.rows[0][:3] == ("Gated co-training, seed 0", "0.25", "1 of 2")
    assert gates.title == "Decisions of the gate: quick"
    assert gates.rows == (
        ("Gated co-training, seed 0, client 0", "2", "90.0", "0.40", "-0.0125", "0.5000", "off"),
        ("Gated co-training, seed 0, client 1", "2", "-", "0.00", "-", "-", "on"),
    )
    files = result_texts(bench)
    lines = list(csv.DictReader(io.StringIO(files["diagnosis-gates.csv"])))
    assert [(line["client"], line["gain"], line["on"]) for line in lines] == [
        ("0", "-0.0125", "False"),
        ("1", "", "True"),
    ]
    [line] = csv.DictReader(io.StringIO(files["diagnosis.csv"]))
    assert (line["silent_clients"], line["silent_by_gate"], line["helped"]) == ("1", "1", "")
    page = page_of(bench.folder)
    assert '<section id="diagnosis"' in page
    assert re.search(r'"title":"Gated co-training","style":\{[^}]*\},"family":"fedmosaic"', page), "selected at first"
    for text in ("Gated co-training, seed 0, client 0", "\u22120.0125", "Decisions of the gate: quick"):
        assert text in page


def test_the_list_of_gate_decisions_is_truncated(bench):
    clients = MAX_CLIENT_ROWS + 7
    bench.write("gated", clients=clients, rounds=2, change=lambda row: {**row, "lambda": 0.5, "gate_on": 1})
    *_, gates = build_diagnosis_tables(groups_in(bench))
    assert len(gates.rows) == MAX_CLIENT_ROWS
    assert gates.note.startswith("7 more are in the runs' summary.json.")
