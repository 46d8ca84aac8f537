"""Clocks: CPU and wall time of a piece of work, taken in turns."""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import subprocess
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

Clock = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Sample:
    """What a piece of work took, in seconds. `cpu` sums over the threads of its process."""

    cpu: float
    wall: float

    def on(self, clock: Clock) -> float:
        return self.cpu if clock == "cpu" else self.wall

    def over(self, count: float) -> Sample:
        """The share of one of `count`."""
        return Sample(self.cpu / count, self.wall / count)


Samples = dict[str, list[Sample]]
"""What each contestant took, one sample a repetition."""


def timed(work: Callable[[], object]) -> Sample:
    """One measurement, in this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Sample(time.process_time() - cpu, time.perf_counter() - wall)


class Apart:
    """A piece of work in a process of its own, forked off when it is ready to start.

    So nobody's allocator settings, threads or leftovers reach anybody else, and CPU time is the work's alone.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        forked = multiprocessing.get_context("fork")
        self._line, far_end = forked.Pipe()
        self._process = forked.Process(target=serve, args=(far_end, work), daemon=True)
        self._process.start()
        far_end.close()

    def take(self) -> Sample:
        """Do the work once."""
        self._line.send(True)
        answer: Sample | str = self._line.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"a contestant failed:\n{answer}")
        return answer

    def close(self) -> None:
        self._line.send(False)
        self._process.join()


def serve(line: Connection, work: Callable[[], object]) -> None:
    """What the process of a contestant does: work whenever it is told to, and answer with the time that took."""
    while line.recv():
        try:
            line.send(timed(work))
        except Exception:
            line.send(traceback.format_exc())


def interleaved(
    works: Mapping[str, Callable[[], object]],
    repetitions: int,
    per: Mapping[str, float] | float = 1.0,
    warm_up: bool = True,
) -> Samples:
    """The times of everybody's work, each in a process of its own, in turns; see `in_turns`."""
    contestants = {name: Apart(work) for name, work in works.items()}
    samples = in_turns({name: each.take for name, each in contestants.items()}, repetitions, per, warm_up)
    for each in contestants.values():
        each.close()
    return samples


def in_turns(
    contestants: Mapping[str, Callable[[], Sample]],
    repetitions: int,
    per: Mapping[str, float] | float = 1.0,
    warm_up: bool = True,
) -> Samples:
    """Everybody once, then everybody again: what slows the machine down slows all of them down.

    `per` is what the samples are divided by, for all or by contestant. A first turn to warm up is not counted.
    """
    samples: Samples = {name: [] for name in contestants}
    for number in range(repetitions + warm_up):
        for name, take in contestants.items():
            sample = take().over(per if isinstance(per, int | float) else per[name])
            if number >= warm_up:
                samples[name].append(sample)
    return samples


def timed_process(command: Sequence[str]) -> Sample:
    """What a command takes until it ends, in an empty directory."""
    with tempfile.TemporaryDirectory() as directory:
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Sample(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import torch

    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_at_start": os.getloadavg()[0],
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
