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
    with_option_groups,
)
from fedmosaic_cli.cli.completion import complete_assignment, complete_method_list, complete_study
from fedmosaic_cli.cli.console import print_json, print_notes, print_stderr
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.help import choices
from fedmosaic_cli.cli.interrupt import catch_stop_signals
from fedmosaic_cli.cli.report import validate_output_paths
from fedmosaic_cli.cli.report_options import (
    AverageOption,
    PlainOption,
    PlusMinusOption,
    RankOption,
    TransposeOption,
    table_layout,
)
from fedmosaic_cli.cli.reproduce_engines import (
    JobCpusOption,
    JobGpusOption,
    RayAddressOption,
    RetriesOption,
    SweepEngine,
    SweepEngineOption,
    SweepExecutionOptions,
)
from fedmosaic_cli.cli.reproduce_report import (
    print_shell_commands,
    show_sweep_result,
    sweep_to_json,
    write_study_report,
)
from fedmosaic_cli.cli.views.reproduce_view import (
    SweepSchedule,
    list_studies,
    make_sweep_progress_view,
    show_sweep_schedule,
)
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.errors import RequestError, RunFailedError, RunStateError, unknown_name_error
from fedmosaic_cli.methods.registry import EXTENDED_METHODS
from fedmosaic_cli.sweeps.jobs import JobRunner
from fedmosaic_cli.sweeps.studies import STUDIES, Scale
from fedmosaic_cli.sweeps.sweep_plan import SweepOptions, estimate_seconds, plan_sweep

if TYPE_CHECKING:
    from fedmosaic_cli.cli.views.reproduce_view import SweepProgressView
    from fedmosaic_cli.data.data_dirs import DataDirs

POLL_INTERVAL_SECONDS = 0.25
MAX_JOBS = 1024
STOP_TIMEOUT_SECONDS = 30.0
# Jobs need time to exit after their own stop timeout.
STOP_MARGIN_SECONDS = 10.0
RERUN_HINT = "run the same command again to continue"


@with_option_groups(
    {
        "What to execute": ("scale", "seeds", "methods", "extended", "assignments", "dry_run", "print_commands"),
        "Data and output": ("data_dir", "runs_dir", "output", "figures"),
        "Execution": ("device", "jobs", "engine", "ray_address", "job_cpus", "job_gpus", "retries"),
    }
)
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT", help="A study; without it, all studies are listed.", autocompletion=complete_study
        ),
    ] = None,
    scale: Annotated[
        Scale, typer.Option(metavar=choices(Scale), help="Reduced data for two cores, or the scale of the paper.")
    ] = Scale.quick,
    seeds: Annotated[str, typer.Option(metavar="LIST", help="One run per seed.")] = "0,1,2",
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these and local, e.g. fedavg,ditto.",
            show_default="all of the study",
            autocompletion=complete_method_list,
        ),
    ] = None,
    extended: Annotated[
        bool, typer.Option("--extended", help=f"Add rows that are not in the paper: {', '.join(EXTENDED_METHODS)}.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=MAX_JOBS, metavar="N", help="Parallel jobs.", show_default="as many as fit")
    ] = None,
    engine: SweepEngineOption = SweepEngine.local,
    ray_address: RayAddressOption = None,
    job_cpus: JobCpusOption = None,
    job_gpus: JobGpusOption = None,
    retries: RetriesOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show finished and remaining runs; execute nothing.")
    ] = False,
    print_commands: Annotated[
        bool,
        typer.Option("--print-commands", help="Print one command per remaining run, e.g. for Slurm; execute nothing."),
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=complete_assignment,
            help="Override a value in every run, e.g. train.rounds=2. The runs get a separate name and are not "
            "comparable with the paper. May be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Directory of table, figures and HTML page.",
            show_default="results/<what>-<scale>",
        ),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw figures.")] = True,
    average: AverageOption = False,
    rank: RankOption = False,
    transpose: TransposeOption = False,
    plain: PlainOption = False,
    plus_minus: PlusMinusOption = False,
    data_dir: DataDirOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    device: DeviceOption = DeviceChoice.auto,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Execute the runs of a study, e.g. of a table or figure of the paper, and report them.

    Finished runs are not repeated and interrupted runs continue: after Ctrl-C, a crash or a power cut, run the
    same command again. Data sets are not downloaded; settings without their data are skipped.

    \b
    [bold]Examples[/bold]
    fedmosaic reproduce
    fedmosaic reproduce label-skew --dry-run
    fedmosaic reproduce hybrid --methods fedavg,ditto,fedmosaic --jobs 2
    fedmosaic reproduce label-skew --extended
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
        raise RequestError("commands are the only output (--print-commands): leave out --dry-run, --json and --engine")
    execution = SweepExecutionOptions(engine, ray_address, jobs, job_cpus, job_gpus, retries, device)
    execution.validate()
    output_dir = output or Path("results") / f"{what}-{scale.value}"
    validate_output_paths(output_dir, output_dir / "index.html")
    data_dir_args = ("--data-dir", str(data_dir)) if data_dir else ()
    device_args = () if execution.device is DeviceChoice.auto else ("--device", execution.device.value)
    options = SweepOptions(
        parse_integers(seeds, "--seeds"),
        parse_names(methods, "--methods") if methods is not None else (),
        tuple(assignments or ()),
        runs_dir,
        (*data_dir_args, *device_args),
        extended,
    )
    with data_dirs_with_progress(data_dir, quiet or as_json) as data_dirs:
        schedule = schedule_sweep(what, scale, options, execution, data_dirs)
    if print_commands:
        print_shell_commands(schedule)
        return
    if dry_run:
        print_json(sweep_to_json(schedule)) if as_json else show_sweep_schedule(schedule, is_dry_run=True)
        return
    schedule, runner = run_sweep(schedule, execution, quiet or as_json)
    layout = table_layout(average, rank, transpose, plain, plus_minus)
    table = write_study_report(schedule, output_dir, figures, quiet or as_json, layout)
    show_sweep_result(schedule, runner, table, output_dir, as_json, layout)
    report_failures(schedule, runner)


