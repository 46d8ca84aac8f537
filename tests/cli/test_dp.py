"""The privacy options on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.runner import experiment

SHORT = (
    "--preset",
    "quickstart",
    "--set",
    "methods.fedmosaic.warmup_rounds=1",
    "--set",
    "methods.fedct.warmup_rounds=1",
    *("--name", "quickstart", "--tag", ""),
)


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dp", "krr"), "neither epsilon nor label_epsilon is given (privacy): set epsilon"),
        (("--dp", "foo", "--dp-epsilon", "3"), "cannot read 'foo' (--dp): write off, or krr or xor"),
        (("--dp", "krr,foo", "--dp-epsilon", "3"), "cannot read 'krr,foo' (--dp): write off, or krr or xor"),
        (("--dp", "off,none"), "cannot read 'off,none' (--dp): write off, or krr or xor"),
        (
            ("--dp", "krr", "--dp-epsilon", "much"),
            "cannot read 'much' (--dp-epsilon): write a number such as 8, or inf",
        ),
        (("--dp", "krr", "--dp-epsilon", "0"), "privacy.epsilon is 0.0 (flag): it must be 'inf' or greater than 0"),
        (("--dp", "krr", "--dp-epsilon", "nan"), "privacy.epsilon is nan (flag): it must be 'inf' or finite"),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--dp-delta", "1"),
            "privacy.delta is 1.0 (flag): it must be less than 1",
        ),
        (("--dp-epsilon", "3"), "epsilon has no effect while labels are off (privacy): leave it out"),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--on-nan", "skip"),
            "train.on_nan is skip (flag): with noise it must be stop",
        ),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--set", "methods.fedmosaic.expertise_bits=16"),
            "methods.fedmosaic.expertise_bits is 16 (--set): with noise it must be at most 8",
        ),
        (
            ("--dp", "xor", "--dp-epsilon", "3", "--set", "defence.normalise=true"),
            "this defence cannot weight votes with xor noise (defence)",
        ),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--set", "defence.vote=trimmed"),
            "this defence cannot weight votes with krr noise (defence)",
        ),
        (
            ("--dp", "krr", "--set", "privacy.label_epsilon=1", "--set", "privacy.noise_multiplier=1e-20"),
            "privacy.noise_multiplier is 1e-20 (--set): it must be 0 or at least 1e-06",
        ),
        (("--set", "defence.trim=0.3"), "trim has no effect on a weighted vote (defence)"),
        (
            ("--set", "defence.vote=majority", "--set", "defence.normalise=true"),
            "normalise has no effect on a majority vote (defence)",
        ),
        (("--set", "defence.reputation_floor=0.3"), "reputation_floor has no effect without reputation (defence)"),
        (
            ("--set", "attack.kind=flip", "--set", "attack.clients=[0]", "--set", "attack.from_round=99"),
            "attack.from_round is 99 (--set): it must be at most",
        ),
        (
            ("--set", "attack.kind=flip", "--set", "attack.clients=[0]", "--set", "attack.flipped=false"),
            "flipped has no effect on flip (attack)",
        ),
        (("--dp", "off", "--dp-epsilon", "3"), "epsilon has no effect while labels are off (privacy): leave it out"),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--dp-unit", "record-assumed"),
            "unit record-assumed without changed_rows",
        ),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--set", "privacy.label_epsilon=1"),
            "epsilon and label_epsilon are both",
        ),
        (
            ("--dp", "krr,histogram", "--dp-epsilon", "3"),
            "a class histogram does not determine entropy (privacy.expertise)",
        ),
        (("--dp", "krr", "--set", "privacy.label_epsilon=1"), "privacy.label_epsilon is given, but no privacy.noise"),
        (
            ("--dp", "krr", "--dp-epsilon", "3", "--dp-max-eps", "2"),
            "planned total epsilon of 2.07732 is above the limit of 2",
        ),
        (
            ("--dp", "krr", "--dp-epsilon", "inf", "--dp-max-eps", "2"),
            "planned total epsilon of inf is above the limit",
        ),
    ],
)
def test_invalid_options_print_one_line_and_write_nothing(invoke, tmp_path, arguments, words):
    result = invoke("train", *SHORT, *arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    [line] = result.stderr.splitlines()
    assert words in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "perfedckt"])
def test_methods_that_share_no_labels_refuse_noise(invoke, method):
    result = invoke("baseline", method, *SHORT, "--dp", "krr", "--dp-epsilon", "3", "--dry-run")
    assert result.exit_code == 2
    assert "shares no labels of the public set, but noise is configured for them (privacy)" in result.stderr
    attacked = ("--set", "attack.kind=random", "--set", "attack.clients=[0]")
    result = invoke("baseline", method, *SHORT, *attacked, "--dry-run")
    assert "but an attack on them is configured (attack)" in result.stderr
    result = invoke("baseline", method, *SHORT, "--set", "defence.normalise=true", "--dry-run")
    assert "but a defence for them is configured (defence)" in result.stderr


def test_baselines_run_without_noise_and_others_are_left_out(invoke):
    result = invoke("baseline", "all", *SHORT, "--dp", "xor", "--dp-epsilon", "3", "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    planned = {Path(run["path"]).parts[-2]: run["privacy"] for run in json.loads(result.stdout)["runs"]}
    assert planned.keys() == {"centralized", "local", "fedct", "gated"}
    assert planned["local"] is None
    assert planned["centralized"] is None
    assert planned["fedct"]["total_epsilon"] == pytest.approx(1.8755, abs=1e-4)
    assert "left out: each of FedAvg, " in result.stderr


def test_a_method_whose_expertise_cannot_be_protected_is_left_out_of_all(invoke):
    result = invoke("baseline", "all", "--preset", "quickstart-dp", "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    assert {Path(run["path"]).parts[-2] for run in json.loads(result.stdout)["runs"]} == {
        "centralized",
        "local",
        "fedct",
    }
    assert "Gated co-training weights votes by count-confidence, which has no bound" in result.stderr
    refused = invoke("baseline", "gated", "--preset", "quickstart-dp", "--dry-run")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)


def test_dry_run_shows_the_privacy_budget(invoke, tmp_path):
    result = invoke(
        "train", *SHORT, "--expertise", "frequency", "--dp", "krr,histogram", "--dp-epsilon", "8", "--dry-run"
    )
    assert result.exit_code == 0, result.stderr
    lines = [line.strip() for line in result.stdout.splitlines()]
    start = lines.index("fedmosaic-frequency, planned:")
    assert lines[start + 1] == "privacy unit: client | delta: 1e-05 | rounds: 10"
    assert lines[start + 4] == "TOTAL epsilon over 10 rounds: 5.5   -> weak (at most 10)"
    assert list(tmp_path.iterdir()) == []


def test_student_prints_the_worst_case_of_randomised_labels(invoke, tmp_path):
    options = ("baseline", "student", *SHORT, "--dp", "krr", "--dp-epsilon", "8", "--dp-delta", "0.1")
    line = "  worst-case epsilon of the one exchange: 500 labels x 0.016 = 8"
    planned = invoke(*options, "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    assert line in planned.stdout.splitlines()
    finished = invoke(*options, "--rounds", "2", "--set", "methods.student.steps=20")
    assert finished.exit_code == 0, finished.stderr
    assert line in finished.stderr.splitlines()
    assert line in finished.stdout.splitlines()
    for text in (planned.stdout.split("student, planned:")[1], planned.stderr, finished.output):
        assert not [word for word in ("guarantee", "delta", "TOTAL", "weak", "DP") if word in text]
    summary = json.loads((tmp_path / "runs/quickstart/student/seed-0/summary.json").read_text())
    assert (summary["privacy"]["verdict"], summary["privacy"]["total_epsilon"]) == ("randomised labels", 8.0)
    assert summary["privacy"]["round_epsilon"] == {"labels": 8.0, "expertise": 0.0}


def test_a_large_delta_causes_a_warning(invoke):
    plan = ("train", *SHORT, "--dp", "krr", "--dp-epsilon", "8", "--dry-run")
    assert "warning: delta 0.1 is not below 1/" in invoke(*plan, "--dp-delta", "0.1").stderr
    assert "warning" not in invoke(*plan).stderr


def test_dp_off_overrides_the_noise_of_a_preset(invoke, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "extends: quickstart\ndescription: mine\nprivacy: {labels: xor, label_epsilon: 2.0, noise_multiplier: 1}\n"
    )
    plan = ("train", "--preset", own, "--dry-run", "--json")
    assert json.loads(invoke(*plan).stdout)["runs"][0]["privacy"]["labels"]["epsilon"] == 2
    assert json.loads(invoke(*plan, "--dp", "off").stdout)["runs"][0]["privacy"] is None
    changed = json.loads(invoke(*plan, "--dp-epsilon", "5").stdout)["runs"][0]["privacy"]
    assert (changed["labels"]["mechanism"], changed["total_epsilon"]) == ("xor", pytest.approx(3.9212, abs=1e-4))


def test_a_run_prints_the_budget_before_and_after(invoke, tmp_path):
    options = ("--rounds", "2", "--dp", "krr", "--dp-epsilon", "8", "--seeds", "0,1", "--quiet")
    result = invoke("train", *SHORT, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("fedmosaic-entropy, planned:") == 1
    assert "TOTAL epsilon over 2 rounds: 5.5 " in result.stderr
    assert result.stdout.count("fedmosaic-entropy, spent:") == 1
    summary = json.loads((tmp_path / "runs/quickstart/fedmosaic-entropy/seed-0/summary.json").read_text())
    assert summary["privacy"]["stage"] == "spent"
    assert 5 < summary["privacy"]["total_epsilon"] < 5.51
    assert [entry["mechanism"] for entry in summary["privacy"]["ledger"]] == ["krr", "gaussian"]
    assert summary["privacy_settings"]["epsilon"] == 8


def test_a_run_without_ledgers_fails(invoke, monkeypatch):
    monkeypatch.setattr(experiment, "privacy_ledgers", lambda config, federation: {})
    result = invoke("baseline", "fedct", *SHORT, "--rounds", "2", "--dp", "krr", "--dp-epsilon", "8", "--quiet")
    assert result.exit_code == 3
    assert "no client has a privacy ledger (privacy)" in result.stderr


def test_a_privacy_budget_refuses_more_rounds(invoke):
    run = ("baseline", "fedct", *SHORT, "--dp", "krr", "--quiet")
    assert invoke(*run, "--dp-epsilon", "8", "--rounds", "2").exit_code == 0
    more = invoke(*run, "--dp-epsilon", "8", "--rounds", "3", "--resume", "--allow-nonidentical")
    assert more.exit_code == 2
    assert "which determines the noise of every round (privacy.epsilon)" in more.stderr


@pytest.mark.parametrize(
    "change", [("--set", "methods.fedct.warmup_rounds=2"), ("--set", "train.lr=0.001"), ("--dp-delta", "1e-6")]
)
def test_a_run_with_noise_refuses_any_change_on_resume(invoke, change):
    """Other exchanges need other noise, and equal noise on different labels would reveal them."""
    run = ("baseline", "fedct", *SHORT, "--dp", "krr", "--dp-epsilon", "8", "--quiet")
    assert invoke(*run, "--rounds", "2").exit_code == 0
    changed = invoke(*run, "--rounds", "2", *change, "--resume", "--allow-nonidentical")
    assert changed.exit_code == 2
    assert len(changed.stderr.splitlines()) == 1


def test_local_runs_do_not_depend_on_noise(invoke, tmp_path):
    assert invoke("baseline", "local", *SHORT, "--rounds", "2", "--quiet").exit_code == 0
    again = invoke(
        "baseline", "local", *SHORT, "--rounds", "2", "--quiet", "--resume", "--dp", "krr", "--dp-epsilon", "1"
    )
    assert again.exit_code == 0, again.stderr
    assert "planned" not in again.stderr
    assert "privacy" not in (tmp_path / "runs/quickstart/local/seed-0/config.yaml").read_text()


def test_the_suggested_next_command_keeps_privacy_options(invoke):
    noise = ("--dp", "krr", "--dp-epsilon", "8", "--dp-delta", "1e-06", "--dp-unit", "client", "--dp-max-eps", "9")
    result = invoke("train", *SHORT, "--rounds", "2", *noise)
    assert result.exit_code == 0, result.stderr
    [line] = [line for line in result.stdout.splitlines() if line.startswith("next: ")]
    assert "--dp krr --dp-epsilon 8 --dp-delta 1e-06 --dp-unit client --dp-max-eps 9.0" in line


def test_estimated_traffic_includes_noise(invoke):
    options = ("--expertise", "frequency", "--dp", "krr,histogram", "--dp-epsilon", "8", "--dry-run", "--json")
    [run] = json.loads(invoke("train", "--preset", "quickstart", *options).stdout)["runs"]
    assert run["bits_up"] == 500 * 4 + 10 * 8


def test_rounds_with_too_few_clients_are_reported_and_recorded(invoke):
    attack = ("--set", "attack.kind=missing", "--set", "attack.clients=[1]", "--set", "defence.min_clients=10")
    done = invoke("train", "--preset", "quickstart", "--name", "quickstart", "--rounds", "6", "--quiet", *attack)
    assert done.exit_code == 0, done.stderr
    assert "too few valid messages in 4 of 6 rounds" in done.stderr
    assert "% over honest clients" in done.stdout
    report = invoke("report", "--markdown").stdout
    assert "§ includes a run that kept the previous consensus in rounds with too few valid messages" in report
    assert "1 attacker (missing), counted in the mean, defence min_clients 10." in report
    assert "\\textsection{}" in invoke("report", "--latex").stdout
