"""Running clients side by side: threads with one core each, so that results do not depend on how many there are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from fedmosaic_cli.engine.execution.lockstep import Gang

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from types import TracebackType

T = TypeVar("T")
R = TypeVar("R")

# Clients in a stack. A fixed number: which clients compute together decides about the last bits of their results.
STACK = 32


@dataclass(frozen=True)
class Job(Generic[T]):
    """Something to be done for one client.

    The longer, the earlier it is begun. Jobs of one `team` can be done together; whose team is None is done alone.
    Jobs on one `device` never wait for another's.
    """

    item: T
    length: int
    team: Hashable
    device: torch.device


class Workers:
    """A pool of `count` threads for each device. Even a single one runs apart from the main thread, as others do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._opening = threading.Lock()
        self._pools: dict[tuple[str, torch.device], ThreadPoolExecutor] = {}

    def map(self, function: Callable[[T], R], jobs: Sequence[Job[T]]) -> list[R]:
        """`function` of every job's item, in the order of the jobs. The first failure is raised."""
        results: dict[int, R] = {}
        failures: dict[int, BaseException] = {}

        def done(place: int) -> None:
            try:
                results[place] = function(jobs[place].item)
            except BaseException as error:
                failures[place] = error

        longest_first = sorted(teams(jobs), key=lambda team: -sum(jobs[place].length for place in team))
        begun = []
        for team in longest_first:
            device = jobs[team[0]].device
            begun.append(self._pool("worker", device, self.count).submit(self._work, done, team, device))
        for work in begun:
            work.result()
        if failures:
            raise failures[min(failures)]
        return [results[place] for place in range(len(jobs))]

    def _work(self, done: Callable[[int], None], team: list[int], device: torch.device) -> None:
        if len(team) == 1:
            done(team[0])
            return
        gang = Gang(len(team))
        # A member that found no thread would be waited for until the end of time: there is one for each.
        members = self._pool("member", device, self.count * STACK)
        try:
            turns = [members.submit(gang.take_part, place, partial(done, place)) for place in team]
        except RuntimeError as error:
            gang.break_up(error)
            raise
        gang.serve()
        for turn in turns:
            turn.result()

    def _pool(self, role: str, device: torch.device, size: int) -> ThreadPoolExecutor:
        with self._opening:
            if (role, device) not in self._pools:
                self._pools[role, device] = ThreadPoolExecutor(size, thread_name_prefix=role, initializer=one_core)
            return self._pools[role, device]

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._opening:
            pools = dict(self._pools)
        workers = [pool for (role, _), pool in pools.items() if role == "worker"]
        for pool in workers:  # nobody is waited for while others could still begin
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in workers:
            pool.shutdown(wait=True)
        for pool in self._pools.values():  # members last: a worker that is not done yet may still call for some
            pool.shutdown(wait=True)


def teams(jobs: Sequence[Job[T]]) -> list[list[int]]:
    """The places of jobs that are done together, in their order; no team is larger than a stack."""
    alone: list[list[int]] = []
    together: dict[Hashable, list[int]] = {}
    for place, job in enumerate(jobs):
        if job.team is None:
            alone.append([place])
        else:
            together.setdefault(job.team, []).append(place)
    stacks = [places[start : start + STACK] for places in together.values() for start in range(0, len(places), STACK)]
    return alone + stacks


def one_core() -> None:
    """Sums in another number of threads round differently: every thread computes alone.

    And numbers too small to be written in full count as 0: a client that has learnt its examples by heart has nothing
    but such gradients, and a CPU takes several times as long for them.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
