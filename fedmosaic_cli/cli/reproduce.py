"""`fedmosaic reproduce`."""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.common_options import (
    DataDirOption,
    DebugOption,
    DeviceChoice,
    DeviceOption,
    JsonOption,
    QuietOption,
    RunsDirOption,
    parse_integers,
    parse_names,
)
from fedmosaic_cli.cli.console import print_json, print_stderr
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.interrupt import catch_stop_signals
from fedmosaic_cli.cli.report import validate_output_paths
from fedmosaic_cli.cli.reproduce_engines import (
    JobCpusOption,
    JobGpusOption,
    RayAddressOption,
    RetriesOption,
    SweepEngine,
    SweepEngineOption,
    SweepExecutionOptions,
)
from fedmosaic_cli.cli.reproduce_report import show_sweep_result, sweep_to_json, write_study_report
from fedmosaic_cli.cli.views.reproduce_view import (
    SweepSchedule,
    list_studies,
    make_sweep_progress_view,
    show_sweep_schedule,
)
from fedmosaic_cli.errors import RequestError, RunFailedError, RunStateError, unknown_name_error
from fedmosaic_cli.sweeps.durations import estimate_duration
from fedmosaic_cli.sweeps.jobs import JobRunner
from fedmosaic_cli.sweeps.shell_commands import print_shell_commands, shell_command
from fedmosaic_cli.sweeps.studies import STUDIES, Scale
from fedmosaic_cli.sweeps.sweep_plan import SweepOptions, plan_sweep

if TYPE_CHECKING:
    from fedmosaic_cli.cli.views.reproduce_view import SweepProgressView
    from fedmosaic_cli.data.data_dirs import DataDirs

POLL_INTERVAL_SECONDS = 0.25
MAX_JOBS = 1024
STOP_TIMEOUT_SECONDS = 30.0
# A job that was told to stop needs a moment after its own time is up.
STOP_MARGIN_SECONDS = 10.0
RERUN_HINT = "the same command goes on from there"


