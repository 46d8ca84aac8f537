"""The command `fedmosaic report`, on real runs."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.figure_options import parse_width
from fedmosaic_cli.cli.report import OutputFormat, show_tables
from fedmosaic_cli.cli.reproduce_report import requested_groups
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.paper_tables import overview_table, paper_table
from fedmosaic_cli.report.plots.figure_options import FigureWidth
from tests.conftest import fedmosaic


@pytest.fixture
def report(finished_runs, tmp_path, monkeypatch):
    """Invoke `fedmosaic report` in a directory with finished runs."""
    shutil.copytree(finished_runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, ["report", *(str(argument) for argument in arguments)])

    return call


def refused_line(result):
    """Return the one line on stderr of a refused_line request."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    [line] = result.stderr.splitlines()
    return line


def test_report_prints_a_table_of_the_paper(report):
    result = report("--table", "label-skew")
    assert result.exit_code == 0, result.stderr
    assert "| | Method | Practical non-IID: quickstart |" in result.stdout
    assert "| PFL | Per-FedAvg |" in result.stdout
    assert "fedmosaic train --preset quickstart --rounds 7 --expertise frequency --seeds 0,1" in result.stdout


def run_command(command):
    """Run a command from a report."""
    words = shlex.split(command)
    assert words[0] == "fedmosaic"
    done = CliRunner().invoke(app, [*words[1:], "--quiet"])
    assert done.exit_code == 0, done.output


def cell(report, *arguments, **wanted):
    """Return one cell of the table as JSON."""
    entries = json.loads(report(*arguments, "--json").stdout)
    [found] = [entry for entry in entries if wanted.items() <= entry.items()]
    return found


def test_the_command_of_an_incomplete_cell_completes_it(report, tmp_path):
    shutil.rmtree(tmp_path / "runs" / "quickstart" / "fedct" / "seed-1")
    gap = cell(report, method="FedCT")
    assert gap["seeds"] == [0]
    run_command(gap["command"])
    filled = cell(report, method="FedCT")
    assert (filled["seeds"], filled["command"]) == ([0, 1], None)


def test_commands_complete_runs_on_custom_shards_with_custom_settings_and_directory(report, tmp_path):
    own = ("--preset", "quickstart", "--shards", "mine", "--set", "train.lr=0.02", "--set", "methods.ditto.mu=3")
    places = ("--rounds", "2", "--seeds", "0,1", "--runs-dir", "elsewhere", "--quiet")
    for arguments in (
        ("partition", "--scheme", "iid", "--clients", "3", "--seed", "5", "--out", "mine", "--quiet"),
        ("baseline", "local", "ditto", *own, *places),
    ):  # as subprocesses, because a run records the arguments of its process
        assert fedmosaic(*arguments, cwd=tmp_path).returncode == 0
    shutil.rmtree("elsewhere/mine-lr-0.02/local/seed-1")
    gap = cell(report, "elsewhere", method="Centralized")
    assert gap["command"] == (
        "fedmosaic baseline centralized --preset quickstart --shards mine --rounds 2 --set train.lr=0.02 --seeds 0,1 "
        "--runs-dir elsewhere"
    )
    for method in ("Centralized", "Local training"):
        run_command(cell(report, "elsewhere", method=method)["command"])
        assert cell(report, "elsewhere", method=method)["seeds"] == [0, 1]


def test_all_tables_are_the_tables_with_runs(report):
    result = report("--table", "all", "--json")
    assert {entry["table"] for entry in json.loads(result.stdout)} == {"label-skew"}
    assert [f"'{name}'" in result.stderr for name in ("feature-shift", "hybrid", "compact")] == [True] * 3
    with_paper = json.loads(report("--table", "all", "--json", "--paper").stdout)
    assert {entry["table"] for entry in with_paper} == {"label-skew", "feature-shift", "hybrid", "compact"}
    assert sum(entry["published"] is not None for entry in with_paper) == 224 + 2 * 9


def test_a_table_without_runs_is_refused_with_a_command(report):
    assert "--preset quickstart-hybrid" in refused_line(report("--table", "hybrid"))


