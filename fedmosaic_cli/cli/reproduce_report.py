"""What `fedmosaic reproduce` ends in: the table of a study beside the paper's, its figures, and a page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_json, print_stderr
from fedmosaic_cli.cli.data_dir_options import progress_callback
from fedmosaic_cli.cli.report import (
    choose_output_format,
    print_skipped_runs,
    show_tables,
    write_html_page,
    write_result_files,
)
from fedmosaic_cli.sweeps.shell_commands import shell_command
from fedmosaic_cli.sweeps.studies import STUDIES
from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepRunState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedmosaic_cli.cli.views.reproduce_view import SweepSchedule
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.sweeps.jobs import JobRunner


def write_study_report(schedule: SweepSchedule, output_dir: Path, figures: bool, quiet: bool) -> ComparisonTable | None:
    """Write table, statistics, figures and page of the study's finished runs; None where there are none."""
    from fedmosaic_cli.report.collect import collect_run_directories
    from fedmosaic_cli.report.comparison import comparison_groups

    study = STUDIES[schedule.study_name]
    folders = [cell.files.path for cell in schedule.plan.runs if cell.read_state() is SweepRunState.FINISHED]
    with progress_callback(quiet) as watch:
        frame, skipped = collect_run_directories(folders, watch)
        print_skipped_runs(skipped)
        if frame.empty:
            print_stderr("no run is finished: there is nothing to report yet")
            return None
        settings = [
            replace(setting, shown_hyperparameters=study.shown_hyperparameters) for setting in comparison_groups(frame)
        ]
        table = study_table(schedule, settings)
        write_result_files(output_dir, settings, [table], figures, watch, study.figures)
        write_html_page(output_dir / "index.html", settings, [table], skipped, watch)
    return table


def study_table(schedule: SweepSchedule, groups: Sequence[ComparisonGroup]) -> ComparisonTable:
    """The paper's table from these settings, or all of them side by side where it has none, with what is not in it."""
    from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY
    from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME
    from fedmosaic_cli.report.paper_tables import overview_table, paper_table

    study = STUDIES[schedule.study_name]
    table = paper_table(study.table, groups, with_published=True, with_missing_columns=False) if study.table else None
    if table is None:
        baselines = [key for key in (CENTRALIZED_KEY, LOCAL_KEY) if key[0] in {row.method for row in study.rows}]
        table = overview_table(groups, with_published=True, baselines=tuple(baselines))
    notes = [f"Left out: {line}." for line in schedule.plan.skipped_reasons]
    if schedule.plan.options.overrides:
        notes.append(f"Not the study's own settings: {', '.join(schedule.plan.options.overrides)}.")
    return replace(table, name=OVERVIEW_NAME, notes=(*table.notes, *notes))


def show_sweep_result(
    schedule: SweepSchedule, runner: JobRunner, table: ComparisonTable | None, output_dir: Path, as_json: bool
) -> None:
    """What came of it, on stdout."""
    if as_json:
        failures = [
            {"job": failure.job.title, "error": failure.error, "command": shell_command(failure.job)}
            for failure in runner.failures
        ]
        print_json({**sweep_to_json(schedule), "failures": failures, "out": str(output_dir) if table else None})
    elif table is not None:
        show_tables([table], choose_output_format(latex=False, markdown=False, as_csv=False, as_json=False))


def sweep_to_json(schedule: SweepSchedule) -> dict[str, Any]:
    """The study with every run as it stands now."""
    states = schedule.plan.read_states()
    runs = [
        {
            "setting": cell.scenario.name,
            "preset": cell.scenario.preset,
            "method": cell.row.method,
            "row": cell.row.title,
            "seed": cell.config.seed,
            "path": str(cell.files.path),
            "state": states[cell.files.path].value,
            "accuracy": cell.files.read_summary()["accuracy"]["client_mean"]
            if states[cell.files.path] is SweepRunState.FINISHED
            else None,
            "command": shell_command(SweepJob((cell,), schedule.plan.options)),
        }
        for cell in schedule.plan.runs
    ]
    return {
        "study": schedule.study_name,
        "scale": schedule.scale.value,
        "jobs": schedule.max_parallel,
        "estimated_seconds": schedule.estimate.seconds,
        "estimate_is_a_guess": schedule.estimate.is_guess,
        "changes": list(schedule.plan.options.overrides),
        "left_out": list(schedule.plan.skipped_reasons),
        "runs": runs,
    }
