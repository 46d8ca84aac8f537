"""Choice, order and display names of the settings and methods of a report."""

from __future__ import annotations

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import LOCAL_KEY, comparison_groups, method_title
from fedmosaic_cli.report.selection import ReportSelection, parse_selection, read_display_names
from fedmosaic_cli.report.selection_order import SelectionOrder


@pytest.fixture
def groups(runs):
    """Two settings: `a` with several rows of two methods, and `b` with two protocols."""
    for variant, value in {"centralized": 0.9, "local": 0.5, "fedavg": 0.4, "ditto": 0.8}.items():
        runs("a", variant, 0, value)
    runs("a", "fedmosaic-entropy", 0, 0.7, hyperparameters={"trust": "paper"})
    runs("a", "fedmosaic-entropy", 0, 0.6, hyperparameters={"trust": 0.3}, place="a/other/seed-0")
    runs("a", "fedmosaic-frequency", 0, 0.65)
    for rounds in (30, 50):
        runs("b", "local", 0, 0.5, rounds=rounds, place=f"b/{rounds}/local")
        runs("b", "fedavg", 0, 0.9, rounds=rounds, place=f"b/{rounds}/fedavg")
    return comparison_groups(collect_runs(runs.folder)[0])


def titles(groups):
    return [method_title(key) for key in groups[0].runs_by_method]


def test_the_default_selection_changes_nothing(groups):
    assert ReportSelection().apply(groups) == groups


def test_methods_are_selected_and_ordered(groups):
    selected = ReportSelection(methods=("ditto", "fedmosaic-entropy", "Local training")).apply(groups)
    assert titles(selected) == [
        "Ditto",
        "FedMosaic-U (trust=0.3)",
        "FedMosaic-U (trust=paper)",
        "Local training",
    ]
    assert set(selected[0].runs.method) == {"ditto", "fedmosaic", "local"}
    assert len(selected[0].runs) == 4
    assert [group.label for group in selected] == ["a", "b [rounds=30]", "b [rounds=50]"]


def test_a_row_is_selected_by_its_title_and_keeps_it(groups):
    selected = ReportSelection(methods=("fedmosaic-u (TRUST=0.3)",)).apply(groups)
    assert titles(selected) == ["FedMosaic-U (trust=0.3)"]
    assert [group.name for group in selected] == ["a"]


def test_baselines_that_are_not_selected_stay_available_for_comparisons(groups):
    [selected, *_] = ReportSelection(methods=("ditto",)).apply(groups)
    assert list(selected.runs_by_method) == [("ditto", "")]
    assert float(selected.baseline_runs[LOCAL_KEY].accuracy.iloc[0]) == 0.5


def test_settings_are_selected_and_ordered(groups):
    assert [g.label for g in ReportSelection(settings=("b", "a")).apply(groups)] == [
        "b [rounds=30]",
        "b [rounds=50]",
        "a",
    ]
    assert [g.label for g in ReportSelection(settings=("b [rounds=50]",)).apply(groups)] == ["b [rounds=50]"]
    by_table = ReportSelection(settings=("b", "a"), order=SelectionOrder.table).apply(groups)
    assert [g.label for g in by_table] == ["a", "b [rounds=30]", "b [rounds=50]"]


def test_table_order_sorts_selected_methods_as_in_the_paper(groups):
    selected = ReportSelection(methods=("ditto", "local", "fedavg"), order=SelectionOrder.table).apply(groups)
    assert titles(selected) == ["Local training", "FedAvg", "Ditto"]


def test_accuracy_order_puts_baselines_first_and_then_the_best_method(groups):
    [selected] = ReportSelection(settings=("a",), order=SelectionOrder.accuracy).apply(groups)
    assert titles([selected]) == [
        "Centralized",
        "Local training",
        "Ditto",
        "FedMosaic-U (trust=paper)",
        "FedMosaic-W",
        "FedMosaic-U (trust=0.3)",
        "FedAvg",
    ]