def test_statistics_are_printed_instead_of_tables(report):
    entries = json.loads(report("--statistics", "--json").stdout)["comparisons"]
    fedct = next(entry for entry in entries if entry["method"] == "FedCT")
    # Both seeds of FedCT have a Local run with ten clients.
    assert fedct["helped"] + fedct["unharmed"] + fedct["hurt"] == 20
    lines = list(csv.DictReader(report("--statistics", "--csv").stdout.splitlines()))
    assert [line["method"] for line in lines] == [entry["method"] for entry in entries]
    assert "| FedCT |" in report("--statistics").stdout
    latex = report("--statistics", "--latex").stdout
    assert "\\documentclass" in latex
    assert "\\begin{tabular}" in latex


def test_statistics_refuse_a_table_name(report):
    assert "omit --table" in refused_line(report("--statistics", "--table", "hybrid"))


def test_statistics_need_runs_of_local(report, tmp_path):
    shutil.rmtree(tmp_path / "runs" / "quickstart" / "local")
    assert "baseline local" in refused_line(report("--statistics"))


def test_report_writes_figures_and_page(report, tmp_path):
    result = report("--out", "results", "--html", "results/page/index.html")
    assert result.exit_code == 0, result.stderr
    names = {path.name for path in (tmp_path / "results" / "figures").iterdir()}
    kinds = ("accuracy", "lambda", "losses", "consensus", "communication", "clients", "public")
    assert names == {f"{kind}-quickstart.{form}" for kind in kinds for form in ("png", "pdf")}
    assert "no figure public-size: " in result.stderr
    assert "written: results/page/index.html" in result.stderr
    text = (tmp_path / "results" / "page" / "index.html").read_text(encoding="utf-8")
    assert "quickstart" in text
    assert "Comparison with local training, client by client" in text


def test_no_figures_writes_no_figures(report, tmp_path):
    assert report("--out", "results", "--no-figures").exit_code == 0
    assert not (tmp_path / "results" / "figures").exists()


@pytest.mark.parametrize("option", ["--html", "--out"])
def test_output_paths_of_the_wrong_type_are_refused(report, tmp_path, option):
    place = tmp_path / "taken"
    if option == "--html":
        place.mkdir()
    else:
        place.write_text("mine")
    assert "taken" in refused_line(report(option, place))
    assert place.is_dir() or place.read_text() == "mine"


def test_output_into_a_run_is_refused(report, tmp_path):
    run = tmp_path / "runs" / "quickstart" / "local" / "seed-0"
    before = (run / "summary.json").read_bytes()
    for arguments in (
        ("--html", run / "summary.json"),
        ("--out", run),
        ("--out", run / "models"),
        ("--html", run / "x"),
    ):
        assert "belongs to a run" in refused_line(report(*arguments))
    assert (run / "summary.json").read_bytes() == before


def test_html_overwrites_only_pages(report, tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for name in ("mine.yaml", "pipe", "/dev/null"):
        assert "not a page of fedmosaic" in refused_line(report("--html", name))
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    (tmp_path / "real.html").touch()
    (tmp_path / "link.html").symlink_to("real.html")
    for _ in range(2):
        assert report("--html", "link.html").exit_code == 0
        assert (tmp_path / "link.html").is_symlink()
        assert "quickstart" in (tmp_path / "real.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [("--out", "file/sub"), ("--html", "file/x.html"), ("--out", "x", "--html", "x")])
def test_impossible_output_paths_are_refused_before_anything_is_written(report, tmp_path, arguments):
    (tmp_path / "file").write_text("mine")
    refused_line(report(*arguments))
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "runs"}


def test_a_read_only_directory_is_a_resource_error(report, tmp_path, monkeypatch):
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and allowed(path, mode))
    result = report("--out", "results")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "the directory is not writable" in result.stderr


def test_notes_list_values_that_differ_from_the_preset(report, tmp_path):
    command = ("baseline", "local", "--preset", "quickstart", "--rounds", "2", "--set", "train.lr=0.01", "-q")
    assert fedmosaic(*command, "--runs-dir", "other", cwd=tmp_path).returncode == 0
    assert "on cpu, with train.lr=0.01." in report("other").stdout


def test_a_damaged_run_is_named_and_the_others_are_reported(report, tmp_path):
    bad = tmp_path / "runs" / "quickstart" / "ditto" / "seed-0"
    (bad / "summary.json").write_text("{")
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "notes" / "summary.json").write_text('{"mine": true}')
    result = report()
    assert result.exit_code == 0
    assert "Ditto" not in result.stdout
    assert "FedCT" in result.stdout
    notes, ditto = sorted(line for line in result.stderr.splitlines() if line.startswith("skipped "))
    assert "runs/notes" in notes
    assert "runs/quickstart/ditto/seed-0" in ditto


