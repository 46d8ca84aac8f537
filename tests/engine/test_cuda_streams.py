"""Streams of clients on a GPU, with a record of what would be called instead of CUDA.

No test runs on a GPU: whether results with several streams are correct there is untested.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch

from fedmosaic_cli.engine.execution import worker_pool
from fedmosaic_cli.engine.execution.lockstep import current_group
from fedmosaic_cli.engine.execution.worker_pool import ClientJob, WorkerPool
from fedmosaic_cli.engine.rounds import run_rounds
from tests.test_contract import VARIANTS
from tests.toys import CPU, TOYS
from tests.waiting import HANG_SECONDS

GPU = torch.device("cuda:0")


class Stream:
    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def wait_stream(self, other):
        self.calls.append((self.name, "waits for", other.name))

    def synchronize(self):
        self.calls.append((self.name, "is complete"))


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of CUDA: waits, and entries and exits of streams."""
    calls, names = [], iter("abcdef")
    current = threading.local()

    @contextmanager
    def enter(stream):
        current.name = stream.name
        calls.append((stream.name, "begins"))
        try:
            yield
        finally:
            calls.append((stream.name, "ends"))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(calls, next(names)))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream(calls, "default"))
    monkeypatch.setattr(torch.cuda, "stream", enter)
    return calls


def run_jobs(jobs, streams, workers=1):
    with WorkerPool(workers, streams) as pool:
        return pool.map(lambda item: item, jobs)


def job(client, stack_key=None, device=GPU):
    return ClientJob(client, 1, stack_key, device, client=client)


def test_a_client_waits_for_the_main_thread_and_is_waited_for(calls):
    assert run_jobs([job(0)], streams=2) == [0]
    assert calls == [("a", "waits for", "default"), ("a", "begins"), ("a", "ends"), ("a", "is complete")]


def test_a_client_has_the_same_stream_in_every_part_of_a_round(calls):
    streams = []
    with WorkerPool(1, 2) as pool:
        for client in (4, 1, 4, 1, 6):
            pool.map(lambda item: item, [job(client)])
            streams.append(calls[-1][0])
    assert streams == ["a", "b", "a", "b", "a"]


def test_a_failed_client_is_waited_for(calls):
    def fail(item):
        raise KeyError(item)

    with WorkerPool(1, 2) as pool, pytest.raises(KeyError):
        pool.map(fail, [job(0)])
    assert calls[-1] == ("a", "is complete")


def test_there_is_a_thread_per_stream(calls):
    barrier = threading.Barrier(3, timeout=HANG_SECONDS)
    with WorkerPool(1, 3) as pool:
        pool.map(lambda item: barrier.wait(), [job(client) for client in range(3)])


@pytest.mark.parametrize(
    ("jobs", "streams"),
    [
        ([job(0), job(1)], 1),
        ([job(0, device=CPU), job(1, device=CPU)], 2),
        ([job(0, stack_key="mine"), job(1, stack_key="mine")], 2),
    ],
    ids=["one stream", "cpu", "stacked"],
)
def test_other_clients_stay_in_the_default_stream(jobs, streams, calls):
    assert run_jobs(jobs, streams) == [0, 1]
    assert not calls


def test_stacks_have_threads_for_all_clients_of_all_workers(calls, monkeypatch):
    """Two stacks run at the same time: the clients of one must not take the threads of the other."""
    monkeypatch.setattr(worker_pool, "MAX_STACK_SIZE", 2)
    barrier = threading.Barrier(2, timeout=HANG_SECONDS)
    jobs = [job(number, stack_key=number % 2) for number in range(4)]
    with WorkerPool(2, 1) as pool:
        pool.map(lambda item: barrier.wait(), jobs)
        assert pool._executor("member", GPU)._max_workers == 4


def test_streams_add_threads_for_single_clients_only(calls, monkeypatch):
    monkeypatch.setattr(worker_pool, "MAX_STACK_SIZE", 2)
    running, most = set(), []

    def run(item):
        running.add(item // 2)
        most.append(len(running))
        if item % 2 == 0:  # the other client of the stack runs now
            current_group().submit("wait", list, item)
            running.discard(item // 2)

    with WorkerPool(1, 3) as pool:
        pool.map(run, [job(number, stack_key=number // 2) for number in range(6)])
        assert max(most) == 1, "one stack after the other, as without streams"
        assert pool._executor("worker", GPU)._max_workers == 1
        assert pool._executor("member", GPU)._max_workers == 2
        barrier = threading.Barrier(3, timeout=HANG_SECONDS)
        pool.map(lambda item: barrier.wait(), [job(client) for client in range(3)])


@pytest.mark.parametrize("name", ["fedavg", "student"])
def test_jobs_of_a_round_name_their_clients(name, monkeypatch):
    seen = []
    run_map = WorkerPool.map

    def record(pool, function, jobs):
        seen.append(jobs)
        return run_map(pool, function, jobs)

    monkeypatch.setattr(WorkerPool, "map", record)
    federation = TOYS["uneven"].federation(VARIANTS[name])
    with federation.worker_pool:
        list(run_rounds(federation, 1))
    assert [[each.client for each in jobs] for jobs in seen] == [[0, 1, 2]] * len(seen)
