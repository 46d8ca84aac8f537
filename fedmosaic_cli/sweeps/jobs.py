"""Jobs in processes of their own, several side by side. Any of them may be killed: on disk everything is whole."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.sweeps.sweep_plan import State

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.sweeps.processes import Pool, Process
    from fedmosaic_cli.sweeps.sweep_plan import Cell, Job

LOCKED = 3
"""The exit code of a run whose directory somebody else writes to."""
REST_SECONDS = 5.0
"""How long a job that crashed rests, times the number of its crashes: what is left of it may take a moment to die."""


@dataclass
class Running:
    """A job under way, and what it has said so far."""

    job: Job
    process: Process
    finished: list[Cell] = field(default_factory=list)
    """The runs that have been told of as finished."""

    @property
    def crashed(self) -> bool:
        """Whether it was ended from outside, and would have gone on."""
        return self.process.code is not None and self.process.code < 0

    def newly_finished(self) -> list[Cell]:
        """The runs that were finished since the last time."""
        others = [cell for cell in self.job.cells if cell not in self.finished]
        new = [cell for cell in others if cell.state() is State.DONE]
        self.finished += new
        return new

    def error(self) -> str:
        """The line that it ended in."""
        lines = self.process.said.decode(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        if told:
            return told[-1].removeprefix("error: ")
        code = self.process.code
        if code is not None and code < 0:
            return f"it was ended by signal {-code} (from outside, or memory ran out)"
        return lines[-1] if lines else f"it ended with code {code} and said nothing"


@dataclass(frozen=True)
class Failure:
    """A job that did not come to its end."""

    job: Job
    error: str


@dataclass
class Crew:
    """At most `at_once` jobs at a time, each with so many `workers`. `failures` and `held` tell what did not get done.

    What another process holds is tried again when everything else is done, and then left to that process. A job that
    crashed is dealt again up to `retries` times, and goes on from its checkpoints; `crashes` tells of these.
    """

    waiting: deque[Job]
    pool: Pool
    at_once: int
    workers: int
    grace: float
    retries: int = 0
    running: list[Running] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    held: list[Job] = field(default_factory=list)
    crashes: list[Failure] = field(default_factory=list)
    hosts: dict[Path, str] = field(default_factory=dict)
    """Where runs were finished, unless it was here."""
    _put_off: list[Job] = field(default_factory=list)
    _resting: list[tuple[float, Job]] = field(default_factory=list)
    _tries: Counter[Path] = field(default_factory=Counter)
    _last_call: bool = False

    @property
    def busy(self) -> bool:
        """Whether anything is under way or waits."""
        return bool(self.running or self.waiting or self._resting or self._put_off)

    def look(self, go_on: bool = True) -> list[Cell]:
        """Take leave of jobs that have ended and start others, if it is to go on. The runs that have been finished."""
        finished = []
        for running in list(self.running):
            running.process.look()
            new = running.newly_finished()
            self.hosts.update({cell.files.path: running.process.host for cell in new if running.process.host})
            finished += new
            if running.process.code is not None:
                self.running.remove(running)
                self._ended(running, go_on)
        self._wake()
        if go_on and not (self.running or self.waiting or self._resting) and self._put_off:
            self.waiting, self._put_off, self._last_call = deque(self._put_off), [], True
        while go_on and self.waiting and len(self.running) < self.at_once:
            self._start(self.waiting.popleft())
        return finished

    def tell(self, number: int) -> None:
        """Pass a signal on to all jobs under way."""
        for running in self.running:
            running.process.tell(number)

    def _start(self, job: Job) -> None:
        """Start what is to be done of a job and held by nobody."""
        states = {cell.files.path: cell.state() for cell in job.cells}
        taken = tuple(cell for cell in job.cells if states[cell.files.path] is State.HELD)
        free = tuple(cell for cell in job.cells if states[cell.files.path] in (State.BEGUN, State.TO_DO))
        if taken:
            self._leave(replace(job, cells=taken))
        if free:
            rest = replace(job, cells=free)
            own = ["--resume", "--workers", str(self.workers), "--grace", str(self.grace), "--quiet"]
            self.running.append(Running(rest, self.pool.start([*rest.arguments(), *own])))

    def _leave(self, job: Job) -> None:
        (self.held if self._last_call else self._put_off).append(job)

    def _wake(self) -> None:
        """Have jobs that crashed wait again for their turn when they have rested."""
        now = time.monotonic()
        self.waiting.extend(job for due, job in self._resting if due <= now)
        self._resting = [(due, job) for due, job in self._resting if due > now]

    def _ended(self, running: Running, go_on: bool) -> None:
        """A job that leaves anything undone has failed, unless somebody else was faster, or it was asked to stop."""
        rest = tuple(cell for cell in running.job.cells if cell not in running.finished)
        if not rest or not go_on:
            return
        job, first = replace(running.job, cells=rest), rest[0].files.path
        if running.process.code == LOCKED and any(cell.state() is State.HELD for cell in rest):
            self._leave(job)
        elif running.crashed and self._tries[first] < self.retries:
            self._tries[first] += 1
            self.crashes.append(Failure(job, running.error()))
            self._resting.append((time.monotonic() + REST_SECONDS * self._tries[first], job))
        else:
            self.failures.append(Failure(job, running.error()))
