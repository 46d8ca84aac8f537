"""Runs with privacy noise have separate rows, attacked runs have separate columns."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.labels.label_settings import PrivacySettings
from fedmosaic_cli.labels.privacy.noise import resolve_noise
from fedmosaic_cli.labels.privacy.privacy_report import spent_privacy_report
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups, method_title
from fedmosaic_cli.report.formats.latex import table_to_latex
from fedmosaic_cli.report.formats.text_formats import table_to_markdown, table_to_terminal
from fedmosaic_cli.report.html.page import build_page
from fedmosaic_cli.report.missing_runs import RunDestination, group_destination, missing_run_commands
from fedmosaic_cli.report.paper_tables import overview_table


def noise(**settings):
    """Return the privacy sections of a summary for ten rounds and thirty public examples.

    The total is the budget, as in runs of version 0.1.0.
    """
    chosen = PrivacySettings(**{"labels": "krr", **settings})
    resolved = resolve_noise(chosen, 30, 10, "entropy")
    ledger = [
        each for number in range(1, 11) for each in resolved.round_releases(number, 40, 30, 2.0, is_first=number == 1)
    ]
    return {
        "privacy": {
            **spent_privacy_report(resolved, {0: ledger, 1: []}, 10),
            **({} if chosen.epsilon is None else {"total_epsilon": chosen.epsilon}),
        },
        "privacy_settings": chosen.model_dump(mode="json"),
    }


def titles_and_group(folder):
    frame, skipped = collect_runs(folder)
    assert not skipped, skipped
    [group] = comparison_groups(frame)
    return [method_title(key) for key in group.runs_by_method], group


def test_noise_is_shown_beside_the_method(runs):
    runs("s", "fedmosaic-entropy", 0, 0.9)
    runs("s", "fedmosaic-entropy", 0, 0.5, place="a", **noise(epsilon=8.0))
    runs("s", "fedmosaic-entropy", 0, 0.6, place="b", **noise(epsilon=800.0))
    runs("s", "fedct", 0, 0.6, place="c", **noise(labels="xor", epsilon=2.0, expertise="none"))
    titles, _ = titles_and_group(runs.folder)
    assert titles == [
        "FedCT (DP xor, total epsilon 2)",
        "FedMosaic-U",
        "FedMosaic-U (DP krr, total epsilon 8)",
        "FedMosaic-U (noise krr, total epsilon 800)",
    ]


@pytest.mark.parametrize("epsilon", [8.0, 800.0])
def test_randomised_labels_have_no_badge(runs, epsilon):
    chosen = PrivacySettings(labels="krr", epsilon=epsilon)
    resolved = resolve_noise(chosen, 500, 1, None, claims_privacy=False)
    ledger = resolved.round_releases(10, 40, 500, 2.0, is_first=True)
    section = spent_privacy_report(resolved, {0: ledger}, 10)
    runs("s", "student", 0, 0.5, privacy=section, privacy_settings=chosen.model_dump(mode="json"))
    titles, group = titles_and_group(runs.folder)
    assert titles == [f"Student (randomised labels krr, worst-case epsilon {epsilon:g})"]
    shown = table_to_markdown(overview_table([group], with_published=False))
    assert f"worst-case epsilon of the one exchange: 500 labels x {epsilon / 500:g} = {epsilon:g}" in shown
    assert not [word for word in ("DP", "guarantee", "GUARANTEE", "TOTAL") if word in shown]


def test_other_differences_in_noise_are_shown(runs):
    runs("s", "fedmosaic-entropy", 0, 0.5, place="a", **noise(epsilon=8.0))
    runs("s", "fedmosaic-entropy", 0, 0.5, place="b", **noise(epsilon=8.0, label_share=0.25))
    runs("s", "fedmosaic-entropy", 1, 0.5, place="c", **noise(epsilon=8.0, max_epsilon=9.0))
    titles, group = titles_and_group(runs.folder)
    assert titles == [
        "FedMosaic-U (DP krr, total epsilon 8, label_share 0.25)",
        "FedMosaic-U (DP krr, total epsilon 8, label_share 0.5)",
    ]
    assert sorted(map(len, group.runs_by_method.values())) == [1, 2]  # the limit does not separate runs


def test_noise_that_rounds_to_the_same_epsilon_has_separate_rows(runs):
    runs("s", "fedmosaic-entropy", 0, 0.5, place="a", **noise(epsilon=8.0001))
    runs("s", "fedmosaic-entropy", 0, 0.5, place="b", **noise(epsilon=8.0002))
    titles, _ = titles_and_group(runs.folder)
    assert len(set(titles)) == 2


def test_a_conditional_epsilon_is_labelled(runs):
    runs("s", "fedct", 0, 0.5, **noise(epsilon=1.0, expertise="none", unit="record-assumed", changed_rows=3))
    titles, group = titles_and_group(runs.folder)
    assert titles == ["FedCT (DP krr, conditional total epsilon 1)"]
    [(title, *lines)] = overview_table([group], with_published=False).privacy_notes
    assert title == "FedCT (DP krr, conditional total epsilon 1) in s:"
    assert any(line.startswith("conditional: only if one record changes at most 3 public labels") for line in lines)


@pytest.mark.parametrize("epsilon", [8.0, 800.0])
def test_all_formats_contain_the_privacy_notes(runs, epsilon):
    runs("s", "fedmosaic-entropy", 0, 0.5, **noise(epsilon=epsilon))
    _, group = titles_and_group(runs.folder)
    table = overview_table([group], with_published=False)
    text = f"TOTAL epsilon over 10 rounds: {epsilon:g}"
    terminal = "\n".join(str(part) for part in table_to_terminal(table).renderables)
    html = build_page([group], [table], []).decode().partition('id="overview"')[2].partition("</section>")[0]
    for shown in (table_to_markdown(table), table_to_latex(table), html, terminal):
        assert text in shown
        assert ("no meaningful guarantee" in shown.lower()) == (epsilon > 10)
        assert "private" not in shown.lower()
        assert "guaranteed" not in shown.lower()


def test_tables_without_noise_have_no_privacy_notes(runs):
    runs("s", "fedmosaic-entropy", 0, 0.9)
    _, group = titles_and_group(runs.folder)
    table = overview_table([group], with_published=False)
    assert table.privacy_notes == ()
    assert "epsilon" not in table_to_markdown(table)


@pytest.mark.parametrize("section", ["attack", "defence"])
def test_attacked_runs_have_a_separate_column(runs, section):
    runs("s", "fedmosaic-entropy", 0, 0.9)
    runs("s", "fedmosaic-entropy", 0, 0.5, place="a", **{section: {"kind": "x"}})
    runs("s", "fedct", 0, 0.5, place="b", **{section: {}})
    frame, skipped = collect_runs(runs.folder)
    assert not skipped
    assert sorted(group.label for group in comparison_groups(frame)) == ["s [kind=None]", "s [kind=x]"]


def test_methods_without_shared_labels_are_not_requested_under_attack(runs):
    runs("s", "fedavg", 0, 0.9)
    runs("s", "fedct", 0, 0.5, place="a", attack={"kind": "random"})
    table = overview_table(comparison_groups(collect_runs(runs.folder)[0]), with_published=False)
    attacked = [command for command in table.commands if "kind=random" in command]
    assert not any("fedavg" in command for command in attacked)


def test_the_command_of_a_missing_seed_requests_the_same_noise(runs):
    runs("s", "local", 1, 0.9)
    runs("s", "fedct", 0, 0.5, **noise(epsilon=8.0, expertise="none"))
    _, group = titles_and_group(runs.folder)
    [key] = [key for key in group.runs_by_method if key[0] == "fedct"]
    [command] = missing_run_commands(group_destination(group), {key: (1,)})
    words = shlex.split(command)
    assert words[:3] == ["fedmosaic", "baseline", "fedct"]
    assert {"privacy.labels=krr", "privacy.epsilon=8.0", "privacy.expertise=none"} <= set(words)
    [plain] = missing_run_commands(group_destination(group), {("local", ""): (0,)})
    assert "privacy" not in plain
    assert missing_run_commands(RunDestination([], runs.folder), {("local", ""): (0,)})


@pytest.mark.parametrize(
    "damage",
    [
        {"privacy": None},
        {"privacy_settings": {}},
        {"privacy": {"verdict": "private and guaranteed"}},
        {"privacy": {"total_epsilon": -1}},
    ],
)
def test_an_incomplete_privacy_section_is_damage(runs, damage):
    runs("s", "local", 0, 0.9)
    content = noise(epsilon=800.0)
    for key, value in damage.items():
        content[key] = {**content[key], **value} if value and key == "privacy" else value
    runs("s", "fedct", 0, 0.9, **content)
    frame, skipped = collect_runs(runs.folder)
    assert list(frame.method) == ["local"]
    assert "the summary is damaged" in skipped[0].reason


def test_the_report_command_shows_noise(runs):
    runs("s", "fedmosaic-entropy", 0, 0.5, **noise(epsilon=8.0))
    shown = CliRunner().invoke(app, ["report", str(runs.folder)])
    assert shown.exit_code == 0, shown.output
    assert "| co-training | FedMosaic-U (DP krr, total epsilon 8) |" in shown.stdout
    assert "    privacy unit: client | delta: 1e-05 | rounds: 10 | worst client: 0" in shown.stdout
    entries = json.loads(CliRunner().invoke(app, ["report", str(runs.folder), "--json"]).stdout)
    assert "FedMosaic-U (DP krr, total epsilon 8)" in {entry["method"] for entry in entries}
