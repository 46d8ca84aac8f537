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
    Device,
    DeviceOption,
    JsonOption,
    QuietOption,
    RunsDirOption,
    names,
    whole_numbers,
)
from fedmosaic_cli.cli.console import remark, say_json
from fedmosaic_cli.cli.data_dir_options import data_place
from fedmosaic_cli.cli.interrupt import stop_request
from fedmosaic_cli.cli.report import check_targets
from fedmosaic_cli.cli.reproduce_engines import (
    Engine,
    EngineOption,
    JobCpusOption,
    JobGpusOption,
    RayAddressOption,
    RetriesOption,
    Way,
)
from fedmosaic_cli.cli.reproduce_report import outcome, to_json, write_report
from fedmosaic_cli.cli.views.reproduce_view import Plan, list_studies, show_plan, view
from fedmosaic_cli.errors import FailedRunError, RequestError, RunStateError, unknown
from fedmosaic_cli.sweeps.durations import estimate
from fedmosaic_cli.sweeps.jobs import Crew
from fedmosaic_cli.sweeps.shell_commands import command_of, say_commands
from fedmosaic_cli.sweeps.studies import STUDIES, Scale
from fedmosaic_cli.sweeps.sweep_plan import Order, planned

if TYPE_CHECKING:
    from fedmosaic_cli.cli.views.reproduce_view import View
    from fedmosaic_cli.data.data_dirs import Place

PAUSE_SECONDS = 0.25
MOST_JOBS = 1024
GRACE_SECONDS = 30.0
# A job that was told to stop needs a moment after its own time is up.
SPARE_SECONDS = 10.0
GO_ON = "the same command goes on from there"


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
        int | None, typer.Option(min=1, max=MOST_JOBS, help="Runs side by side.", show_default="as many as have room")
    ] = None,
    engine: EngineOption = Engine.local,
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
    device: DeviceOption = Device.auto,
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
        raise unknown("study", what, STUDIES, "WHAT", "'fedmosaic reproduce' lists them")
    if print_commands and (dry_run or as_json or engine is Engine.ray):
        raise RequestError(
            "commands are all there is to show (--print-commands): without --dry-run, --json or --engine"
        )
    way = Way(engine, ray_address, jobs, job_cpus, job_gpus, retries, device)
    way.check()
    target = output or Path("results") / f"{what}-{scale.value}"
    check_targets(target, target / "index.html")
    order = Order(
        whole_numbers(seeds, "--seeds"),
        names(methods, "--methods") if methods is not None else (),
        tuple(assignments or ()),
        runs_dir,
        passed_on(data_dir, way.device),
    )
    silent = quiet or as_json
    with data_place(data_dir, silent) as place:
        plan = planned_work(what, scale, order, way, place)
    if print_commands:
        say_commands(plan)
        return
    if dry_run:
        say_json(to_json(plan)) if as_json else show_plan(plan, dry=True)
        return
    plan, crew = work(plan, way, silent)
    table = write_report(plan, target, figures, silent)
    outcome(plan, crew, table, target, as_json)
    tell_ends(plan, crew)


def passed_on(data_dir: Path | None, device: Device) -> tuple[str, ...]:
    """The options that every run gets as well."""
    words = ("--data-dir", str(data_dir)) if data_dir else ()
    return words if device is Device.auto else (*words, "--device", device.value)


def planned_work(what: str, scale: Scale, order: Order, way: Way, place: Place) -> Plan:
    """What there is to do, and about how long it takes; what is left out is told."""
    program = planned(STUDIES[what], scale, order, place)
    for line in program.left_out:
        remark(f"left out: {line}")
    if not program.cells:
        raise RequestError(f"nothing can be run here (reproduce {what}): get the data that is named above")
    if order.changes:
        remark(f"with {', '.join(order.changes)} settings are not the study's, and have names of their own (--set)")
    states = program.states()
    todo, at_once = program.jobs(states, apart=way.with_ray), way.at_once()
    return Plan(what, scale, program, states, todo, at_once, estimate(todo, program.cells, at_once))


def work(plan: Plan, way: Way, silent: bool) -> tuple[Plan, Crew]:
    """Have everything made that remains: the plan as it was carried out, and the crew. For nothing, nobody is asked."""
    if not plan.jobs:
        way = replace(way, engine=Engine.local)
    with way.pool(plan.program.order.runs_dir, silent) as (pool, at_once):
        expected = estimate(plan.jobs, plan.program.cells, at_once)
        plan = replace(plan, at_once=at_once, expected=expected)
        if not silent:
            show_plan(plan, dry=False)
        crew = Crew(deque(plan.jobs), pool, at_once, way.workers(at_once), GRACE_SECONDS, way.retries)
        with view(silent, plan) as progress:
            carry_out(crew, progress)
    return plan, crew


def carry_out(crew: Crew, progress: View) -> None:
    """Have all jobs done. Asked to stop, ask them to: they end after their round, and we after them."""
    passed_on = False
    with stop_request(GRACE_SECONDS + SPARE_SECONDS, GO_ON, "the rounds under way") as asked_to_stop:
        try:
            while crew.running or (crew.busy and not asked_to_stop()):
                progress.update(crew, crew.look(go_on=not asked_to_stop()))
                if asked_to_stop() and not passed_on:
                    passed_on = True
                    crew.tell(asked_to_stop.code - 128)
                time.sleep(PAUSE_SECONDS if crew.busy else 0)
        finally:
            crew.tell(signal.SIGTERM)
        if asked_to_stop():
            remark(f"stopped: {GO_ON}")
            raise typer.Exit(asked_to_stop.code)


def tell_ends(plan: Plan, crew: Crew) -> None:
    """Name what failed, each with the command that tries it again, and what others are making."""
    for failure in crew.failures:
        remark(f"failed: {failure.job.title}: {failure.error}")
        remark(f"  again: {command_of(failure.job, '--resume')}")
    for job in crew.held:
        remark(f"held by another process, and left to it: {', '.join(cell.title for cell in job.cells)}")
    if crew.failures:
        first = crew.failures[0]
        raise FailedRunError(
            f"{len(crew.failures)} of {len(plan.jobs)} jobs failed, the first: {first.job.title}: {first.error}"
        )
    if crew.held:
        raise RunStateError(
            f"{sum(len(job.cells) for job in crew.held)} runs are made by another process "
            f"({crew.held[0].cells[0].files.path}): wait for it and call the same command again"
        )
