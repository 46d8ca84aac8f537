"""Layout of comparison tables: averages, ranks, transposition, notes, and LaTeX inside a two-column paper."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from rich.console import Console

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.formats.latex import (
    TEXT_WIDTH_POINTS,
    heading_lines,
    split_columns,
    standalone_latex,
    table_to_latex,
    tables_to_latex,
)
from fedmosaic_cli.report.formats.table_grid import TableLayout, table_grid
from fedmosaic_cli.report.formats.text_formats import (
    table_to_markdown,
    table_to_terminal,
    tables_to_json,
    tables_to_markdown,
)
from fedmosaic_cli.report.paper_tables import overview_table, paper_table
from fedmosaic_cli.report.selection import ReportSelection
from fedmosaic_cli.report.statistics import compare_methods_with_local
from fedmosaic_cli.report.stats_tables import (
    TextTable,
    build_statistics_tables,
    latex_math,
    text_table_to_latex,
)

ACCURACIES = {
    "a": {"centralized": 0.95, "local": 0.5, "fedavg": 0.4, "ditto": 0.8, "fedmosaic-entropy": 0.6},
    "b": {"centralized": 0.9, "local": 0.5, "fedavg": 0.7, "ditto": 0.6, "fedmosaic-entropy": 0.6},
}


def groups_of(runs, **selection):
    groups = comparison_groups(collect_runs(runs.folder)[0])
    return ReportSelection(**selection).apply(groups)


@pytest.fixture
def groups(runs):
    for setting, accuracies in ACCURACIES.items():
        for variant, value in accuracies.items():
            for seed in (0, 1, 2):
                runs(setting, variant, seed, value + seed / 100)
    return groups_of(runs)


def rows_of(markdown):
    """Return the cells of a Markdown table by the label of the row."""
    lines = [line.split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    return {cells[1]: [cell.strip(" |") for cell in cells[2:]] for cells in lines}


def test_averages_and_ranks_are_columns(groups):
    rows = rows_of(table_to_markdown(overview_table(groups, False), TableLayout(average=True, rank=True)))
    assert rows["Method"][2:] == ["Average", "Mean rank"]
    assert {label: cells[2:] for label, cells in rows.items() if label != "Method"} == {
        "Centralized": ["93.50", "-"],
        "Local training": ["51.00", "3.50"],
        "FedAvg": ["56.00", "2.50"],
        "Ditto": ["**71.00**", "**1.75**"],
        "FedMosaic-U": ["61.00", "2.25"],
    }


def test_rows_without_all_settings_have_neither_average_nor_rank(runs, groups):
    runs("a", "apfl", 0, 0.9)
    rows = rows_of(table_to_markdown(overview_table(groups_of(runs), False), TableLayout(average=True, rank=True)))
    assert rows["APFL"] == ["90.00 [1 of 3 seeds]", "-", "-", "-"]
    assert rows["Ditto"][3] == "**1.75**"


def test_a_transposed_table_has_one_row_per_setting(groups):
    layout = TableLayout(transpose=True, average=True)
    rows = rows_of(table_to_markdown(overview_table(groups, False), layout))
    assert rows["Setting"] == ["Centralized", "Local training", "FedAvg", "Ditto", "FedMosaic-U"]
    assert rows["a"][3] == "**81.00 (1.00)**"
    assert rows["Average"] == ["93.50", "51.00", "56.00", "**71.00**", "61.00"]
    latex = table_to_latex(overview_table(groups, False), layout)
    assert re.search(r"  b &.*\n *\\midrule\n *Average &", latex), "averages are below a line"
    assert "\\multicolumn{2}{c}{\\textbf{References}} & \\multicolumn{1}{c}{\\textbf{FL}}" in latex


def test_floating_point_errors_do_not_change_printed_means_and_ties(runs):
    below = 0.8637499999999999
    assert f"{100 * below:.2f}" == "86.37"
    for setting in "ab":
        for method, accuracy in {"fedavg": 0.86375, "ditto": below, "fedprox": 0.8}.items():
            runs(setting, method, 0, accuracy)
    rows = rows_of(table_to_markdown(overview_table(groups_of(runs), False), TableLayout(average=True, rank=True)))
    assert rows["FedAvg"] == ["**86.38** ?"] * 2 + ["**86.38**", "**1.50**"]
    assert rows["Ditto"] == rows["FedAvg"]


@pytest.mark.parametrize(
    ("model", "evaluated"),
    [
        ("mlp", "FedAvg, FedBN: the global model after aggregation"),
        ("cnn-bn", "FedBN: the global model with the client's own batch normalisation"),
        ("unknown-plugin", "FedBN: the global model with the client's own batch normalisation"),
    ],
)
def test_notes_name_batch_normalisation_only_of_networks_that_have_it(runs, model, evaluated):
    for method in ("fedavg", "fedbn"):
        runs("a", method, 0, 0.5, model={"name": model})
    assert any(evaluated in note for note in overview_table(groups_of(runs), False).notes)


def test_plus_minus_replaces_brackets(groups):
    table, layout = overview_table(groups, False), TableLayout(plus_minus=True)
    assert "| Ditto | **81.00 ± 1.00** |" in table_to_markdown(table, layout)
    assert "\\textbf{81.00} {\\scriptsize $\\pm$ 1.00}" in table_to_latex(table, layout)
    assert "mean $\\pm$ standard deviation over seeds 0--2" in table_to_latex(table, layout)
    assert "mean (standard deviation) over seeds 0-2" in table_to_markdown(table)


def test_captions_explain_bold_and_uncoloured_results(runs, groups):
    table = overview_table(groups, False)
    assert "Bold: best method of each setting, without the references." in table.caption
    assert ", black: between the references or equal to one." in table_to_latex(table)
    assert "no symbol: between the references or equal to one." in table_to_markdown(table)
    [alone] = [group for group in groups_of(runs, methods=("fedavg", "local", "centralized")) if group.name == "a"]
    assert "Bold" not in overview_table([alone], False).caption


def test_a_plain_table_has_only_caption_and_legend(runs, groups):
    shutil.rmtree(runs.folder / "a" / "fedavg" / "seed-0")
    table, layout = overview_table(groups_of(runs), False), TableLayout(plain=True)
    for text in (table_to_markdown(table), table_to_latex(table)):
        assert "shards" in text
        assert "fedmosaic baseline fedavg" in text
    for text in (table_to_markdown(table, layout), table_to_latex(table, layout)):
        assert "shards" not in text
        assert "fedmosaic baseline" not in text
        assert "Best methods" not in text
        assert "seeds 0" in text


def test_missing_results_are_counted_above_their_commands(runs, groups):
    shutil.rmtree(runs.folder / "a" / "fedavg")
    [_, after] = table_to_markdown(overview_table(groups_of(runs), False)).split("1 missing result. Run:\n\n    ")
    assert after == "fedmosaic baseline fedavg --preset a --seeds 0,1,2\n"


def test_baselines_without_runs_are_no_rows_but_have_commands(runs):
    runs("a", "ditto", 0, 0.9)
    table = overview_table(groups_of(runs), False)
    assert [row.title for row in table.rows] == ["Ditto"]
    assert table.commands == ("fedmosaic baseline centralized local --preset a --seeds 0",)
    assert [entry["method"] for entry in tables_to_json([table])] == ["Ditto", "Centralized", "Local training"]


def test_requested_methods_are_rows_without_runs(runs):
    runs("a", "ditto", 0, 0.9)
    table = overview_table(groups_of(runs, methods=("apfl", "ditto")), False)
    assert [row.title for row in table.rows] == ["APFL", "Ditto"]
    assert table.commands == ("fedmosaic baseline apfl --preset a --seeds 0",)


def test_unselected_baselines_still_determine_colours_and_statistics(runs, groups):
    selected = groups_of(runs, methods=("ditto", "fedavg"), settings=("b",))
    table = overview_table(selected, False)
    assert "| Ditto | 61.00 (1.00) |" in table_to_markdown(table)
    assert "Local" not in table_to_markdown(table, TableLayout(plain=True))
    comparisons = compare_methods_with_local(selected[0])
    assert [(line.method, round(line.mean_gain, 9)) for line in comparisons] == [("Ditto", 0.1), ("FedAvg", 0.2)]


def test_paper_tables_show_only_selected_rows_in_the_selected_order(runs, groups):
    selected = groups_of(runs, methods=("ditto", "local"), names={"ditto": "Ditto (tuned)", "a": "Digits"})
    table = paper_table("label-skew", selected, False)
    assert [row.title for row in table.rows] == ["Ditto (tuned)", "Local training"]
    assert [column.label for column in table.columns] == ["Digits", "b"]


def test_families_are_labelled_only_if_their_rows_are_adjacent(runs, groups):
    scattered = overview_table(groups_of(runs, methods=("local", "ditto", "centralized")), False)
    assert {label.group for label in table_grid(scattered).rows} == {""}
    by_accuracy = overview_table(groups_of(runs, methods=("local", "ditto", "fedavg", "pfedme")), False)
    assert [label.group for label in table_grid(by_accuracy).rows] == ["references", "", "", ""]
    assert [label.group for label in table_grid(overview_table(groups, False)).rows] == [
        "references",
        "references",
        "FL",
        "PFL",
        "co-training",
    ]


@pytest.mark.parametrize(
    ("settings", "methods", "sentence"),
    [
        (("a",), (), "Best of 3 methods: Ditto, 81.00 %, +30.00 points over Local."),
        (("a",), ("fedavg",), "Result: FedAvg, 41.00 %, 10.00 points below Local."),
        (
            ("b",),
            ("ditto", "fedmosaic"),
            "Best of 2 methods: Ditto and FedMosaic-U, 61.00 %, +10.00 points over Local.",
        ),
        (
            (),
            (),
            "Best methods: Ditto in a (81.00 %, +30.00 points over Local); FedAvg in b (71.00 %, +20.00 points over "
            "Local).",
        ),
        (("a",), ("local",), ""),
    ],
)
def test_a_sentence_names_the_best_methods(runs, groups, settings, methods, sentence):
    table = overview_table(groups_of(runs, settings=settings, methods=methods), False)
    assert table.summary == sentence
    assert sentence in table_to_markdown(table)
    assert sentence in terminal_text(table)


def terminal_text(table):
    console = Console(width=300)
    with console.capture() as captured:
        console.print(table_to_terminal(table))
    return captured.get()


def test_many_columns_are_summarized_by_counts(runs):
    for number in range(6):
        for variant, value in {"local": 0.5, "ditto": 0.8, "fedavg": 0.9 if number == 0 else 0.4}.items():
            runs(f"s{number}", variant, 0, value)
    table = overview_table(groups_of(runs), False)
    assert table.summary == "Best method by number of columns (of 6): Ditto in 5, FedAvg in 1."


def test_the_caption_names_seeds_that_differ_between_columns(runs):
    for setting, seeds in {"a": (0, 1, 2), "b": (0, 1, 2), "c": (0, 2)}.items():
        for seed in seeds:
            runs(setting, "local", seed, 0.5)
    table = overview_table(groups_of(runs), False)
    assert table.caption.endswith("mean (standard deviation) over seeds 0-2 (c: seeds 0, 2).")
    assert "over seeds 0--2 (c: seeds 0, 2)." in table_to_latex(table)


def test_colours_are_explained_only_if_methods_have_one(runs):
    runs("a", "local", 0, 0.5)
    runs("a", "centralized", 0, 0.6)
    assert "Colours:" not in table_to_latex(overview_table(groups_of(runs), False))
    runs("a", "fedavg", 0, 0.4)
    [legend] = re.findall(r"Colours: (.*)\.\}", table_to_latex(overview_table(groups_of(runs), False)))
    assert legend == "\\verdictbaseline{references}, \\verdictworsethanboth{worse than both references}"


def test_notes_are_printed_once_per_document(groups):
    tables = [overview_table(groups, False), paper_table("label-skew", groups, False)]
    for text in (tables_to_markdown(tables), "".join(tables_to_latex(tables))):
        assert text.count("We evaluate each client's personalized model") == 1
        assert text.count("shards") == 2  # one note per setting


def test_latex_tables_have_labels(groups):
    assert "\\label{tab:fedmosaic-table}" in table_to_latex(overview_table(groups, False))
    comparisons = [line for group in groups for line in compare_methods_with_local(group)]
    labels = [
        re.findall(r"\\label\{(.*?)\}", text_table_to_latex(t)) for t in build_statistics_tables(comparisons, None)
    ]
    assert labels == [["tab:fedmosaic-comparison-a"], ["tab:fedmosaic-comparison-b"]]


def test_long_headings_are_broken_at_words_and_then_at_hyphens():
    assert heading_lines("Digits, Dir(0.5)") == ["Digits,", "Dir(0.5)"]
    assert heading_lines("Gated co-training") == ["Gated", "co-training"]
    assert heading_lines("practical-fashion-mnist") == ["practical-", "fashion-mnist"]
    assert heading_lines("") == [""]


def test_columns_are_split_into_equally_wide_parts():
    assert split_columns(50, [40] * 4) == [[0, 1, 2, 3]]
    assert split_columns(50, [100] * 4) == [[0, 1], [2, 3]]
    assert split_columns(50, [2 * TEXT_WIDTH_POINTS, 10]) == [[0], [1]]


def test_a_wider_text_needs_fewer_parts(runs):
    for number in range(9):
        for method in ("local", "fedavg"):
            runs(f"a-long-long-long-name-{number}", method, 0, 0.5)
    table = overview_table(groups_of(runs), False)
    parts = [table_to_latex(table, TableLayout(table_width=width)).count("toprule") for width in (385, 487, 900)]
    assert parts[0] > parts[-1] == 1
    assert parts == sorted(parts, reverse=True)


def test_rows_of_long_tables_are_split_into_floats():
    table = TextTable("Gate", ("Client", "gain"), tuple((f"client {i}", "0.1") for i in range(60)), name="gate")
    latex = text_table_to_latex(table)
    assert latex.count("\\begin{table}") == 2
    assert latex.count("client ") == 60
    assert latex.count("\\label") == 1
    first, second = latex.split("\\end{table}")[:2]
    assert "addtocounter" not in first
    assert "\\addtocounter{table}{-1}\n  \\caption{Gate (continued).}" in second, "it keeps its number"


def test_floats_of_a_wide_table_have_one_number(runs):
    for setting in range(40):
        runs(f"a-long-name-of-setting-{setting}", "local", 0, 0.5)
        for method in ("fedavg", "ditto", "fedprox", "apfl", "pfedme", "fedct", "fedbn", "fedphp"):
            runs(f"a-long-name-of-setting-{setting}", method, 0, 0.6)
    latex = table_to_latex(overview_table(groups_of(runs), False))
    assert latex.count("(continued)") >= 1
    assert latex.count("\\caption") - latex.count("\\addtocounter{table}{-1}") == 1


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("lambda \\textless{} 1e-6", "$\\lambda$ $<$ $10^{-6}$"),
        ("\\textless{} 0.001", "$<0.001$"),
        ("p (Holm)", "$p$ (Holm)"),
        ("from -1 to 1. p: two-sided", "from $-1$ to 1. $p$: two-sided"),
        ("-1.25", "$-1.25$"),
        ("FedMosaic-U, 1-2, pFedMe", "FedMosaic-U, 1-2, pFedMe"),
    ],
)
def test_symbols_are_formulas_in_latex(text, formula):
    assert latex_math(text) == formula


PAPER = r"""
\documentclass[twocolumn]{article}
\usepackage{booktabs,xcolor}
\begin{document}
Table~\ref{tab:fedmosaic-table} and text in two columns.
%s
\end{document}
"""


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
@pytest.mark.parametrize(
    ("settings", "layout", "environment"),
    [
        (1, TableLayout(plain=True), "table"),
        (3, TableLayout(average=True, rank=True, plus_minus=True), "table*"),
        (12, TableLayout(), "table*"),
        (3, TableLayout(transpose=True, average=True), "table*"),
    ],
)
def test_tables_fit_into_a_two_column_paper(runs, tmp_path, settings, layout, environment):
    for number in range(settings):
        for place, variant in enumerate(
            ("centralized", "local", "fedavg", "ditto", "apfl", "gated", "fedmosaic-entropy")
        ):
            for seed in (0, 1):
                runs(f"practical-fashion-{number}", variant, seed, 0.5 + place / 20 + seed / 100)
    groups = groups_of(runs)
    comparisons = [line for group in groups[:1] for line in compare_methods_with_local(group)]
    floats = [table_to_latex(overview_table(groups, False), layout)]
    assert f"\\begin{{{environment}}}" in floats[0]
    floats += map(text_table_to_latex, build_statistics_tables(comparisons, None))
    (tmp_path / "tables.tex").write_text(standalone_latex(floats), encoding="utf-8")
    (tmp_path / "paper.tex").write_text(PAPER % "\\input{tables}", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
