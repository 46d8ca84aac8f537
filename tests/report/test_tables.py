"""Comparison tables in all formats, compared with golden files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.comparison_table import BaselineRelation, relation_to_baselines
from fedmosaic_cli.report.formats.latex import (
    PREAMBLE_FILE,
    latex_document,
    latex_preamble,
    standalone_latex,
    table_to_latex,
)
from fedmosaic_cli.report.formats.text_formats import (
    table_to_markdown,
    table_to_terminal,
    tables_to_csv,
    tables_to_json,
)
from fedmosaic_cli.report.paper_tables import PAPER_TABLES, overview_table, paper_table
from fedmosaic_cli.report.statistics import compare_methods_with_local
from fedmosaic_cli.report.stats_tables import build_statistics_tables, text_table_to_latex
from fedmosaic_cli.storage.files import to_checksummed_json

GOLDEN = Path(__file__).parent / "golden"
OFFICE = ("amazon", "amazon", "webcam")


def table_of(runs, name=None, paper=False):
    settings = comparison_groups(collect_runs(runs.folder)[0])
    return paper_table(name, settings, paper) if name else overview_table(settings, paper)


def write_runs(runs):
    """Write runs with missing cells, special characters in a name, a single seed, a tie and domains."""
    for seed, (local, central, fedavg, ours) in enumerate([(0.90, 0.95, 0.80, 0.96), (0.92, 0.97, 0.84, 0.98)]):
        for variant, value in {"local": local, "centralized": central, "fedavg": fedavg}.items():
            runs("practical-cifar10", variant, seed, value, dataset="cifar10")
        runs("practical-cifar10", "fedmosaic-frequency", seed, ours, dataset="cifar10")
    runs("practical-cifar10", "fedprox", 1, 0.95, dataset="cifar10")
    odd = {"scheme": "pathological", "parameters": {"classes_per_client": 2}}
    for variant, value in {"local": 0.5, "centralized": 0.4, "fedct": 0.45, "ditto": 0.5}.items():
        runs("50%_of|{x}\\<b>*$", variant, 0, value, **odd)
    for seed, shift in ((0, 0.0), (2, 0.1)):
        office = {"domains": OFFICE, "scheme": "domain", "dataset": "office10", "parameters": {}}
        runs("feature-shift-office10", "local", seed, [0.5 + shift, 0.7, 0.6], **office)
        runs("feature-shift-office10", "centralized", seed, [0.7, 0.7, 0.5], **office)
        runs("feature-shift-office10", "fedmosaic-entropy", seed, [0.8, 0.8, 0.55 + shift], **office)
    left_out = {"scheme": "hybrid", "left_out": {"1": 2}, "dataset": "digits-domains"}
    runs("quickstart-hybrid", "fedmosaic-entropy", 0, 0.25, nonidentical=["after round 3: torch"], **left_out)


@pytest.mark.parametrize("name", [None, *PAPER_TABLES])
@pytest.mark.parametrize("paper", [False, True], ids=["ours", "paper"])
@pytest.mark.parametrize("form", ["md", "tex", "csv", "txt"])
def test_tables_match_the_golden_files(runs, name, paper, form):
    write_runs(runs)
    table = table_of(runs, name, paper)
    console = Console(width=200)
    with console.capture() as terminal:
        console.print(table_to_terminal(table))
    texts = {
        "md": table_to_markdown(table),
        "tex": table_to_latex(table),
        "csv": tables_to_csv([table]),
        "txt": terminal.get(),
    }
    expected = GOLDEN / f"{table.name}{'-paper' if paper else ''}.{form}"
    if "WRITE_GOLDEN" in os.environ:  # then review the difference
        expected.write_text(texts[form], encoding="utf-8")
    assert texts[form] == expected.read_text(encoding="utf-8")


def test_fedmosaic_w_is_before_fedmosaic_u_in_every_table(runs):
    for variant in ("fedmosaic-entropy", "fedmosaic-frequency"):
        runs("feature-shift-office10", variant, 0, [0.5, 0.6, 0.7], domains=OFFICE, scheme="domain", dataset="office10")
    for name in (None, "feature-shift"):
        titles = [row.title for row in table_of(runs, name).rows if row.method_key[0] == "fedmosaic"]
        assert titles == ["FedMosaic-W", "FedMosaic-U"]


def test_the_first_part_of_a_split_table_has_results(runs):
    for seed in (0, 1):
        runs("another-setting-of-this-kind", "local", seed, 0.5, scheme="domain", domains=OFFICE)
    latex = table_to_latex(table_of(runs, "feature-shift", paper=True))
    first, *others = latex.split("\\toprule")[1:]
    assert others
    assert "50.00" in first
    assert not any("50.00" in part for part in others)


def test_results_with_and_without_published_values_begin_at_the_same_place(runs):
    for method in ("local", "fedmosaic-frequency", "gated"):
        runs("practical-cifar10", method, 0, 0.5, dataset="cifar10")
    assert "\\begin{tabular}{@{}ll@{}}" in table_to_latex(table_of(runs, paper=True))
    assert "\\begin{tabular}{@{}lc@{}}" in table_to_latex(table_of(runs))


def test_json_has_a_record_with_a_command_for_each_missing_cell(runs):
    write_runs(runs)
    entries = tables_to_json([table_of(runs, "label-skew")])
    gap = next(e for e in entries if (e["setting"], e["method"]) == ("practical-cifar10", "FedCT"))
    assert gap["mean"] is None
    assert gap["command"] == "fedmosaic baseline fedct --preset practical-cifar10 --seeds 0,1"
    full = next(e for e in entries if (e["setting"], e["method"]) == ("practical-cifar10", "FedMosaic-W"))
    assert (full["mean"], full["seeds"], full["command"]) == (0.97, [0, 1], None)


def test_a_quick_preset_is_placed_in_the_papers_column(runs):
    runs("practical-cifar10-quick", "local", 0, 0.7, dataset="cifar10")
    table = table_of(runs, "label-skew", paper=True)
    (column,) = [column for column in table.columns if column.group]
    assert (column.heading, column.label) == ("Practical non-IID", "CIFAR-10 (quick)")
    cell = next(row for row in table.rows if row.method_key == ("local", "")).cells[table.columns.index(column)]
    assert (cell.measured.mean, cell.published.mean) == (0.7, 0.8391)
    assert any("Quick presets use part of the data" in note for note in table.notes)
    settings = [column.group for column in table.columns if column.group]
    assert paper_table("label-skew", settings, with_published=True, with_missing_columns=False).columns == (column,)


def test_commands_of_tagged_rows_contain_the_tag(runs):
    for seed, kinds in ((0, ("paper", "0.3")), (1, ("paper",))):
        for trust in kinds:
            label = "" if trust == "paper" else f"-trust-{trust}"
            place = f"mine/fedmosaic-entropy{label}/seed-{seed}"
            runs("mine", "fedmosaic-entropy", seed, 0.5, hyperparameters={"trust": trust}, place=place)
    (command,) = [command for command in table_of(runs).commands if " train " in command]
    assert "--expertise entropy --set methods.fedmosaic.trust=0.3 --tag trust-0.3 --seeds 1" in command
    assert "--runs-dir" not in command


def test_a_cell_that_lacks_a_seed_has_a_command(runs):
    write_runs(runs)
    entries = tables_to_json([table_of(runs, "label-skew")])
    few = next(e for e in entries if (e["setting"], e["method"]) == ("practical-cifar10", "FedProx"))
    assert (few["mean"], few["seeds"]) == (0.95, [1])
    assert few["command"] == "fedmosaic baseline fedprox --preset practical-cifar10 --seeds 0"


def baseline_commands(runs):
    return [line for line in table_of(runs).commands if "baseline local" in line or "baseline fedavg" in line]


def test_commands_of_groups_with_the_same_name_have_separate_directories(runs):
    for rounds, seed in ((30, 0), (50, 1)):
        runs("s", "local", 0, 0.9, rounds=rounds, place=f"{rounds}/s/local/seed-0")
        runs("s", "local", 1, 0.9, rounds=rounds, place=f"{rounds}/s/local/seed-1")
        runs("s", "fedavg", seed, 0.9, rounds=rounds, place=f"{rounds}/s/fedavg/seed-{seed}")
    assert baseline_commands(runs) == [
        "fedmosaic baseline fedavg --preset s --seeds 1 --runs-dir runs/30/s-rounds-30",
        "fedmosaic baseline fedavg --preset s --seeds 0 --runs-dir runs/50/s-rounds-50",
    ]


def test_commands_name_the_directory_of_the_runs(runs):
    runs("s", "local", 0, 0.9, place="mine")
    runs("s", "fedavg", 1, 0.9, place="other/s/fedavg/seed-1")
    assert [line.partition("--runs-dir")[2] for line in baseline_commands(runs)] == ["", ""]
    shutil.move(runs.folder, "results")
    runs.folder = Path("results")
    assert [line.partition("--runs-dir ")[2] for line in baseline_commands(runs)] == ["results", "results"]


def test_commands_avoid_the_directories_of_runs_with_other_hyperparameters(runs):
    runs("quickstart", "fedprox", 0, 0.9, hyperparameters={"mu": 5.0})
    runs("quickstart", "local", 0, 0.9)
    [command] = [line for line in table_of(runs, "label-skew").commands if "fedprox" in line]
    assert command.endswith("--preset quickstart --seeds 0 --runs-dir runs/quickstart-more")


def test_commands_of_missing_seeds_repeat_the_hyperparameters(runs):
    for seed in (0, 1):
        runs("quickstart", "local", seed, 0.9)
    runs("quickstart", "fedprox", 0, 0.9, hyperparameters={"mu": 5.0})
    hyperparameters = {"expertise": "entropy", "trust": "paper"}
    runs("quickstart", "fedmosaic-entropy", 0, 0.9, hyperparameters=hyperparameters)
    own = [line for line in table_of(runs).commands if "--set" in line]
    assert own == [
        "fedmosaic baseline fedprox --preset quickstart --set methods.fedprox.mu=5 --tag '' --seeds 1",
        "fedmosaic train --preset quickstart --expertise entropy --set methods.fedmosaic.trust=paper --tag '' "
        "--seeds 1",
    ]


def test_a_narrow_terminal_gets_several_tables(runs):
    write_runs(runs)
    console = Console(width=80)
    with console.capture() as terminal:
        console.print(table_to_terminal(table_of(runs), console.width))
    lines = terminal.get().splitlines()
    assert sum("Centralized   " in line for line in lines) == 2
    assert "96.00 (1.41)" in terminal.get()
    assert max(len(line.rstrip()) for line in lines if "(" in line and "Local" not in line) <= 80


def test_commands_of_unfinished_runs_are_those_of_missing_ones(runs):
    runs("s", "local", 0, 0.9)
    (runs("s", "fedavg", 0, 0.9) / "summary.json").unlink()
    runs("s", "fedavg", 1, 0.9)
    assert baseline_commands(runs) == [
        "fedmosaic baseline local --preset s --seeds 1",
        "fedmosaic baseline fedavg --preset s --seeds 0",
    ]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
@pytest.mark.parametrize("layout", ["alone", "inside a paper", "beside the preamble"])
def test_latex_compiles(runs, tmp_path, layout):
    write_runs(runs)
    runs("äßłž \u03b1 日本 q\u0303 ế", "local", 0, 0.9)
    tables = [table_of(runs), *(table_of(runs, name, paper=True) for name in PAPER_TABLES)]
    floats = {f"{table.name}.tex": table_to_latex(table) for table in tables}
    comparisons = [
        line
        for setting in comparison_groups(collect_runs(runs.folder)[0])
        for line in compare_methods_with_local(setting)
    ]
    floats["statistics.tex"] = "".join(map(text_table_to_latex, build_statistics_tables(comparisons, None)))
    packages = "\\usepackage{booktabs,graphicx,multirow,xcolor}"
    texts = {
        "alone": {"main.tex": standalone_latex(list(floats.values()))},
        "inside a paper": {
            "main.tex": f"\\documentclass{{article}}{packages}\\begin{{document}}A\\input{{table}}B\\end{{document}}",
            "table.tex": standalone_latex(list(floats.values())),
        },
        "beside the preamble": {
            "main.tex": latex_document(list(floats)),
            PREAMBLE_FILE: latex_preamble(),
            **floats,
        },
    }
    for name, text in texts[layout].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


@pytest.mark.parametrize(
    ("accuracy", "local", "central", "relation"),
    [
        (0.5, 0.6, 0.7, BaselineRelation.WORSE_THAN_BOTH),
        (0.65, 0.6, 0.7, BaselineRelation.NEITHER),
        (0.65, 0.7, 0.6, BaselineRelation.WORSE_THAN_LOCAL),
        (0.8, 0.6, 0.7, BaselineRelation.BETTER_THAN_BOTH),
        (0.6, 0.6, 0.5, BaselineRelation.NEITHER),
        (0.7, 0.6, 0.7, BaselineRelation.NEITHER),
        ((0.55 + 0.65) / 2, 0.6, 0.5, BaselineRelation.NEITHER),
        (0.1 + 0.2, 0.2, 0.3, BaselineRelation.NEITHER),
        (0.7, None, 0.7, BaselineRelation.UNKNOWN),
        (0.7, 0.7, None, BaselineRelation.UNKNOWN),
    ],
)
def test_the_colour_rule(accuracy, local, central, relation):
    assert relation_to_baselines(accuracy, local, central) is relation


def test_a_method_is_compared_on_the_seeds_it_shares_with_the_baselines(runs):
    for seed, value in enumerate([0.5, 0.9]):
        runs("s", "local", seed, value)
        runs("s", "centralized", seed, value)
    # Better than the baselines' mean of 70, worse than the baselines with this seed.
    runs("s", "fedavg", 1, 0.8)
    assert {row.title: row.cells[0].measured.relation for row in table_of(runs).rows}[
        "FedAvg"
    ] is BaselineRelation.WORSE_THAN_BOTH


def test_runs_of_different_protocols_have_separate_columns_and_a_note(runs):
    runs("s", "local", 0, 0.9)
    runs("s", "local", 1, 0.7, rounds=50)
    table = table_of(runs)
    assert [column.label for column in table.columns] == ["s [rounds=30]", "s [rounds=50]"]
    assert (
        "Runs of s are not in one column, because they differ: rounds is 30 in [rounds=30], 50 in [rounds=50]."
        in table.notes
    )


def test_groups_with_many_differences_are_labelled_by_digest(runs):
    runs("s", "local", 0, 0.9)
    runs("s", "local", 1, 0.7, rounds=50, dataset="cifar10", train={"lr": 0.2})
    table = table_of(runs)
    assert all(column.label.startswith("s [") and "=" not in column.label for column in table.columns)
    sentence = next(note for note in table.notes if "differ" in note)
    assert all(word in sentence for word in ("rounds is", "dataset is", "train.lr is"))


def titles(runs, name=None):
    return [row.title for row in table_of(runs, name).rows if any(cell.measured for cell in row.cells)]


def test_runs_with_different_hyperparameters_have_separate_rows(runs):
    runs("s", "fedmosaic-entropy", 0, 0.9, hyperparameters={"trust": "paper", "warmup_rounds": 5})
    runs("s", "fedmosaic-entropy", 1, 0.7, hyperparameters={"trust": 0.1 + 0.2, "warmup_rounds": 5})
    assert titles(runs) == ["FedMosaic-U (trust=0.3)", "FedMosaic-U (trust=paper)"]


def test_special_characters_in_titles_are_escaped_in_latex(runs):
    for bits in (4, 6):
        runs("s", "fedmosaic-entropy", bits, 0.9, hyperparameters={"expertise_bits": bits})
    latex = table_to_latex(table_of(runs))
    for bits in (4, 6):
        assert f"FedMosaic-U (expertise\\_bits={bits})" in latex


def test_hyperparameters_other_than_the_preset_are_shown_in_the_title(runs):
    runs("pathological-cifar10", "fedprox", 0, 0.9, hyperparameters={"mu": 0.01}, scheme="pathological")
    runs("practical-cifar10", "fedprox", 0, 0.7, hyperparameters={"mu": 5.0})
    runs("practical-cifar10", "fedmosaic-entropy", 0, 0.7, hyperparameters={"expertise": "entropy", "trust": "paper"})
    assert titles(runs) == ["FedProx", "FedProx (mu=5)", "FedMosaic-U"]
    table = table_of(runs, "label-skew", paper=True)
    assert [row.title for row in table.rows][3:6] == ["FedProx", "FedProx (mu=5)", "FedCT"]
    published = {row.title: [cell.published for cell in row.cells] for row in table.rows}
    assert all(published["FedProx"])
    assert not any(published["FedProx (mu=5)"])
    assert not any("mu" in command for command in table.commands)


def test_only_methods_with_the_most_seeds_can_be_best(runs):
    for seed, value in enumerate([0.9, 0.5]):
        runs("s", "local", seed, value)
        runs("s", "fedavg", seed, value + 0.01)
    # Its mean is higher, because it lacks the hard seed.
    runs("s", "ditto", 0, 0.85)
    best = {row.title for row in table_of(runs).rows if row.cells[0].measured and row.cells[0].measured.is_best}
    assert best == {"FedAvg"}


def test_only_shown_methods_can_be_best(runs):
    for variant, value in {"local": 0.9, "ditto": 0.95, "fedavg": 0.92, "fedprox": 0.91}.items():
        runs("h", variant, 0, value, scheme="hybrid")
    assert {
        row.title for row in table_of(runs, "compact").rows if row.cells[0].measured and row.cells[0].measured.is_best
    } == {"FedAvg"}


def best_rows(runs):
    table = table_of(runs)
    return [row.title for row in table.rows if row.cells[0].measured and row.cells[0].measured.is_best]


def test_equal_printed_means_are_both_best(runs):
    for variant, value in {"fedprox": 0.9, "fedavg": 0.90000004, "fedct": 0.8999}.items():
        runs("s", variant, 0, value)
    assert best_rows(runs) == ["FedAvg", "FedProx"]


def test_references_are_never_the_best_method(runs):
    for variant, value in {"centralized": 0.99, "local": 0.98, "oracle": 0.97, "ditto": 0.6, "fedavg": 0.5}.items():
        runs("s", variant, 0, value)
    assert best_rows(runs) == ["Ditto"]


def test_a_single_method_is_not_called_the_best(runs):
    for variant, value in {"centralized": 0.5, "local": 0.4, "ditto": 0.6}.items():
        runs("s", variant, 0, value)
    assert best_rows(runs) == []


def test_a_paper_table_without_runs_is_none_unless_published_results_are_requested(runs):
    runs("s", "local", 0, 0.9)
    assert table_of(runs, "hybrid") is None
    table = table_of(runs, "hybrid", paper=True)
    assert [column.label for column in table.columns] == ["DomainNet", "DomainNet (ViT)", "Office-10"]
    paper = [row.cells[2].published for row in table.rows if row.cells[2].published]
    assert paper[-1].mean == pytest.approx(0.8943)
    assert table.rows[-1].title == "Gated co-training"  # not in the paper


def test_the_mean_of_a_domain_is_over_its_clients(runs):
    runs("f", "local", 0, [0.2, 0.4, 1.0], domains=OFFICE, scheme="domain")
    table = table_of(runs, "feature-shift")
    row = next(row for row in table.rows if row.title == "Local training")
    assert {c.domain: round(cell.measured.mean, 12) for c, cell in zip(table.columns, row.cells, strict=True)} == {
        "amazon": 0.3,
        "webcam": 1.0,
    }


def test_a_note_names_seeds_without_known_domains(runs):
    for seed in (0, 1):
        folder = runs("f", "local", seed, [0.2, 0.4, 1.0], domains=OFFICE, scheme="domain")
    (folder / "shards.json").unlink()
    table = table_of(runs, "feature-shift")
    assert "f: the runs of seed 1 have no valid manifest with domains." in table.notes
    [row] = [row for row in table.rows if row.title == "Local training"]
    assert [cell.measured.seeds for cell in row.cells] == [(0,), (0,)]
    assert "| 30.00 [1 of 2 seeds] |" in table_to_markdown(table)
    assert not any(" local " in command for command in table.commands), "the run exists"


def test_an_invalid_manifest_is_ignored(runs):
    folder = runs("f", "local", 0, [0.2, 0.4, 1.0], domains=OFFICE, scheme="domain")
    manifest = {**json.loads((folder / "shards.json").read_text()), "clients": [1, 2, 3]}
    del manifest["checksum"]
    (folder / "shards.json").write_bytes(to_checksummed_json(manifest))
    assert [column.label for column in table_of(runs, "feature-shift").columns] == ["all"]


def test_without_a_manifest_all_domains_share_a_column(runs):
    folder = runs("f", "local", 0, [0.2, 0.4, 1.0], domains=OFFICE, scheme="domain")
    (folder / "shards.json").unlink()
    table = table_of(runs, "feature-shift")
    assert [(column.heading, column.label) for column in table.columns] == [("f", "all")]


def test_methods_that_the_paper_does_not_compare_are_no_rows_of_its_tables(runs):
    for variant in ("local", "centralized", "fedavg", "fedavgft", "scaffold"):
        runs("practical-cifar10", variant, 0, 0.5, dataset="cifar10")
    titles = [row.title for row in table_of(runs).rows]
    assert {"FedAvg-FT", "SCAFFOLD"} <= set(titles)
    paper = [row.method_key[0] for row in table_of(runs, "label-skew").rows]
    assert "fedavg" in paper
    assert not {"fedavgft", "scaffold"} & set(paper)


def test_extended_rows_form_a_group_below_the_papers_rows(runs):
    for variant, value in {"local": 0.5, "centralized": 0.4, "student": 0.6, "oracle": 0.7, "fedavgft": 0.55}.items():
        runs("quickstart", variant, 0, value)
    groups = comparison_groups(collect_runs(runs.folder)[0])
    plain, extended = (paper_table("label-skew", groups, False, extended=flag) for flag in (False, True))
    assert extended.rows[: len(plain.rows)] == plain.rows
    more = extended.rows[len(plain.rows) :]
    assert [row.method_key[0] for row in more] == ["fedavgft", "student", "oracle"]
    assert {row.family for row in more} == {"not in the paper"}
    assert not {"student", "oracle", "fedavgft"} & {row.method_key[0] for row in plain.rows}


def test_oracle_is_never_the_best_method(runs):
    for variant, value in {"local": 0.5, "student": 0.6, "fedavg": 0.4, "oracle": 0.7}.items():
        runs("mine", variant, 0, value)
    best = {row.method_key[0] for row in table_of(runs).rows if row.cells[0].measured and row.cells[0].measured.is_best}
    assert best == {"student"}


@pytest.mark.parametrize(("oracle", "is_noted"), [(0.49, True), (0.5, True), (0.51, False)])
def test_setting_in_which_the_oracle_gains_nothing_is_noted(runs, oracle, is_noted):
    runs("mine", "local", 0, 0.5)
    runs("mine", "oracle", 0, oracle)
    runs("mine", "oracle", 1, 0.9)  # a seed without Local is not compared
    assert any("better votes are unlikely to help" in note for note in table_of(runs).notes) == is_noted
