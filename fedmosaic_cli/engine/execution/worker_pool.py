"""Parallel execution of clients in single-threaded workers, so that results do not depend on their number."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import torch

from fedmosaic_cli.engine.execution.cuda_streams import CudaStreams
from fedmosaic_cli.engine.execution.lockstep import LockstepGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from types import TracebackType

T = TypeVar("T")
R = TypeVar("R")
Role = Literal["worker", "stream", "member"]
"""The role of a thread: it runs groups and single clients, single clients in CUDA streams, or one client of a group."""

# Clients per stack. The number is fixed: which clients compute together affects the last bits of their results.
MAX_STACK_SIZE = 32


@dataclass(frozen=True)
class ClientJob(Generic[T]):
    """Work for one client.

    Attributes:
        item: Argument of the mapped function.
        cost: Jobs with a larger cost start earlier.
        stack_key: Jobs with equal keys run together; None runs the job alone.
        device: Jobs on different devices do not wait for each other.
        client: Number of the client, which determines the CUDA stream of a job that runs alone.
    """

    item: T
    cost: int
    stack_key: Hashable
    device: torch.device
    client: int = 0


class WorkerPool:
    """Thread pools for every device. Even a single worker runs outside the main thread.

    Args:
        num_workers: Groups and single clients that run at the same time on a device.
        num_cuda_streams: Number of single clients trained at the same time on a GPU, if larger than `num_workers`.
    """

    def __init__(self, num_workers: int, num_cuda_streams: int = 1) -> None:
        self.num_workers = num_workers
        self._streams = CudaStreams(num_cuda_streams)
        self._lock = threading.Lock()
        self._executors: dict[tuple[str, torch.device], ThreadPoolExecutor] = {}

    def map(self, function: Callable[[T], R], jobs: Sequence[ClientJob[T]]) -> list[R]:
        """Apply `function` to the item of every job. Results are in the order of the jobs.

        Raises:
            BaseException: The error of the first failed job, after all jobs have ended.
        """
        results: dict[int, R] = {}
        failures: dict[int, BaseException] = {}

        def run_job(index: int) -> None:
            job = jobs[index]
            try:
                if job.stack_key is not None:
                    results[index] = function(job.item)
                else:
                    with self._streams.of_client(job.client, job.device):
                        results[index] = function(job.item)
            except BaseException as error:
                failures[index] = error

        futures = []
        for group in sorted(group_jobs(jobs), key=lambda group: -sum(jobs[index].cost for index in group)):
            device = jobs[group[0]].device
            is_alone = jobs[group[0]].stack_key is None
            executor = self._executor("stream" if is_alone and self._streams.are_used_on(device) else "worker", device)
            futures.append(executor.submit(self._run_group, run_job, group, device))
        for future in futures:
            future.result()
        if failures:
            raise failures[min(failures)]
        return [results[index] for index in range(len(jobs))]

    def _run_group(self, run_job: Callable[[int], None], job_indices: list[int], device: torch.device) -> None:
        if len(job_indices) == 1:
            run_job(job_indices[0])
            return
        group = LockstepGroup(len(job_indices))
        executor = self._executor("member", device)
        try:
            futures = [
                executor.submit(group.run_client, position, partial(run_job, index))
                for position, index in enumerate(job_indices)
            ]
        except RuntimeError as error:
            group.abort(error)
            raise
        group.run()
        for future in futures:
            future.result()

    def _executor(self, role: Role, device: torch.device) -> ThreadPoolExecutor:
        sizes: dict[Role, int] = {
            "worker": self.num_workers,
            "stream": max(self.num_workers, self._streams.num_streams),
            # One thread per client of every worker: a client without a thread would block its group forever.
            "member": self.num_workers * MAX_STACK_SIZE,
        }
        with self._lock:
            if (role, device) not in self._executors:
                self._executors[role, device] = ThreadPoolExecutor(
                    sizes[role], thread_name_prefix=role, initializer=use_single_thread
                )
            return self._executors[role, device]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            executors = dict(self._executors)
        workers = [executor for (role, _), executor in executors.items() if role != "member"]
        for executor in workers:  # cancel all pending jobs before waiting for any
            executor.shutdown(wait=False, cancel_futures=True)
        for executor in workers:
            executor.shutdown(wait=True)
        for executor in self._executors.values():  # members last: a running worker may still need them
            executor.shutdown(wait=True)


def group_jobs(jobs: Sequence[ClientJob[T]]) -> list[list[int]]:
    """Indices of the jobs that run together, in groups of at most MAX_STACK_SIZE."""
    single: list[list[int]] = []
    by_key: dict[Hashable, list[int]] = {}
    for index, job in enumerate(jobs):
        if job.stack_key is None:
            single.append([index])
        else:
            by_key.setdefault(job.stack_key, []).append(index)
    return single + [
        indices[start : start + MAX_STACK_SIZE]
        for indices in by_key.values()
        for start in range(0, len(indices), MAX_STACK_SIZE)
    ]


def use_single_thread() -> None:
    """Configure torch in a new thread.

    One thread, because sums over another number of threads round differently. Denormal numbers are flushed to 0,
    because CPUs are several times slower on them and a model that fits its data perfectly has such gradients.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
