"""Jobs in processes of their own, several side by side. Any of them may be killed: on disk everything is whole."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.sweeps.sweep_plan import SweepRunState

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.sweeps.processes import JobLauncher, JobProcess
    from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepRun

LOCKED_EXIT_CODE = 3
"""The exit code of a run whose directory somebody else writes to."""
RETRY_DELAY_SECONDS = 5.0
"""How long a job that crashed rests, times the number of its crashes: what is left of it may take a moment to die."""


@dataclass
class RunningJob:
    """A job under way, and what it has said so far."""

    job: SweepJob
    process: JobProcess
    finished_runs: list[SweepRun] = field(default_factory=list)
    """The runs that have been told of as finished."""

    @property
    def has_crashed(self) -> bool:
        """Whether it was ended from outside, and would have gone on."""
        return self.process.exit_code is not None and self.process.exit_code < 0

    def collect_finished_runs(self) -> list[SweepRun]:
        """The runs that were finished since the last time."""
        others = [cell for cell in self.job.runs if cell not in self.finished_runs]
        new = [cell for cell in others if cell.read_state() is SweepRunState.FINISHED]
        self.finished_runs += new
        return new

    def error_message(self) -> str:
        """The line that it ended in."""
        lines = self.process.stderr_tail.decode(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        if told:
            return told[-1].removeprefix("error: ")
        code = self.process.exit_code
        if code is not None and code < 0:
            return f"it was ended by signal {-code} (from outside, or memory ran out)"
        return lines[-1] if lines else f"it ended with code {code} and said nothing"


@dataclass(frozen=True)
class JobFailure:
    """A job that did not come to its end."""

    job: SweepJob
    error: str


@dataclass
class JobRunner:
    """At most `at_once` jobs at a time, each with so many `workers`. `failures` and `held` tell what did not get done.

    What another process holds is tried again when everything else is done, and then left to that process. A job that
    crashed is dealt again up to `retries` times, and goes on from its checkpoints; `crashes` tells of these.
    """

    queue: deque[SweepJob]
    launcher: JobLauncher
    max_parallel: int
    workers_per_job: int
    stop_timeout_seconds: float
    max_retries: int = 0
    running: list[RunningJob] = field(default_factory=list)
    failures: list[JobFailure] = field(default_factory=list)
    locked_jobs: list[SweepJob] = field(default_factory=list)
    crashes: list[JobFailure] = field(default_factory=list)
    remote_hosts: dict[Path, str] = field(default_factory=dict)
    """Where runs were finished, unless it was here."""
    _deferred: list[SweepJob] = field(default_factory=list)
    _delayed: list[tuple[float, SweepJob]] = field(default_factory=list)
    _num_crashes: Counter[Path] = field(default_factory=Counter)
    _is_final_pass: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way or waits."""
        return bool(self.running or self.queue or self._delayed or self._deferred)

    def poll(self, should_continue: bool = True) -> list[SweepRun]:
        """Take leave of jobs that have ended and start others, if it is to go on. The runs that have been finished."""
        finished = []
        for running in list(self.running):
            running.process.poll()
            new = running.collect_finished_runs()
            self.remote_hosts.update({cell.files.path: running.process.host for cell in new if running.process.host})
            finished += new
            if running.process.exit_code is not None:
                self.running.remove(running)
                self._on_job_end(running, should_continue)
        self._requeue_delayed()
        if should_continue and not (self.running or self.queue or self._delayed) and self._deferred:
            self.queue, self._deferred, self._is_final_pass = deque(self._deferred), [], True
        while should_continue and self.queue and len(self.running) < self.max_parallel:
            self._start(self.queue.popleft())
        return finished

    def send_signal(self, signum: int) -> None:
        """Pass a signal on to all jobs under way."""
        for running in self.running:
            running.process.send_signal(signum)

    def _start(self, job: SweepJob) -> None:
        """Start what is to be done of a job and held by nobody."""
        states = {cell.files.path: cell.read_state() for cell in job.runs}
        taken = tuple(cell for cell in job.runs if states[cell.files.path] is SweepRunState.LOCKED)
        free = tuple(
            cell for cell in job.runs if states[cell.files.path] in (SweepRunState.STARTED, SweepRunState.PENDING)
        )
        if taken:
            self._defer(replace(job, runs=taken))
        if free:
            rest = replace(job, runs=free)
            own = [
                "--resume",
                "--workers",
                str(self.workers_per_job),
                "--stop-timeout",
                str(self.stop_timeout_seconds),
                "--quiet",
            ]
            self.running.append(RunningJob(rest, self.launcher.start([*rest.cli_args(), *own])))

    def _defer(self, job: SweepJob) -> None:
        (self.locked_jobs if self._is_final_pass else self._deferred).append(job)

    def _requeue_delayed(self) -> None:
        """Have jobs that crashed wait again for their turn when they have rested."""
        now = time.monotonic()
        self.queue.extend(job for due, job in self._delayed if due <= now)
        self._delayed = [(due, job) for due, job in self._delayed if due > now]

    def _on_job_end(self, running: RunningJob, should_continue: bool) -> None:
        """A job that leaves anything undone has failed, unless somebody else was faster, or it was asked to stop."""
        rest = tuple(cell for cell in running.job.runs if cell not in running.finished_runs)
        if not rest or not should_continue:
            return
        job, first = replace(running.job, runs=rest), rest[0].files.path
        if running.process.exit_code == LOCKED_EXIT_CODE and any(
            cell.read_state() is SweepRunState.LOCKED for cell in rest
        ):
            self._defer(job)
        elif running.has_crashed and self._num_crashes[first] < self.max_retries:
            self._num_crashes[first] += 1
            self.crashes.append(JobFailure(job, running.error_message()))
            self._delayed.append((time.monotonic() + RETRY_DELAY_SECONDS * self._num_crashes[first], job))
        else:
            self.failures.append(JobFailure(job, running.error_message()))
