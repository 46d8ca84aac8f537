"""Jobs in processes of their own, several side by side. Any of them may be killed: on disk everything is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.experiment.reproduction import State
from fedmosaic_cli.machine import PARENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.experiment.reproduction import Cell, Job

MOST_BYTES = 1 << 16
LOCKED = 3
"""The exit code of a run whose directory somebody else writes to."""


@dataclass
class Running:
    """A job under way, and what it has said so far."""

    job: Job
    process: subprocess.Popen[bytes]
    said: bytes = b""
    finished: list[Cell] = field(default_factory=list)
    """The runs that have been told of as finished."""

    def listen(self) -> None:
        """Take in what it said since the last time; only the end is kept."""
        pipe = self.process.stderr
        said = pipe.read() if pipe is not None and not pipe.closed else None
        self.said = (self.said + (said or b""))[-MOST_BYTES:]

    def newly_finished(self) -> list[Cell]:
        """The runs that were finished since the last time."""
        others = [cell for cell in self.job.cells if cell not in self.finished]
        new = [cell for cell in others if cell.state() is State.DONE]
        self.finished += new
        return new

    def error(self) -> str:
        """The line that it ended in."""
        lines = self.said.decode(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        if told:
            return told[-1].removeprefix("error: ")
        code = self.process.returncode
        if code < 0:
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

    What another process holds is tried again when everything else is done, and then left to that process.
    """

    waiting: deque[Job]
    at_once: int
    workers: int
    grace: float
    running: list[Running] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    held: list[Job] = field(default_factory=list)
    _put_off: list[Job] = field(default_factory=list)
    _last_call: bool = False

    @classmethod
    def of(cls, jobs: Sequence[Job], at_once: int, workers: int, grace: float) -> Crew:
        return cls(deque(jobs), at_once, workers, grace)

    @property
    def busy(self) -> bool:
        """Whether anything is under way or waits."""
        return bool(self.running or self.waiting or self._put_off)

    def look(self, go_on: bool = True) -> list[Cell]:
        """Take leave of jobs that have ended and start others, if it is to go on. The runs that have been finished."""
        finished = []
        for running in list(self.running):
            running.listen()
            ended = running.process.poll() is not None
            finished += running.newly_finished()
            if ended:
                running.listen()
                self.running.remove(running)
                self._ended(running, go_on)
        if go_on and not self.running and not self.waiting and self._put_off:
            self.waiting, self._put_off, self._last_call = deque(self._put_off), [], True
        while go_on and self.waiting and len(self.running) < self.at_once:
            self._start(self.waiting.popleft())
        return finished

    def tell(self, number: int) -> None:
        """Pass a signal on to all jobs under way."""
        for running in self.running:
            running.process.send_signal(number)

    def _start(self, job: Job) -> None:
        """Start what is to be done of a job and held by nobody."""
        states = {cell.files.path: cell.state() for cell in job.cells}
        taken = tuple(cell for cell in job.cells if states[cell.files.path] is State.HELD)
        free = tuple(cell for cell in job.cells if states[cell.files.path] in (State.BEGUN, State.TO_DO))
        if taken:
            self._leave(replace(job, cells=taken))
        if free:
            self.running.append(start(replace(job, cells=free), self.workers, self.grace))

    def _leave(self, job: Job) -> None:
        (self.held if self._last_call else self._put_off).append(job)

    def _ended(self, running: Running, go_on: bool) -> None:
        """A job that leaves anything undone has failed, unless somebody else was faster, or it was asked to stop."""
        rest = tuple(cell for cell in running.job.cells if cell not in running.finished)
        if not rest or not go_on:
            return
        if running.process.returncode == LOCKED and any(cell.state() is State.HELD for cell in rest):
            self._leave(replace(running.job, cells=rest))
        else:
            self.failures.append(Failure(replace(running.job, cells=rest), running.error()))


def start(job: Job, workers: int, grace: float) -> Running:
    """Start a job. It has a session of its own, so that Ctrl-C reaches it once, through us, and it dies if we do."""
    own = ["--resume", "--workers", str(workers), "--grace", str(grace), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *job.arguments(), *own],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, PARENT: str(os.getpid())},
        start_new_session=True,
    )
    if process.stderr is not None:
        os.set_blocking(process.stderr.fileno(), False)
    return Running(job, process)
