"""What `fedmosaic reproduce` ends in: the table of a study beside the paper's, its figures, and a page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import remark, say_json
from fedmosaic_cli.cli.data_dir_options import watching
from fedmosaic_cli.cli.report import form_of, show_tables, tell_skipped, write_page, write_results
from fedmosaic_cli.sweeps.shell_commands import command_of
from fedmosaic_cli.sweeps.studies import STUDIES
from fedmosaic_cli.sweeps.sweep_plan import Job, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedmosaic_cli.cli.views.reproduce_view import Plan
    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.comparison_table import Table
    from fedmosaic_cli.sweeps.jobs import Crew


def write_report(plan: Plan, target: Path, figures: bool, quiet: bool) -> Table | None:
    """Write table, statistics, figures and page of the study's finished runs; None where there are none."""
    from fedmosaic_cli.report.collect import collect_from
    from fedmosaic_cli.report.comparison import settings_of

    study = STUDIES[plan.what]
    folders = [cell.files.path for cell in plan.program.cells if cell.state() is State.DONE]
    with watching(quiet) as watch:
        frame, skipped = collect_from(folders, watch)
        tell_skipped(skipped)
        if frame.empty:
            remark("no run is finished: there is nothing to report yet")
            return None
        settings = [replace(setting, spelled=study.spelled) for setting in settings_of(frame)]
        table = table_of(plan, settings)
        write_results(target, settings, [table], figures, watch, study.figures)
        write_page(target / "index.html", settings, [table], skipped, watch)
    return table


def table_of(plan: Plan, settings: Sequence[Setting]) -> Table:
    """The paper's table from these settings, or all of them side by side where it has none, with what is not in it."""
    from fedmosaic_cli.report.comparison import CENTRALIZED, LOCAL
    from fedmosaic_cli.report.comparison_table import OVERVIEW
    from fedmosaic_cli.report.paper_tables import overview, paper_table

    study = STUDIES[plan.what]
    table = paper_table(study.table, settings, paper=True, absent=False) if study.table else None
    if table is None:
        baselines = [key for key in (CENTRALIZED, LOCAL) if key[0] in {row.method for row in study.rows}]
        table = overview(settings, paper=True, baselines=tuple(baselines))
    notes = [f"Left out: {line}." for line in plan.program.left_out]
    if plan.program.order.changes:
        notes.append(f"Not the study's own settings: {', '.join(plan.program.order.changes)}.")
    return replace(table, name=OVERVIEW, notes=(*table.notes, *notes))


def outcome(plan: Plan, crew: Crew, table: Table | None, target: Path, as_json: bool) -> None:
    """What came of it, on stdout."""
    if as_json:
        failures = [
            {"job": failure.job.title, "error": failure.error, "command": command_of(failure.job)}
            for failure in crew.failures
        ]
        say_json({**to_json(plan), "failures": failures, "out": str(target) if table else None})
    elif table is not None:
        show_tables([table], form_of(latex=False, markdown=False, as_csv=False, as_json=False))


def to_json(plan: Plan) -> dict[str, Any]:
    """The study with every run as it stands now."""
    states = plan.program.states()
    runs = [
        {
            "setting": cell.scenario.name,
            "preset": cell.scenario.preset,
            "method": cell.row.method,
            "row": cell.row.title,
            "seed": cell.config.seed,
            "path": str(cell.files.path),
            "state": states[cell.files.path].value,
            "accuracy": cell.files.summary()["accuracy"]["client_mean"]
            if states[cell.files.path] is State.DONE
            else None,
            "command": command_of(Job((cell,), plan.program.order)),
        }
        for cell in plan.program.cells
    ]
    return {
        "study": plan.what,
        "scale": plan.scale.value,
        "jobs": plan.at_once,
        "estimated_seconds": plan.expected.seconds,
        "estimate_is_a_guess": plan.expected.guessed,
        "changes": list(plan.program.order.changes),
        "left_out": list(plan.program.left_out),
        "runs": runs,
    }
