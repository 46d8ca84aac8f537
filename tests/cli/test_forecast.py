"""`fedmosaic forecast`: the table, JSON, the comparison with the outcome, and runs that cannot be forecast."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmosaic_cli as fedmosaic
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.views.forecast_view import summary_lines
from fedmosaic_cli.cotraining.forecast import NO_GAIN, forecast_features
from fedmosaic_cli.runner.forecast import (
    ForecastModelFile,
    expected_client_gain,
    forecast_run,
    load_forecast_model,
    read_exchange,
)
from fedmosaic_cli.storage.checkpoints import read_newest_checkpoint, write_checkpoint

SHORT = ("--preset", "quickstart", "--rounds", "3", "--quiet", "--name", "quickstart", "--tag", "")
STUDENT, LOCAL = Path("runs/quickstart/student/seed-0"), Path("runs/quickstart/local/seed-0")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made_runs(tmp_path_factory) -> Path:
    """Return short runs of student and of Local, made once."""
    folder = tmp_path_factory.mktemp("forecast")
    with chdir(folder):
        result = invoke("baseline", "local", "student", *SHORT)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def runs(made_runs, tmp_path, monkeypatch):
    """Copy the runs to the current directory."""
    shutil.copytree(made_runs, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


def refused(*arguments) -> str:
    """Check that a request is refused with one line on stderr; return it."""
    result = invoke("forecast", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    return line


def change_votes(change) -> None:
    """Write another checkpoint of the run of student, with changed arrays."""
    folder = STUDENT / "checkpoints"
    checkpoint, _ = read_newest_checkpoint(folder)
    write_checkpoint(folder, replace(checkpoint, arrays=change(dict(checkpoint.arrays)), round=checkpoint.round + 1))


@pytest.mark.usefixtures("runs")
def test_json_has_what_the_api_returns():
    result = invoke("forecast", STUDENT, "--json")
    assert result.exit_code == 0, result.stderr
    [document] = json.loads(result.stdout)
    forecast = forecast_run(STUDENT)
    assert document == json.loads(json.dumps(forecast.to_dict()))
    assert [client["client"] for client in document["clients"]] == list(range(10))
    assert {client["examples"] for client in document["clients"]} == {40}
    assert "gain" not in document["clients"][0]
    assert list(document["class_reliability"]) == list("0123456789")
    for client in forecast.clients:
        assert client.low <= client.expected_gain <= client.high
        assert 0 < client.coverage <= 1
        assert client.reason == ""
    assert forecast.mean.mean == pytest.approx(fmean(client.expected_gain for client in forecast.clients))
    assert forecast.to_frame().expected_gain.tolist() == [client.expected_gain for client in forecast.clients]


@pytest.mark.usefixtures("runs")
def test_the_api_accepts_a_result_and_a_directory():
    [result] = fedmosaic.load(STUDENT)
    assert fedmosaic.forecast(result, check=True) == fedmosaic.forecast(str(STUDENT), check=True)
    with pytest.raises(fedmosaic.FedMosaicError, match=r"no such directory \(nowhere\)"):
        fedmosaic.forecast("nowhere")


@pytest.mark.usefixtures("runs")
def test_table_has_a_line_per_client_and_a_summary():
    result = invoke("forecast", STUDENT)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 14
    assert lines[0].split()[:4] == ["client", "examples", "coverage", "%"]
    forecast = forecast_run(STUDENT)
    for client, line in zip(forecast.clients, lines[1:], strict=False):
        assert line.split()[:2] == [str(client.client), "40"]
        assert f" {100 * client.expected_gain:+.1f} " in line
        assert line.rstrip().endswith(client.advice)
    advised = sum(client.advice == "collaborate" for client in forecast.clients)
    assert lines[11].startswith(f"expected mean gain {100 * forecast.mean.mean:+.1f} points (")
    assert lines[11].endswith(f"; {advised} of 10 clients should collaborate")
    assert lines[12].startswith("votes are least reliable for ")
    assert load_forecast_model().study in lines[13]


@pytest.mark.usefixtures("runs")
def test_check_compares_with_the_gains_over_local():
    accuracies = [
        json.loads((path / "summary.json").read_text())["accuracy"]["per_client"] for path in (STUDENT, LOCAL)
    ]
    gains = [student - local for student, local in zip(*accuracies, strict=True)]
    forecast = forecast_run(STUDENT, check=True)
    assert [client.gain for client in forecast.clients] == pytest.approx(gains)
    text = invoke("forecast", STUDENT, "--check").stdout
    inside = sum(client.low <= client.gain <= client.high for client in forecast.clients)
    assert "test gain" in text
    assert f"on test data: mean gain {100 * fmean(gains):+.1f} points; " in text
    assert f"; {inside} of 10 gains in their interval" in text


@pytest.mark.usefixtures("runs")
def test_check_needs_a_local_run():
    shutil.rmtree(LOCAL)
    assert invoke("forecast", STUDENT).exit_code == 0
    line = refused(STUDENT, "--check")
    assert line.startswith("error: there is no Local run to compare with (runs/quickstart/local/seed-0): make it: ")


@pytest.mark.usefixtures("runs")
def test_only_the_accuracy_of_the_own_model_is_read_from_the_log():
    """Neither test accuracies nor what is measured with a student may enter the forecast."""
    exchange, model = read_exchange(STUDENT), load_forecast_model().to_model()
    kept = ("gate_accuracy_local", "holdout_z")
    rows = {client: {key: row[key] for key in kept} for client, row in exchange.rows.items()}
    for client in exchange.evidence:
        expected = expected_client_gain(exchange, client, model)
        assert expected_client_gain(replace(exchange, rows=rows), client, model) == expected
        features = forecast_features(exchange.evidence[client], exchange.class_counts[client])
        assert expected == model.expected_gain(features, rows[client]["gate_accuracy_local"])


@pytest.mark.usefixtures("runs")
def test_votes_at_random_bring_nothing():
    rng = np.random.default_rng(0)
    change_votes(
        lambda arrays: {
            name: rng.permutation(array) if name.startswith("server/votes/") else array
            for name, array in arrays.items()
        }
    )
    forecast = forecast_run(STUDENT)
    assert forecast.mean == NO_GAIN
    assert {(client.expected_gain, client.low, client.high) for client in forecast.clients} == {NO_GAIN}
    text = invoke("forecast", STUDENT).stdout
    assert text.count("stay local: voters do not agree with each other") == 10
    assert "0 of 10 clients should collaborate" in text


@pytest.mark.usefixtures("runs")
def test_guards_that_the_run_does_not_have_are_noted(monkeypatch):
    forecast = forecast_run(STUDENT)
    assert forecast.disabled_guards == ()
    assert not any("guards" in line for line in summary_lines(forecast))
    exchange = read_exchange(STUDENT)
    exchange.run.summary["hyperparameters"] |= {"check_agreement": False, "check_shares": False}
    monkeypatch.setattr("fedmosaic_cli.runner.forecast.read_exchange", lambda path: exchange)
    assert summary_lines(forecast_run(STUDENT))[-1] == (
        "note: the run has check_agreement=false and check_shares=false, the forecast is for the default guards"
    )


@pytest.mark.usefixtures("runs")
def test_clients_without_votes_have_no_forecast():
    change_votes(lambda arrays: {name: array for name, array in arrays.items() if "server/votes/3/" not in name})
    forecast = forecast_run(STUDENT)
    assert forecast.without_votes == (3,)
    assert [client.client for client in forecast.clients] == [0, 1, 2, *range(4, 10)]
    assert "note: no forecast for 1 clients that have not voted" in invoke("forecast", STUDENT).stdout


@pytest.mark.usefixtures("runs")
def test_runs_that_cannot_be_forecast_are_refused_in_one_line():
    remedy = "name a run of 'student', made by 'fedmosaic baseline student'"
    assert refused(LOCAL) == f"error: a run of 'local' has no stored votes ({LOCAL}): {remedy}"
    assert "not a run directory (runs)" in refused("runs")
    change_votes(lambda arrays: {name: array for name, array in arrays.items() if "votes" not in name})
    assert refused(STUDENT) == f"error: a run of an earlier version has no stored votes ({STUDENT}): {remedy}"
    shutil.rmtree(STUDENT / "checkpoints")
    assert refused(STUDENT) == f"error: the run has no checkpoint, which keeps the votes ({STUDENT}): {remedy}"


def test_a_run_without_gate_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--set", "methods.student.gate=off", "--rounds", "1")
    assert invoke("baseline", "student", *SHORT, *options).exit_code == 0
    assert refused(STUDENT) == (
        f"error: the accuracy of the clients' own models is unknown with the gate 'off' ({STUDENT}): make the run with "
        "--set methods.student.gate=safe"
    )


@pytest.mark.parametrize("mechanism", ["krr", "xor"])
def test_a_run_with_randomised_labels_is_refused(mechanism, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noise = ["--dp", mechanism, "--set", "privacy.label_epsilon=4"]
    assert invoke("baseline", "student", "--preset", "quickstart", "--rounds", "1", *noise).exit_code == 0
    path = next(tmp_path.glob("runs/quickstart/student*/seed-0"))
    assert "votes of this run are randomised" in refused(str(path))


def test_the_model_of_the_package_is_valid():
    content = load_forecast_model()
    assert isinstance(content, ForecastModelFile)
    assert content.quality.keys() == {"setting", "heterogeneity", "examples"}
    model = content.to_model()
    for residuals in (model.residuals, model.mean_residuals):
        assert [each.below for each in residuals] == sorted(each.below for each in residuals)
        assert residuals[-1].below == np.inf
        assert all(each.low <= 0 <= each.high for each in residuals)


@pytest.mark.usefixtures("runs")
def test_a_forecast_does_not_import_torch():
    script = (
        "import sys\n"
        "from fedmosaic_cli.cli.app import app\n"
        "try:\n"
        f"    app(['forecast', {str(STUDENT)!r}, '--check'])\n"
        "except SystemExit as leaving:\n"
        "    assert leaving.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