@pytest.mark.parametrize("name", ["config.yaml", "env.json"])
def test_changed_run_files_do_not_change_the_report(report, tmp_path, name):
    for folder in (tmp_path / "runs" / "quickstart").iterdir():
        if folder.name != "local":
            shutil.rmtree(folder)
    before = report().stdout
    assert "fedmosaic baseline centralized --preset quickstart --rounds 7 --seeds 0,1" in before
    for file in (tmp_path / "runs").rglob(name):
        file.write_text(file.read_text().replace("7", "8"))
    assert report().stdout == before


def test_only_unfinished_runs_give_a_one_line_error(report, tmp_path):
    for path in (tmp_path / "runs").rglob("summary.json"):
        path.unlink()
    assert "18 skipped" in refused_line(report())


def test_a_run_with_a_damaged_log_lacks_only_its_curves(report, tmp_path):
    log = tmp_path / "runs" / "quickstart" / "fedct" / "seed-0" / "rounds.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    result = report("--out", "results", "--html", "page.html")
    assert result.exit_code == 0, result.stderr
    assert "left out of figures runs/quickstart/fedct/seed-0" in result.stderr
    assert "| FL | FedAvg |" in result.stdout


def test_settings_and_methods_are_selected_named_and_laid_out(report, tmp_path):
    (tmp_path / "names.yaml").write_text('quickstart: "Digits, Dir(0.5)"\nditto: Ditto (tuned)\n', encoding="utf-8")
    options = ("--methods", "ditto,local", "--settings", "quickstart", "--names", "names.yaml", "--pm", "--average")
    lines = report(*options, "--plain").stdout.splitlines()
    assert lines[0] == "| | Method | Digits, Dir(0.5) | Average |"
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["Ditto (tuned)", "Local training"]
    assert " ± " in lines[3]
    entries = json.loads(report(*options, "--json").stdout)
    assert [(entry["setting"], entry["preset"], entry["method"], entry["method_name"]) for entry in entries] == [
        ("Digits, Dir(0.5)", "quickstart", "Ditto (tuned)", "ditto"),
        ("Digits, Dir(0.5)", "quickstart", "Local training", "local"),
    ]
    assert {entry["average"] for entry in entries} == {entry["mean"] for entry in entries}


def test_selected_methods_are_those_of_statistics_figures_and_page(report, tmp_path):
    options = ("--methods", "ditto,fedct", "--names", "names.yaml")
    (tmp_path / "names.yaml").write_text("ditto: Renamed\n", encoding="utf-8")
    statistics = json.loads(report(*options, "--statistics", "--json").stdout)["comparisons"]
    assert [line["method"] for line in statistics] == ["Renamed", "FedCT"]
    result = report(*options, "--out", "results", "--no-figures", "--html", "page.html", "--plain")
    assert result.exit_code == 0
    assert "do not affect the page" not in result.stderr
    note = "--average, --rank and --pm do not affect the page (--html)"
    assert report(*options, "--html", "page.html", "--average").stderr.count(note) == 1
    assert note not in report("--average").stderr
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Renamed" in text
    assert "FedAvg" not in text
    assert "shards" not in (tmp_path / "results" / "table.tex").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "dito"), "unknown method 'dito' (--methods): did you mean 'ditto'?"),
        (("--methods", "ditto,"), "cannot read 'ditto,' (--methods)"),
        (("--settings", "quickstar"), "unknown setting 'quickstar' (--settings): did you mean 'quickstart'?"),
        (("--names", "missing.yaml"), "missing.yaml"),
        (("--long", "runs"), "this is a directory or the page (runs)"),
        (("--long", "new.html", "--html", "new.html"), "this is a directory or the page (new.html)"),
        (("--long", "names.yaml"), "not a table of --long (names.yaml)"),
        (("--long", "runs/quickstart/local/seed-0/x.csv"), "belongs to a run"),
        (("--statistics", "--pm"), "omit --statistics"),
        (("--statistics", "--table-width", "487"), "omit --statistics"),
    ],
)
def test_impossible_selections_are_refused(report, tmp_path, arguments, message):
    (tmp_path / "names.yaml").write_text("ditto: Ditto\n", encoding="utf-8")
    assert message in refused_line(report(*arguments))
    assert (tmp_path / "names.yaml").read_text(encoding="utf-8") == "ditto: Ditto\n"


