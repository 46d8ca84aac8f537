"""Clients in lockstep: requests that several clients make at the same time are computed together.

Each client runs its part of a round in a separate thread. One client runs at a time, until it submits a request. When
all clients wait or are done, the worker that created the group handles all requests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


@dataclass
class LockstepRequest:
    """A request of one client. Requests with equal `group_key` go to `handler` in one list, ordered by client."""

    client_index: int
    group_key: Hashable
    handler: Callable[[list[Any]], list[Any]]
    payload: Any
    result: Any = None
    error: BaseException | None = None
    is_done: bool = False


class LockstepGroup:
    """Clients that wait for each other, served by the thread that created the group.

    A single thread handles all requests because the memory allocator keeps the peak memory of every thread.
    """

    def __init__(self, num_clients: int) -> None:
        self.worker_id = threading.get_ident()
        lock = threading.Lock()
        self._response_ready = threading.Condition(lock)
        self._requests_ready = threading.Condition(lock)
        self._num_running = num_clients
        self._num_unfinished = num_clients
        self._requests: list[LockstepRequest] = []
        self._abort_error: BaseException | None = None

    def run_client(self, client_index: int, function: Callable[[], T]) -> T:
        """Run `function` for one client. Other clients run only while it waits."""
        with self._response_ready:
            self._raise_if_aborted()
            LOCKSTEP_CONTEXT.group, LOCKSTEP_CONTEXT.client_index = self, client_index
            try:
                return function()
            finally:
                LOCKSTEP_CONTEXT.group = None
                self._num_unfinished -= 1
                self._pause()

    def submit(self, group_key: Hashable, handler: Callable[[list[Any]], list[Any]], payload: Any) -> Any:
        """Wait for the result of `payload`, computed together with all requests that have the same `group_key`."""
        request = LockstepRequest(LOCKSTEP_CONTEXT.client_index, group_key, handler, payload)
        self._requests.append(request)
        self._pause()
        self._response_ready.wait_for(lambda: request.is_done or self._abort_error)
        self._raise_if_aborted()
        if request.error is not None:
            raise request.error
        return request.result

    def run(self) -> None:
        """Handle requests whenever all clients wait, until all are done."""
        with self._requests_ready:
            while self._num_unfinished:
                self._requests_ready.wait_for(lambda: not self._num_running)
                waiting, self._requests = sorted(self._requests, key=lambda request: request.client_index), []
                dispatch(waiting)
                self._num_running = len(waiting)
                self._response_ready.notify_all()

    def abort(self, error: BaseException) -> None:
        """Raise an error in all clients, because one of them could not be started."""
        with self._response_ready:
            self._abort_error = error
            self._response_ready.notify_all()

    def _pause(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._requests_ready.notify()

    def _raise_if_aborted(self) -> None:
        if self._abort_error is not None:
            raise RuntimeError("not all clients of a stack could be started") from self._abort_error


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
    for request in requests:
        request.is_done = True


class LockstepContext(threading.local):
    """The group that this thread belongs to, and the index of its client."""

    group: LockstepGroup | None = None
    client_index: int = 0


LOCKSTEP_CONTEXT = LockstepContext()


def current_group() -> LockstepGroup | None:
    return LOCKSTEP_CONTEXT.group


def current_worker_id() -> int:
    """The thread that owns this thread's resources: the group's worker, or the thread itself outside a group."""
    return LOCKSTEP_CONTEXT.group.worker_id if LOCKSTEP_CONTEXT.group else threading.get_ident()
