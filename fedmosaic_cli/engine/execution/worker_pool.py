"""Running clients side by side: threads with one core each, so that results do not depend on how many there are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from fedmosaic_cli.engine.execution.lockstep import LockstepGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from types import TracebackType

T = TypeVar("T")
R = TypeVar("R")

# Clients in a stack. A fixed number: which clients compute together decides about the last bits of their results.
MAX_STACK_SIZE = 32


@dataclass(frozen=True)
class ClientJob(Generic[T]):
    """Something to be done for one client.

    The longer, the earlier it is begun. Jobs of one `team` can be done together; whose team is None is done alone.
    Jobs on one `device` never wait for another's.
    """

    item: T
    cost: int
    stack_key: Hashable
    device: torch.device


class WorkerPool:
    """A pool of `count` threads for each device. Even a single one runs apart from the main thread, as others do."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._lock = threading.Lock()
        self._executors: dict[tuple[str, torch.device], ThreadPoolExecutor] = {}

    def map(self, function: Callable[[T], R], jobs: Sequence[ClientJob[T]]) -> list[R]:
        """`function` of every job's item, in the order of the jobs. The first failure is raised."""
        results: dict[int, R] = {}
        failures: dict[int, BaseException] = {}

        def done(place: int) -> None:
            try:
                results[place] = function(jobs[place].item)
            except BaseException as error:
                failures[place] = error

        longest_first = sorted(group_jobs(jobs), key=lambda team: -sum(jobs[place].cost for place in team))
        begun = []
        for team in longest_first:
            device = jobs[team[0]].device
            begun.append(self._executor("worker", device, self.num_workers).submit(self._run_group, done, team, device))
        for work in begun:
            work.result()
        if failures:
            raise failures[min(failures)]
        return [results[place] for place in range(len(jobs))]

    def _run_group(self, run_job: Callable[[int], None], job_indices: list[int], device: torch.device) -> None:
        if len(job_indices) == 1:
            run_job(job_indices[0])
            return
        gang = LockstepGroup(len(job_indices))
        # A member that found no thread would be waited for until the end of time: there is one for each.
        members = self._executor("member", device, self.num_workers * MAX_STACK_SIZE)
        try:
            turns = [members.submit(gang.run_client, place, partial(run_job, place)) for place in job_indices]
        except RuntimeError as error:
            gang.abort(error)
            raise
        gang.run()
        for turn in turns:
            turn.result()

    def _executor(self, role: str, device: torch.device, size: int) -> ThreadPoolExecutor:
        with self._lock:
            if (role, device) not in self._executors:
                self._executors[role, device] = ThreadPoolExecutor(
                    size, thread_name_prefix=role, initializer=use_single_thread
                )
            return self._executors[role, device]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            pools = dict(self._executors)
        workers = [pool for (role, _), pool in pools.items() if role == "worker"]
        for pool in workers:  # nobody is waited for while others could still begin
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in workers:
            pool.shutdown(wait=True)
        for pool in self._executors.values():  # members last: a worker that is not done yet may still call for some
            pool.shutdown(wait=True)


def group_jobs(jobs: Sequence[ClientJob[T]]) -> list[list[int]]:
    """The places of jobs that are done together, in their order; no team is larger than a stack."""
    alone: list[list[int]] = []
    together: dict[Hashable, list[int]] = {}
    for place, job in enumerate(jobs):
        if job.stack_key is None:
            alone.append([place])
        else:
            together.setdefault(job.stack_key, []).append(place)
    stacks = [
        places[start : start + MAX_STACK_SIZE]
        for places in together.values()
        for start in range(0, len(places), MAX_STACK_SIZE)
    ]
    return alone + stacks


def use_single_thread() -> None:
    """Sums in another number of threads round differently: every thread computes alone.

    And numbers too small to be written in full count as 0: a client that has learnt its examples by heart has nothing
    but such gradients, and a CPU takes several times as long for them.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
