"""The runs of a study as commands, for whoever makes them: a person, or another scheduler."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.console import print_stderr, print_stdout
from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepRunState

if TYPE_CHECKING:
    from fedmosaic_cli.cli.views.reproduce_view import SweepSchedule


def shell_command(job: SweepJob, *extra_args: str) -> str:
    """The command that makes a job, as one would type it."""
    return shlex.join(["fedmosaic", *job.cli_args(), *extra_args])


def print_shell_commands(schedule: SweepSchedule) -> None:
    """A command a run that remains, each complete, whatever the variables are where it is typed."""
    order, held = schedule.plan.options, 0
    for cell in schedule.plan.runs:
        state = schedule.states[cell.files.path]
        held += state is SweepRunState.LOCKED
        if state in (SweepRunState.STARTED, SweepRunState.PENDING):
            job = SweepJob((cell,), order)
            told = "--runs-dir" in job.cli_args() or order.runs_dir == Path("runs")
            print_stdout(shell_command(job, *(() if told else ("--runs-dir", str(order.runs_dir))), "--resume"))
    if held:
        print_stderr(f"without {held} runs that another process is making")
    print_stderr(
        f"{schedule.num_remaining - held} of {len(schedule.plan.runs)} runs remain: call the commands in this directory"
    )
