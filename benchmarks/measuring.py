"""CPU and wall time of pieces of work, measured in interleaved repetitions."""

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
    """The time of a piece of work in seconds. `cpu` is the sum over the threads of its process."""

    cpu: float
    wall: float

    def on(self, clock: Clock) -> float:
        return self.cpu if clock == "cpu" else self.wall

    def over(self, count: float) -> Sample:
        """The time per unit of `count` units."""
        return Sample(self.cpu / count, self.wall / count)


Samples = dict[str, list[Sample]]
"""Samples by variant, one per repetition."""


def timed(work: Callable[[], object]) -> Sample:
    """Run `work` once in this process and measure it."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Sample(time.process_time() - cpu, time.perf_counter() - wall)


class ForkedWork:
    """Runs a piece of work repeatedly in a forked process.

    Allocator settings and threads of one variant cannot affect another, and the CPU time is that of the work alone.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(target=serve, args=(child_connection, work), daemon=True)
        self._process.start()
        child_connection.close()

    def run(self) -> Sample:
        """Run the work once."""
        self._connection.send(True)
        response: Sample | str = self._connection.recv()
        if isinstance(response, str):
            raise RuntimeError(f"a variant failed:\n{response}")
        return response

    def close(self) -> None:
        self._connection.send(False)
        self._process.join()


def serve(connection: Connection, work: Callable[[], object]) -> None:
    """Run the work for each request and send its time, until the request is False."""
    while connection.recv():
        try:
            connection.send(timed(work))
        except Exception:
            connection.send(traceback.format_exc())


def measure_forked(
    works: Mapping[str, Callable[[], object]],
    repetitions: int,
    per: Mapping[str, float] | float = 1.0,
    warm_up: bool = True,
) -> Samples:
    """Measure each variant in its own process, in interleaved repetitions; see `measure_interleaved`."""
    processes = {name: ForkedWork(work) for name, work in works.items()}
    samples = measure_interleaved({name: each.run for name, each in processes.items()}, repetitions, per, warm_up)
    for each in processes.values():
        each.close()
    return samples


def measure_interleaved(
    variants: Mapping[str, Callable[[], Sample]],
    repetitions: int,
    per: Mapping[str, float] | float = 1.0,
    warm_up: bool = True,
) -> Samples:
    """Measure all variants once per repetition, so that changes of the machine's speed affect all of them.

    Args:
        variants: Functions that run a variant once and return its time.
        repetitions: Samples per variant.
        per: Divisor of the samples, for all variants or by variant.
        warm_up: Start with a repetition that is not counted.
    """
    samples: Samples = {name: [] for name in variants}
    for number in range(repetitions + warm_up):
        for name, run in variants.items():
            sample = run().over(per if isinstance(per, int | float) else per[name])
            if number >= warm_up:
                samples[name].append(sample)
    return samples


def timed_process(command: Sequence[str]) -> Sample:
    """Run a command in an empty directory and measure it from start to end."""
    with tempfile.TemporaryDirectory() as directory:
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Sample(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def machine() -> dict[str, Any]:
    """The properties of the machine and the software that affect the figures."""
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
