"""Tables from run directories written by hand, against the text they must give."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import collect, tabulate
from fedmosaic_cli.report.tables import to_csv, to_latex, to_markdown
from fedmosaic_cli.report.verdict import Verdict, judge


@pytest.fixture
def runs(tmp_path):
    """A function that writes a finished run."""

    def write(setting, variant, seed, accuracy, **changes):
        method = variant.split("-")[0]
        summary = {
            "schema": 1,
            "preset": setting,
            "dataset": "digits",
            "scheme": "dirichlet",
            "method": method,
            "variant": variant,
            "hyperparameters": {},
            "seed": seed,
            "rounds": 30,
            "model": {"name": "mlp"},
            "train": {"lr": 0.1},
            "shards": {"parameters": {"alpha": 1.0}},
            "accuracy": {"client_mean": accuracy},
            "evaluation": {"clients": "each on its own test part"},
            **changes,
        }
        folder = tmp_path / "runs" / changes.get("folder", setting) / variant / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("")
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    write.folder = tmp_path / "runs"
    return write


def table_of(runs):
    return tabulate(collect(runs.folder)[0])


def fill(runs):
    for seed, (local, central, fedavg, ours) in enumerate([(0.90, 0.95, 0.80, 0.96), (0.92, 0.97, 0.84, 0.98)]):
        runs("quick_start", "local", seed, local)
        runs("quick_start", "centralized", seed, central)
        runs("quick_start", "fedavg", seed, fedavg)
        runs("quick_start", "fedmosaic-entropy", seed, ours)
    runs("other|one", "local", 0, 0.5)
    runs("other|one", "centralized", 0, 0.4)
    runs("other|one", "fedct", 0, 0.45)


def test_markdown(runs):
    fill(runs)
    assert to_markdown(table_of(runs)) == (
        "| | Method | other\\|one | quick_start |\n"
        "|---|---|---:|---:|\n"
        "| baseline | Centralized | 40.00 | 96.00 (1.41) |\n"
        "|  | Local training | **50.00** | 91.00 (1.41) |\n"
        "| FL | FedAvg | - | 82.00 (2.83) ▼ |\n"
        "|  | FedCT | 45.00 ▽ | - |\n"
        "| co-training | FedMosaic (entropy) | - | **97.00 (1.41)** ▲ |\n"
        "\n"
        "Test accuracy (%): mean over clients, each on its own test part, personal model of the last round; "
        "mean (sample standard deviation) over seeds 0, 1.\n"
        "▼ worse than both baselines; ▽ worse than local training; ▲ better than both baselines.\n"
    )


def test_csv_holds_full_precision(runs):
    runs("s", "local", 0, 0.123456789)
    assert to_csv(table_of(runs)) == (
        "setting,family,method,mean,std,seeds,verdict,caveats\ns,baseline,Local training,0.123456789,,0,baseline,\n"
    )


def test_latex_has_colours_bold_and_escapes(runs):
    fill(runs)
    text = to_latex(table_of(runs))
    assert "quick\\_start" in text
    assert "\\verdictbetterthanboth{\\textbf{97.00} {\\tiny (1.41)}}" in text
    assert "\\verdictworsethanboth{82.00 {\\tiny (2.83)}}" in text
    assert "\\verdictbaseline{96.00 {\\tiny (1.41)}}" in text


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
@pytest.mark.parametrize("alone", [True, False])
def test_latex_compiles_alone_and_inside_a_paper(runs, tmp_path, alone):
    fill(runs)
    (tmp_path / "table.tex").write_text(to_latex(table_of(runs)), encoding="utf-8")
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,graphicx,xcolor}\\begin{document}A\\input{table}B\\end{document}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex" if alone else "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("accuracy", "local", "central", "verdict"),
    [
        (0.5, 0.6, 0.7, Verdict.WORSE_THAN_BOTH),
        (0.65, 0.6, 0.7, Verdict.NEITHER),
        (0.65, 0.7, 0.6, Verdict.WORSE_THAN_LOCAL),
        (0.8, 0.6, 0.7, Verdict.BETTER_THAN_BOTH),
        (0.6, 0.6, 0.5, Verdict.NEITHER),
        (0.7, 0.6, 0.7, Verdict.NEITHER),
        (0.7, None, 0.7, Verdict.UNKNOWN),
        (0.7, 0.7, None, Verdict.UNKNOWN),
    ],
)
def test_the_colour_rule(accuracy, local, central, verdict):
    assert judge(accuracy, local, central) is verdict


def test_a_method_that_lacks_seeds_says_so(runs):
    for seed in (0, 1, 2):
        runs("s", "local", seed, 0.9)
    runs("s", "fedavg", 1, 0.8)
    assert "80.00 [1 of 3 seeds]" in to_markdown(table_of(runs))


def test_runs_of_another_protocol_do_not_share_a_column(runs):
    runs("s", "local", 0, 0.9)
    runs("s", "local", 1, 0.7, shards={"parameters": {"alpha": 0.1}})
    assert len(table_of(runs).columns) == 2


def test_runs_with_other_hyperparameters_do_not_share_a_row(runs):
    runs("s", "fedmosaic-entropy", 0, 0.9, hyperparameters={"trust": "paper", "warmup_rounds": 5})
    runs("s", "fedmosaic-entropy", 1, 0.7, hyperparameters={"trust": 0.5, "warmup_rounds": 5})
    titles = [row.title for row in table_of(runs).rows]
    assert titles == ["FedMosaic (entropy, trust=0.5)", "FedMosaic (entropy, trust=paper)"]


def test_a_copied_run_counts_once(runs):
    first = runs("s", "local", 0, 0.9)
    shutil.copytree(first, first.with_name("copy-of-seed-0"))
    frame, skipped = collect(runs.folder)
    assert len(frame) == 1
    assert "already" in skipped[0].reason


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"schema": 99}',
        '{"schema": 1}',
        '{"schema": 1, "shards": 3}',
    ],
)
def test_a_damaged_run_is_skipped_with_a_reason(runs, damage):
    runs("s", "local", 0, 0.9)
    bad = runs("s", "fedavg", 0, 0.9)
    (bad / "summary.json").write_text(damage)
    frame, skipped = collect(runs.folder)
    assert len(frame) == 1
    assert [run.path for run in skipped] == [bad]
    assert skipped[0].reason


def test_an_unfinished_run_and_an_unknown_method_are_skipped(runs):
    (runs("s", "local", 0, 0.9) / "summary.json").unlink()
    runs("s", "fedmagic", 0, 0.9)
    frame, skipped = collect(runs.folder)
    assert frame.empty
    assert ["unknown method" in run.reason or "not finished" in run.reason for run in skipped] == [True, True]


def test_no_directory_is_a_wrong_request(tmp_path):
    with pytest.raises(RequestError, match="no runs here"):
        collect(tmp_path / "missing")


def test_the_best_of_a_column_is_marked_even_when_several_tie(runs):
    for variant in ("local", "fedavg"):
        runs("s", variant, 0, 0.9)
    cells = [row.cells[0] for row in table_of(runs).rows]
    assert [cell.best for cell in cells] == [True, True]
