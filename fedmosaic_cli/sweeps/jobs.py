"""Run the jobs of a sweep in parallel processes, with retries."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.sweeps.sweep_plan import SweepRunState

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.sweeps.processes import JobLauncher, JobProcess
    from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepRun

RETRY_DELAY_SECONDS = 5.0
"""Delay before a retry, times the number of crashes so far: child processes of a crashed job need time to exit."""


@dataclass
class RunningJob:
    """A started job and the runs of it that have finished."""

    job: SweepJob
    process: JobProcess
    finished_runs: list[SweepRun] = field(default_factory=list)

    def collect_finished_runs(self) -> list[SweepRun]:
        """Return the runs that have finished since the last call."""
        new = [
            run for run in self.job.runs if run not in self.finished_runs and run.read_state() is SweepRunState.FINISHED
        ]
        self.finished_runs += new
        return new

    def error_message(self) -> str:
        """Return the error line of a job that has ended."""
        lines = self.process.stderr_tail.decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        code = self.process.exit_code
        if code is not None and code < 0:
            return f"signal {-code} ended the process (sent by another process, or out of memory)"
        return lines[-1] if lines else f"the process exited with code {code} and without a message"


@dataclass(frozen=True)
class JobFailure:
    """A job that ended before all its runs were finished."""

    job: SweepJob
    error: str


@dataclass
class JobRunner:
    """Runs at most `max_parallel` jobs at a time, each with `workers_per_job` workers.

    Runs that another process has locked are tried once more after all other jobs, then listed in `locked_jobs`. A job
    that a signal ended is retried up to `max_retries` times and continues from its checkpoints; `crashes` lists these.
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
    """The machine of each finished run, except for this machine."""
    _deferred: list[SweepJob] = field(default_factory=list)
    _delayed: list[tuple[float, SweepJob]] = field(default_factory=list)
    _num_crashes: Counter[Path] = field(default_factory=Counter)
    _is_final_pass: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether any job runs or waits."""
        return bool(self.running or self.queue or self._delayed or self._deferred)

    def poll(self, should_continue: bool = True) -> list[SweepRun]:
        """Handle jobs that have ended and, if `should_continue`, start others. Return the newly finished runs."""
        finished = []
        for running in list(self.running):
            running.process.poll()
            new = running.collect_finished_runs()
            self.remote_hosts.update({run.files.path: running.process.host for run in new if running.process.host})
            finished += new
            if running.process.exit_code is not None:
                self.running.remove(running)
                self._on_job_end(running, should_continue)
        now = time.monotonic()
        self.queue.extend(job for due, job in self._delayed if due <= now)
        self._delayed = [(due, job) for due, job in self._delayed if due > now]
        if should_continue and not (self.running or self.queue or self._delayed) and self._deferred:
            self.queue, self._deferred, self._is_final_pass = deque(self._deferred), [], True
        while should_continue and self.queue and len(self.running) < self.max_parallel:
            self._start(self.queue.popleft())
        return finished

    def send_signal(self, signum: int) -> None:
        """Send a signal to all running jobs."""
        for running in self.running:
            running.process.send_signal(signum)

    def _start(self, job: SweepJob) -> None:
        """Start the unfinished runs of a job; defer those that another process has locked."""
        states = [(run, run.read_state()) for run in job.runs]
        locked = tuple(run for run, state in states if state is SweepRunState.LOCKED)
        startable = tuple(run for run, state in states if state in (SweepRunState.STARTED, SweepRunState.PENDING))
        if locked:
            self._defer(replace(job, runs=locked))
        if startable:
            job = replace(job, runs=startable)
            options = ["--resume", "--workers", str(self.workers_per_job)]
            options += ["--stop-timeout", str(self.stop_timeout_seconds), "--quiet"]
            self.running.append(RunningJob(job, self.launcher.start([*job.cli_args(), *options])))

    def _defer(self, job: SweepJob) -> None:
        (self.locked_jobs if self._is_final_pass else self._deferred).append(job)

    def _on_job_end(self, running: RunningJob, should_continue: bool) -> None:
        """Defer, retry or record as failed what an ended job has not finished."""
        unfinished = tuple(run for run in running.job.runs if run not in running.finished_runs)
        if not unfinished or not should_continue:
            return
        job, first_path = replace(running.job, runs=unfinished), unfinished[0].files.path
        exit_code = running.process.exit_code or 0
        if exit_code == RunStateError.exit_code and any(run.read_state() is SweepRunState.LOCKED for run in unfinished):
            self._defer(job)
        elif exit_code < 0 and self._num_crashes[first_path] < self.max_retries:
            self._num_crashes[first_path] += 1
            self.crashes.append(JobFailure(job, running.error_message()))
            self._delayed.append((time.monotonic() + RETRY_DELAY_SECONDS * self._num_crashes[first_path], job))
        else:
            self.failures.append(JobFailure(job, running.error_message()))