def schedule_sweep(
    study_name: str, scale: Scale, options: SweepOptions, execution: SweepExecutionOptions, data_dirs: DataDirs
) -> SweepSchedule:
    """Plan a sweep and print what is skipped."""
    plan = plan_sweep(STUDIES[study_name], scale, options, data_dirs)
    for reason in plan.skipped_reasons:
        print_stderr(f"skipped: {reason}")
    if not plan.runs:
        raise RequestError(f"no run is possible (reproduce {study_name}): get the data that is named above")
    if options.overrides:
        layers = ConfigLayers()
        for assignment in options.overrides:
            layers.add_assignment(assignment)
        print_notes(layers.notices)
        print_stderr(f"with {', '.join(options.overrides)} the settings differ from the study's, so they are renamed")
    states = plan.read_states()
    jobs, max_parallel = plan.pending_jobs(states, one_run_per_job=execution.is_ray), execution.max_parallel_jobs()
    estimate = estimate_seconds(jobs, plan.runs, max_parallel)
    return SweepSchedule(study_name, scale, plan, states, jobs, max_parallel, estimate)


def run_sweep(
    schedule: SweepSchedule, execution: SweepExecutionOptions, quiet: bool
) -> tuple[SweepSchedule, JobRunner]:
    """Execute the remaining jobs. Return the schedule with the actual parallelism, and the job runner."""
    if not schedule.jobs:
        execution = replace(execution, engine=SweepEngine.local)  # do not start Ray without work
    with execution.open_launcher(schedule.plan.options.runs_dir, quiet) as (launcher, max_parallel):
        estimate = estimate_seconds(schedule.jobs, schedule.plan.runs, max_parallel)
        schedule = replace(schedule, max_parallel=max_parallel, estimated_seconds=estimate)
        if not quiet:
            show_sweep_schedule(schedule, is_dry_run=False)
        workers_per_job, queue = execution.workers_per_job(max_parallel), deque(schedule.jobs)
        runner = JobRunner(queue, launcher, max_parallel, workers_per_job, STOP_TIMEOUT_SECONDS, execution.max_retries)
        with make_sweep_progress_view(quiet, schedule) as progress:
            run_jobs(runner, progress)
    return schedule, runner


def run_jobs(runner: JobRunner, progress: SweepProgressView) -> None:
    """Execute all jobs. A stop signal is forwarded to them: they end after their round, then this function ends."""
    is_forwarded = False
    timeout_seconds = STOP_TIMEOUT_SECONDS + STOP_MARGIN_SECONDS
    with catch_stop_signals(timeout_seconds, RERUN_HINT, "the current rounds") as stop_request:
        try:
            while runner.running or (runner.is_busy and not stop_request()):
                progress.update(runner, runner.poll(should_continue=not stop_request()))
                stop_request.num_live_lines = progress.num_live_lines
                if stop_request() and not is_forwarded:
                    is_forwarded = True
                    runner.send_signal(stop_request.exit_code - 128)
                time.sleep(POLL_INTERVAL_SECONDS if runner.is_busy else 0)
        finally:
            runner.send_signal(signal.SIGTERM)
        if stop_request():
            print_stderr(f"stopped: {RERUN_HINT}")
            raise typer.Exit(stop_request.exit_code)


def report_failures(schedule: SweepSchedule, runner: JobRunner) -> None:
    """Print failed and locked jobs, and raise the error that determines the exit code."""
    for failure in runner.failures:
        print_stderr(f"failed: {failure.job.title}: {failure.error}")
        print_stderr(f"  retry: {failure.job.shell_command('--resume')}")
    for job in runner.locked_jobs:
        print_stderr(f"skipped, another process is executing: {', '.join(run.title for run in job.runs)}")
    if runner.failures:
        first = runner.failures[0]
        raise RunFailedError(
            f"{len(runner.failures)} of {len(schedule.jobs)} jobs failed, the first: {first.job.title}: {first.error}"
        )
    if runner.locked_jobs:
        raise RunStateError(
            f"another process is executing {sum(len(job.runs) for job in runner.locked_jobs)} runs "
            f"({runner.locked_jobs[0].runs[0].files.path}): wait for it, then run the same command again"
        )