def test_long_format_is_written_beside_the_table(report, tmp_path):
    result = report("--methods", "local", "--long", "new/results.csv")
    assert result.exit_code == 0, result.stderr
    assert "written: new/results.csv" in result.stderr
    with (tmp_path / "new" / "results.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    accuracies = [
        line for line in lines if line["metric"] == "accuracy" and line["seed"] == "0" and line["round"] == "7"
    ]
    summary = json.loads((tmp_path / "runs" / "quickstart" / "local" / "seed-0" / "summary.json").read_text())
    assert [float(line["value"]) for line in accuracies] == summary["accuracy"]["per_client"]
    assert {line["method"] for line in lines} == {"Local training"}


def test_commands_are_not_wrapped_on_a_terminal(report, tmp_path, monkeypatch, capsys):
    shutil.rmtree(tmp_path / "runs" / "quickstart" / "fedct" / "seed-1")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    groups = comparison_groups(collect_runs(Path("runs"))[0])
    show_tables([overview_table(groups, False)], OutputFormat.terminal)
    lines = capsys.readouterr().out.splitlines()
    [position] = [number for number, line in enumerate(lines) if re.fullmatch(r"\d+ missing results?\. Run:", line)]
    assert len(lines[position + 1]) > 40
    assert all(line.startswith("fedmosaic ") and " --seeds " in line for line in lines[position + 1 :])


@pytest.mark.parametrize(("requested", "rows"), [(("fedct",), {"Local training", "FedCT"}), ((), None)])
def test_studies_report_only_the_requested_methods(report, requested, rows):
    planned = [SimpleNamespace(row=SimpleNamespace(method=method)) for method in ("fedct", "local")]
    plan = SimpleNamespace(options=SimpleNamespace(methods=requested), runs=planned)
    groups = comparison_groups(collect_runs(Path("runs"))[0])
    table = paper_table("label-skew", requested_groups(SimpleNamespace(plan=plan), groups), False)
    titles = {row.title for row in table.rows}
    assert titles == rows if requested else titles > {"Local training", "FedCT", "FedProx"}


# Figures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--style", "paper"), "--style has no effect without figures"),
        (("--width", "column"), "--width has no effect without figures"),
        (("--serif", "--out", "results", "--no-figures"), "--serif has no effect without figures"),
        (("--width", "wide", "--out", "results"), "unknown width 'wide' (--width): choose from column, text, page, or"),
        (("--width", "1.9", "--out", "results"), "a number of inches from 2 to 12, e.g. --width 6.75"),
        (("--width", "nan", "--out", "results"), "unknown width 'nan'"),
        (("--format", "eps", "--out", "results"), "unknown format 'eps' (--format): choose from png, pdf, svg"),
        (("--format", "", "--out", "results"), "unknown format ''"),
        (("--clients", "5-0", "--out", "results"), "cannot read '5-0' (--clients): write numbers and ranges"),
        (("--clients", "a", "--out", "results"), "cannot read 'a' (--clients)"),
        (("--clients", "0-99999999", "--out", "results"), "100000000 clients cannot be distinguished (--clients)"),
        (
            ("--clients", "0-6,7-13", "--out", "results"),
            "14 clients cannot be distinguished (--clients): choose",
        ),
    ],
)
def test_wrong_figure_options_are_refused_in_one_line(report, tmp_path, arguments, words):
    assert words in refused_line(report(*arguments))
    assert not (tmp_path / "results").exists()


def test_the_width_of_figures_is_a_name_or_a_number_of_inches():
    assert [parse_width(text) for text in ("page", "6.75", "2", "12")] == [FigureWidth.page, 6.75, 2.0, 12.0]


def test_figures_in_the_style_of_a_paper_have_files_of_captions(report, tmp_path):
    options = ("--style", "paper", "--width", "column", "--serif", "--format", "svg, pdf", "--clients", "0-2,4")
    result = report("--out", "results", *options)
    assert result.exit_code == 0, result.stderr
    figures = tmp_path / "results" / "figures"
    endings = {path.suffix for path in figures.iterdir()}
    assert endings == {".svg", ".pdf", ".md", ".tex"}
    captions = (figures / "captions.md").read_text()
    assert "clients 0\N{EN DASH}2, 4 of 10" in captions
    names = {path.stem for path in figures.glob("*.svg")}
    assert {line.split("**")[1] for line in captions.splitlines() if line} == names
    assert captions.count("quickstart") >= 5
    assert "quickstart" not in (figures / "accuracy-quickstart.svg").read_text()
