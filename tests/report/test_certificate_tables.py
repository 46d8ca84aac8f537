"""Tables of certificates: what one exchange brought to each client."""

from __future__ import annotations

import csv
import io

import pytest

from fedmosaic_cli.report.certificate_tables import (
    build_certificate_tables,
    certificates_to_csv,
    certified_runs,
    format_interval,
)
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.output_files import build_all_tables, result_files

GAIN = {"mean": 0.05, "low": 0.01, "high": 0.09}
CERTIFICATES = [
    {
        **{"client": 0, "collaborates": True, "accuracy_gain": GAIN, "brier_gain": GAIN, "agreement_z": 9.0},
        "weights": {"local": 0.5, "corrected": 0.25, "tuned": 0.25},
    },
    {"client": 1, "collaborates": False, "accuracy_gain": None, "brier_gain": None, "weights": {}, "agreement_z": 0.5},
]
EXCHANGE = {"confidence": 0.1, "median_z": 12.0, "holdout_z": 20.0, "class_coverage": 0.9, "label_accuracy": 0.7}


@pytest.fixture
def groups(runs):
    runs("mine", "local", 0, [0.5, 0.6])
    runs("mine", "student", 0, [0.6, 0.6], certificates=CERTIFICATES, exchange=EXCHANGE)
    return comparison_groups(collect_runs(runs.folder)[0])


def test_exchange_table_counts_clients_and_compares_held_out_with_test_gain(groups):
    exchange, _ = build_certificate_tables(groups)
    assert exchange.rows == (("Student, seed 0", "1 of 2", "+5.00", "+10.00", "10.0", "12.0", "20.0", "90", "70.0"),)


def test_certificate_table_has_a_row_per_client(groups):
    _, certificates = build_certificate_tables(groups)
    first, second = certificates.rows
    assert first == (
        *("Student, seed 0, client 0", "yes", "+5.0 [+1.0, +9.0]", "+0.050 [+0.010, +0.090]"),
        *("+10.00", "0.5/0.25/0.25", "9.0"),
    )
    assert second == ("Student, seed 0, client 1", "no", "-", "-", "+0.00", "-", "0.5")


def test_csv_has_full_precision_and_every_client(groups):
    rows = list(csv.DictReader(io.StringIO(certificates_to_csv(certified_runs(groups[0])))))
    assert [row["client"] for row in rows] == ["0", "1"]
    assert rows[0]["accuracy_gain_low"] == "0.01"
    assert rows[1]["accuracy_gain_low"] == ""
    assert float(rows[0]["test_gain"]) == pytest.approx(0.1)


def test_files_are_written_only_for_runs_with_certificates(groups, runs):
    names = result_files(groups, build_all_tables(groups, with_published=False), [], None)
    assert {"certificates.md", "certificates.tex", "certificates.csv"} <= names.keys()
    other = [group for group in groups if group.label == "other"]
    assert not any(name.startswith("certificates") for name in result_files(other, [], [], None))


def test_interval_is_printed_with_its_ends():
    assert format_interval(None) == "-"
