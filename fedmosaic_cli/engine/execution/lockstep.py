"""Clients in lockstep: requests that several clients make at the same time are computed together.

Each client runs its part of a round in a separate thread. One client runs at a time, until it submits a request. When
all clients wait or are done, the worker that created the group handles all requests.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

T = TypeVar("T")


@dataclass
class LockstepRequest:
    """A request of one client. Requests with equal `group_key` go to `handler` in one list, ordered by client.

    Transfers between host and device are handled before all other requests. So which clients compute together does not
    depend on which of them also read a value.
    """

    client_index: int
    group_key: Hashable
    handler: Callable[[list[Any]], list[Any]]
    payload: Any
    is_transfer: bool = False
    result: Any = None
    error: BaseException | None = None


class LockstepGroup:
    """Clients that wait for each other, served by the thread that created the group.

    A single thread handles all requests because the memory allocator keeps the peak memory of every thread.

    Attributes:
        worker_id: The thread that handles requests.
        num_clients: Number of clients.
        num_waiting: Number of clients that wait: all that are not done.
    """

    def __init__(self, num_clients: int) -> None:
        self.worker_id = threading.get_ident()
        # Each thread waits for its own lock, so that a pause wakes one thread only.
        self._client_locks = [acquired_lock() for _ in range(num_clients)]
        self._worker_lock = acquired_lock()
        self._ready = deque(range(num_clients))
        self.num_clients = num_clients
        self.num_waiting = 0
        self._requests: list[LockstepRequest] = []
        self._abort_error: BaseException | None = None

    def run_client(self, client_index: int, function: Callable[[], T]) -> T:
        """Run `function` for one client. Other clients run only while it waits."""
        self._client_locks[client_index].acquire()
        self._raise_if_aborted()
        LOCKSTEP_CONTEXT.group, LOCKSTEP_CONTEXT.client_index = self, client_index
        try:
            return function()
        finally:
            LOCKSTEP_CONTEXT.group = None
            self._continue_next()

    def submit(
        self,
        group_key: Hashable,
        handler: Callable[[list[Any]], list[Any]],
        payload: Any,
        is_transfer: bool = False,
    ) -> Any:
        """Wait for the result of `payload`, computed together with all requests that have the same `group_key`."""
        request = LockstepRequest(LOCKSTEP_CONTEXT.client_index, group_key, handler, payload, is_transfer)
        self._requests.append(request)
        self._continue_next()
        self._client_locks[request.client_index].acquire()
        if request.error is not None:
            raise request.error
        return request.result

    def run(self) -> None:
        """Handle requests whenever all clients wait, until all are done."""
        while self._ready:
            self._continue_next()
            self._worker_lock.acquire()
            self.num_waiting = len(self._requests)
            waiting = sorted(self._requests, key=lambda request: request.client_index)
            transfers = [request for request in waiting if request.is_transfer]
            handled = transfers or waiting
            self._requests = [request for request in waiting if transfers and not request.is_transfer]
            dispatch(handled)
            self._ready.extend(request.client_index for request in handled)

    def abort(self, error: BaseException) -> None:
        """Raise an error in all clients, because one of them could not be started."""
        self._abort_error = error
        for lock in self._client_locks:
            lock.release()

    def _continue_next(self) -> None:
        """Let the next client run, or the worker if all clients wait or are done."""
        lock = self._client_locks[self._ready.popleft()] if self._ready else self._worker_lock
        lock.release()

    def _raise_if_aborted(self) -> None:
        if self._abort_error is not None:
            raise RuntimeError("not all clients of a stack could be started") from self._abort_error


def acquired_lock() -> threading.Lock:
    """A lock that the next `acquire` waits for."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def dispatch(requests: list[LockstepRequest]) -> None:
    """Handle requests group by group. An error is raised in all clients of the group."""
    groups: dict[Hashable, list[LockstepRequest]] = {}
    for request in requests:
        groups.setdefault(request.group_key, []).append(request)
    for group in groups.values():
        try:
            results = group[0].handler([request.payload for request in group])
            for request, result in zip(group, results, strict=True):
                request.result = result
        except BaseException as error:
            for request in group:
                request.error = error


class LockstepContext(threading.local):
    """The group that this thread belongs to, and the index of its client."""

    group: LockstepGroup | None = None
    client_index: int = 0
    is_outside_group: bool = False


LOCKSTEP_CONTEXT = LockstepContext()


def current_group() -> LockstepGroup | None:
    """The group whose clients this thread may wait for."""
    return None if LOCKSTEP_CONTEXT.is_outside_group else LOCKSTEP_CONTEXT.group


@contextmanager
def without_group() -> Iterator[None]:
    """Submit no requests within this context: one client computes, while the others wait."""
    was_outside, LOCKSTEP_CONTEXT.is_outside_group = LOCKSTEP_CONTEXT.is_outside_group, True
    try:
        yield
    finally:
        LOCKSTEP_CONTEXT.is_outside_group = was_outside


def current_worker_id() -> int:
    """The thread that owns this thread's resources: the group's worker, or the thread itself outside a group."""
    return LOCKSTEP_CONTEXT.group.worker_id if LOCKSTEP_CONTEXT.group else threading.get_ident()
