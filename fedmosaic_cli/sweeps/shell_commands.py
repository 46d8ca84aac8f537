"""The runs of a study as commands, for whoever makes them: a person, or another scheduler."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.console import remark, say
from fedmosaic_cli.sweeps.sweep_plan import Job, State

if TYPE_CHECKING:
    from fedmosaic_cli.cli.views.reproduce_view import Plan


def command_of(job: Job, *more: str) -> str:
    """The command that makes a job, as one would type it."""
    return shlex.join(["fedmosaic", *job.arguments(), *more])


def say_commands(plan: Plan) -> None:
    """A command a run that remains, each complete, whatever the variables are where it is typed."""
    order, held = plan.program.order, 0
    for cell in plan.program.cells:
        state = plan.states[cell.files.path]
        held += state is State.HELD
        if state in (State.BEGUN, State.TO_DO):
            job = Job((cell,), order)
            told = "--runs-dir" in job.arguments() or order.runs_dir == Path("runs")
            say(command_of(job, *(() if told else ("--runs-dir", str(order.runs_dir))), "--resume"))
    if held:
        remark(f"without {held} runs that another process is making")
    remark(f"{plan.remaining - held} of {len(plan.program.cells)} runs remain: call the commands in this directory")