def reproduce(
    what: Annotated[
        str | None, typer.Argument(metavar="WHAT", help="A table or figure; without it, all are listed.")
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="Part of the data on two cores, or the paper's own scale.")
    ] = Scale.quick,
    seeds: Annotated[str, typer.Option(help="A run each.")] = "0,1,2",
    methods: Annotated[
        str | None, typer.Option(help="Only these, e.g. fedavg,ditto; local stays.", show_default="all of the study's")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=MAX_JOBS, help="Runs side by side.", show_default="as many as have room")
    ] = None,
    engine: SweepEngineOption = SweepEngine.local,
    ray_address: RayAddressOption = None,
    job_cpus: JobCpusOption = None,
    job_gpus: JobGpusOption = None,
    retries: RetriesOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is done and what remains, make nothing.")
    ] = False,
    print_commands: Annotated[
        bool,
        typer.Option("--print-commands", help="A command a run that remains, for Slurm and the like; make nothing."),
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change all settings, e.g. train.rounds=2; they get names of their own and are not the study's. "
            "May be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", help="Where table, figures and page go.", show_default="results/<what>-<scale>"),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw figures.")] = True,
    data_dir: DataDirOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    device: DeviceOption = DeviceChoice.auto,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Make the runs of one of the paper's tables or figures, and report them.

    What is finished is not made again, and what was begun goes on: after Ctrl-C, a crash or a power cut,
    the same command continues. Data sets are not downloaded; settings without their data are left out.

    \b
    [bold]Examples[/bold]
    fedmosaic reproduce
    fedmosaic reproduce label-skew --dry-run
    fedmosaic reproduce hybrid --methods fedavg,ditto,fedmosaic --jobs 2
    fedmosaic reproduce public-size --seeds 0 --out figure
    fedmosaic reproduce label-skew --scale paper --device cuda --jobs 1
    fedmosaic reproduce label-skew --engine ray --ray-address auto --job-cpus 4
    fedmosaic reproduce label-skew --print-commands > commands.txt
    """
    if what is None:
        list_studies(as_json)
        return
    if what not in STUDIES:
        raise unknown_name_error("study", what, STUDIES, "WHAT", "'fedmosaic reproduce' lists them")
    if print_commands and (dry_run or as_json or engine is SweepEngine.ray):
        raise RequestError(
            "commands are all there is to show (--print-commands): without --dry-run, --json or --engine"
        )
    way = SweepExecutionOptions(engine, ray_address, jobs, job_cpus, job_gpus, retries, device)
    way.validate()
    target = output or Path("results") / f"{what}-{scale.value}"
    validate_output_paths(target, target / "index.html")
    order = SweepOptions(
        parse_integers(seeds, "--seeds"),
        parse_names(methods, "--methods") if methods is not None else (),
        tuple(assignments or ()),
        runs_dir,
        forwarded_options(data_dir, way.device),
    )
    silent = quiet or as_json
    with data_dirs_with_progress(data_dir, silent) as place:
        plan = schedule_sweep(what, scale, order, way, place)
    if print_commands:
        print_shell_commands(plan)
        return
    if dry_run:
        print_json(sweep_to_json(plan)) if as_json else show_sweep_schedule(plan, is_dry_run=True)
        return
    plan, crew = run_sweep(plan, way, silent)
    table = write_study_report(plan, target, figures, silent)
    show_sweep_result(plan, crew, table, target, as_json)
    report_failures(plan, crew)


def forwarded_options(data_dir: Path | None, device: DeviceChoice) -> tuple[str, ...]:
    """The options that every run gets as well."""
    words = ("--data-dir", str(data_dir)) if data_dir else ()
    return words if device is DeviceChoice.auto else (*words, "--device", device.value)


def schedule_sweep(
    study_name: str, scale: Scale, options: SweepOptions, execution: SweepExecutionOptions, data_dirs: DataDirs
) -> SweepSchedule:
    """What there is to do, and about how long it takes; what is left out is told."""
    program = plan_sweep(STUDIES[study_name], scale, options, data_dirs)
    for line in program.skipped_reasons:
        print_stderr(f"left out: {line}")
    if not program.runs:
        raise RequestError(f"nothing can be run here (reproduce {study_name}): get the data that is named above")
    if options.overrides:
        print_stderr(
            f"with {', '.join(options.overrides)} settings are not the study's, and have names of their own (--set)"
        )
    states = program.read_states()
    todo, at_once = program.pending_jobs(states, one_run_per_job=execution.is_ray), execution.max_parallel_jobs()
    return SweepSchedule(
        study_name, scale, program, states, todo, at_once, estimate_duration(todo, program.runs, at_once)
    )


def run_sweep(
    schedule: SweepSchedule, execution: SweepExecutionOptions, quiet: bool
) -> tuple[SweepSchedule, JobRunner]:
    """Have everything made that remains: the plan as it was carried out, and the crew. For nothing, nobody is asked."""
    if not schedule.jobs:
        execution = replace(execution, engine=SweepEngine.local)
    with execution.open_launcher(schedule.plan.options.runs_dir, quiet) as (pool, at_once):
        expected = estimate_duration(schedule.jobs, schedule.plan.runs, at_once)
        schedule = replace(schedule, max_parallel=at_once, estimate=expected)
        if not quiet:
            show_sweep_schedule(schedule, is_dry_run=False)
        crew = JobRunner(
            deque(schedule.jobs),
            pool,
            at_once,
            execution.workers_per_job(at_once),
            STOP_TIMEOUT_SECONDS,
            execution.max_retries,
        )
        with make_sweep_progress_view(quiet, schedule) as progress:
            run_jobs(crew, progress)
    return schedule, crew


def run_jobs(runner: JobRunner, progress: SweepProgressView) -> None:
    """Have all jobs done. Asked to stop, ask them to: they end after their round, and we after them."""
    passed_on = False
    with catch_stop_signals(
        STOP_TIMEOUT_SECONDS + STOP_MARGIN_SECONDS, RERUN_HINT, "the rounds under way"
    ) as asked_to_stop:
        try:
            while runner.running or (runner.is_busy and not asked_to_stop()):
                progress.update(runner, runner.poll(should_continue=not asked_to_stop()))
                if asked_to_stop() and not passed_on:
                    passed_on = True
                    runner.send_signal(asked_to_stop.exit_code - 128)
                time.sleep(POLL_INTERVAL_SECONDS if runner.is_busy else 0)
        finally:
            runner.send_signal(signal.SIGTERM)
        if asked_to_stop():
            print_stderr(f"stopped: {RERUN_HINT}")
            raise typer.Exit(asked_to_stop.exit_code)


def report_failures(schedule: SweepSchedule, runner: JobRunner) -> None:
    """Name what failed, each with the command that tries it again, and what others are making."""
    for failure in runner.failures:
        print_stderr(f"failed: {failure.job.title}: {failure.error}")
        print_stderr(f"  again: {shell_command(failure.job, '--resume')}")
    for job in runner.locked_jobs:
        print_stderr(f"held by another process, and left to it: {', '.join(cell.title for cell in job.runs)}")
    if runner.failures:
        first = runner.failures[0]
        raise RunFailedError(
            f"{len(runner.failures)} of {len(schedule.jobs)} jobs failed, the first: {first.job.title}: {first.error}"
        )
    if runner.locked_jobs:
        raise RunStateError(
            f"{sum(len(job.runs) for job in runner.locked_jobs)} runs are made by another process "
            f"({runner.locked_jobs[0].runs[0].files.path}): wait for it and call the same command again"
        )