def test_names_replace_titles_and_labels(groups):
    names = {"a": "Digits, Dir(0.5)", "b": "B", "fedmosaic-entropy": "Ours-U", "ditto": "Ditto*", "local": "Local"}
    selected = ReportSelection(names=names).apply(groups)
    assert [group.label for group in selected] == ["Digits, Dir(0.5)", "B [rounds=30]", "B [rounds=50]"]
    assert [group.name for group in selected] == ["a", "b", "b"]
    assert titles(selected) == [
        "Centralized",
        "Local",
        "FedAvg",
        "Ditto*",
        "FedMosaic-W",
        "Ours-U (trust=0.3)",
        "Ours-U (trust=paper)",
    ]


def test_names_of_rows_and_columns_come_before_names_of_methods_and_settings(groups):
    names = {"FedMosaic-U (trust=0.3)": "fixed", "fedmosaic-entropy": "U", "b [rounds=50]": "long", "b": "B"}
    selected = ReportSelection(names=names).apply(groups)
    assert titles(selected)[-3:] == ["FedMosaic-W", "fixed", "U (trust=paper)"]
    assert [group.label for group in selected] == ["a", "B [rounds=30]", "long"]


def test_the_name_of_a_method_keeps_the_marks_of_its_variants(groups):
    selected = ReportSelection(names={"fedmosaic": "Ours"}).apply(groups)
    assert titles(selected)[-3:] == ["Ours-W", "Ours-U (trust=0.3)", "Ours-U (trust=paper)"]


def test_display_names_can_be_selected(groups):
    names = {"a": "Digits", "ditto": "Ditto (ours)"}
    selected = ReportSelection(methods=("Ditto (ours)",), settings=("Digits",), names=names).apply(groups)
    assert [(group.label, titles([group])) for group in selected] == [("Digits", ["Ditto (ours)"])]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (ReportSelection(methods=("dito",)), "unknown method 'dito' (--methods): did you mean 'ditto'?"),
        (ReportSelection(settings=("bb",)), "unknown setting 'bb' (--settings): did you mean 'b'?"),
        (ReportSelection(names={"ditoo": "x"}), "unknown setting or method 'ditoo' (--names): did you mean 'ditto'?"),
        (ReportSelection(names={"ditto": "x", "fedavg": "x"}), "two methods are called 'x' (--names)"),
        (ReportSelection(names={"a": "x", "b [rounds=50]": "x"}), "two settings are called 'x' (--names)"),
        (ReportSelection(methods=("apfl",)), "no runs of these methods in these settings (--methods)"),
    ],
)
def test_impossible_selections_are_refused_in_one_line(groups, selection, message):
    with pytest.raises(RequestError) as caught:
        selection.apply(groups)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_presets_and_methods_without_runs_are_accepted(groups):
    names = {"practical-cifar10": "CIFAR-10, Dir(0.1)", "apfl": "APFL (2020)"}
    assert len(ReportSelection(names=names).apply(groups)) == 3


def test_a_name_of_a_setting_and_a_method_is_ambiguous(runs):
    runs("ditto", "ditto", 0, 0.9)
    groups = comparison_groups(collect_runs(runs.folder)[0])
    with pytest.raises(RequestError, match="'ditto' is a setting and a method"):
        ReportSelection(names={"ditto": "x"}).apply(groups)


def test_commas_inside_brackets_belong_to_a_name():
    text = "a, b [rounds=5, lr=0.1],FedProx (mu=5, x=1)"
    assert parse_selection(text, "--methods") == ("a", "b [rounds=5, lr=0.1]", "FedProx (mu=5, x=1)")
    with pytest.raises(RequestError, match=r"cannot read 'a,,b' \(--methods\)"):
        parse_selection("a,,b", "--methods")


@pytest.mark.parametrize("text", ["ditto: 5", "ditto: ''", "ditto: [a]", 'ditto: "a\\nb"', "ditto:"])
def test_a_display_name_is_one_line_of_text(tmp_path, text):
    path = tmp_path / "names.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match="the name of 'ditto' is not one line of text"):
        read_display_names(path)


def test_display_names_are_read_from_yaml(tmp_path):
    path = tmp_path / "names.yaml"
    path.write_text('quickstart: "Digits, Dir(0.5)"\nfedmosaic-entropy: Ours\n', encoding="utf-8")
    assert read_display_names(path) == {"quickstart": "Digits, Dir(0.5)", "fedmosaic-entropy": "Ours"}
