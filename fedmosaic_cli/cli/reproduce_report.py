"""Output of `fedmosaic reproduce`: the commands of a study, its table beside the paper's, figures and HTML page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout
from fedmosaic_cli.cli.data_dir_options import progress_callback
from fedmosaic_cli.cli.report import (
    choose_output_format,
    print_skipped_runs,
    show_tables,
    write_html_page,
    write_result_files,
)
from fedmosaic_cli.sweeps.studies import STUDIES
from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepRunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.cli.views.reproduce_view import SweepSchedule
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.formats.table_grid import TableLayout
    from fedmosaic_cli.sweeps.jobs import JobRunner


def print_shell_commands(schedule: SweepSchedule) -> None:
    """Print one complete command per remaining run, independent of environment variables."""
    options, num_locked = schedule.plan.options, 0
    for run in schedule.plan.runs:
        state = schedule.states[run.files.path]
        num_locked += state is SweepRunState.LOCKED
        if state in (SweepRunState.STARTED, SweepRunState.PENDING):
            job = SweepJob((run,), options)
            has_runs_dir = "--runs-dir" in job.cli_args() or options.runs_dir == Path("runs")
            runs_dir_args = () if has_runs_dir else ("--runs-dir", str(options.runs_dir))
            print_stdout(job.shell_command(*runs_dir_args, "--resume"))
    if num_locked:
        print_stderr(f"without {num_locked} runs that another process is executing")
    num_left = schedule.num_remaining - num_locked
    print_stderr(f"{num_left} of {len(schedule.plan.runs)} runs remain: execute the commands in this directory")


def write_study_report(
    schedule: SweepSchedule, output_dir: Path, figures: bool, quiet: bool, layout: TableLayout
) -> ComparisonTable | None:
    """Write table, statistics, figures and page of the finished runs. Return None if no run is finished."""
    from fedmosaic_cli.report.collect import collect_run_directories
    from fedmosaic_cli.report.comparison import comparison_groups

    study = STUDIES[schedule.study_name]
    folders = [run.files.path for run in schedule.plan.runs if run.read_state() is SweepRunState.FINISHED]
    with progress_callback(quiet) as on_progress:
        frame, skipped = collect_run_directories(folders, on_progress)
        print_skipped_runs(skipped)
        if frame.empty:
            print_stderr("no run is finished: there is nothing to report yet")
            return None
        groups = requested_groups(
            schedule,
            [replace(group, shown_hyperparameters=study.shown_hyperparameters) for group in comparison_groups(frame)],
        )
        table = study_table(schedule, groups)
        figure_paths = write_result_files(output_dir, groups, [table], figures, on_progress, study.figures, layout)
        write_html_page(output_dir / "index.html", groups, [table], skipped, on_progress, figure_paths)
    return table


def requested_groups(schedule: SweepSchedule, groups: Sequence[ComparisonGroup]) -> list[ComparisonGroup]:
    """Return the groups with the methods that were requested with `--methods`, so that tables have no other rows."""
    from fedmosaic_cli.report.selection import ReportSelection
    from fedmosaic_cli.report.selection_order import SelectionOrder

    if not schedule.plan.options.methods:
        return list(groups)
    methods = tuple(dict.fromkeys(run.row.method for run in schedule.plan.runs))
    return ReportSelection(methods=methods, order=SelectionOrder.table).apply(groups)


def study_table(schedule: SweepSchedule, groups: Sequence[ComparisonGroup]) -> ComparisonTable:
    """Build the paper's table, or an overview if the study has none, with notes on what is missing."""
    from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY
    from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME
    from fedmosaic_cli.report.paper_tables import overview_table, paper_table

    study = STUDIES[schedule.study_name]
    table = None
    if study.table:
        extended = schedule.plan.options.extended
        table = paper_table(study.table, groups, True, with_missing_columns=False, extended=extended)
    if table is None:
        baselines = [key for key in (CENTRALIZED_KEY, LOCAL_KEY) if key[0] in {row.method for row in study.rows}]
        table = overview_table(groups, with_published=True, baselines=tuple(baselines))
    notes = [f"Left out: {line}." for line in schedule.plan.skipped_reasons]
    if schedule.plan.options.overrides:
        notes.append(f"Settings that differ from the study: {', '.join(schedule.plan.options.overrides)}.")
    return replace(table, name=OVERVIEW_NAME, notes=(*table.notes, *notes))


def show_sweep_result(
    schedule: SweepSchedule,
    runner: JobRunner,
    table: ComparisonTable | None,
    output_dir: Path,
    as_json: bool,
    layout: TableLayout,
) -> None:
    """Print the result of a sweep to stdout."""
    if as_json:
        failures = [
            {"job": failure.job.title, "error": failure.error, "command": failure.job.shell_command()}
            for failure in runner.failures
        ]
        print_json({**sweep_to_json(schedule), "failures": failures, "out": str(output_dir) if table else None})
    elif table is not None:
        show_tables([table], choose_output_format(latex=False, markdown=False, as_csv=False, as_json=False), layout)


def sweep_to_json(schedule: SweepSchedule) -> dict[str, Any]:
    """Return the study with the current state of every run."""
    states = schedule.plan.read_states()
    runs = [
        {
            "setting": run.scenario.name,
            "preset": run.scenario.preset,
            "method": run.row.method,
            "row": run.row.title,
            "seed": run.config.seed,
            "path": str(run.files.path),
            "state": states[run.files.path].value,
            "accuracy": run.files.read_summary()["accuracy"]["client_mean"]
            if states[run.files.path] is SweepRunState.FINISHED
            else None,
            "command": SweepJob((run,), schedule.plan.options).shell_command(),
        }
        for run in schedule.plan.runs
    ]
    return {
        "study": schedule.study_name,
        "scale": schedule.scale.value,
        "jobs": schedule.max_parallel,
        "estimated_seconds": schedule.estimated_seconds,
        "estimate_is_a_guess": schedule.estimated_seconds is None,
        "changes": list(schedule.plan.options.overrides),
        "left_out": list(schedule.plan.skipped_reasons),
        "runs": runs,
    }
