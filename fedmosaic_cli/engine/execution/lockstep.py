"""Clients that work in step: what several of them ask for at once is done for all of them at once.

Each member plays its part of a round as if it were alone, in a thread of its own. One of them runs at a time, until it
asks for something; when all have asked, or are done, the worker that the gang belongs to answers all requests.
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
    """What a member waits for. Requests of one `kind` are handed to `answer` in one list, in the members' order."""

    client_index: int
    group_key: Hashable
    handler: Callable[[list[Any]], list[Any]]
    payload: Any
    result: Any = None
    error: BaseException | None = None
    is_done: bool = False


class LockstepGroup:
    """So many members that wait for each other, and the worker (the thread that makes the gang) who serves them.

    All answers are given by that one thread: what a thread once needed of memory, its allocator keeps for it.
    """

    def __init__(self, num_clients: int) -> None:
        self.worker_id = threading.get_ident()
        one_at_a_time = threading.Lock()
        self._response_ready = threading.Condition(one_at_a_time)
        self._requests_ready = threading.Condition(one_at_a_time)
        self._num_running = num_clients
        self._num_unfinished = num_clients
        self._requests: list[LockstepRequest] = []
        self._abort_error: BaseException | None = None

    def run_client(self, client_index: int, function: Callable[[], T]) -> T:
        """Do a member's whole work; the others move on only while it waits."""
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
        """The answer to `content`, given together with those to all other requests of its kind."""
        request = LockstepRequest(LOCKSTEP_CONTEXT.client_index, group_key, handler, payload)
        self._requests.append(request)
        self._pause()
        self._response_ready.wait_for(lambda: request.is_done or self._abort_error)
        self._raise_if_aborted()
        if request.error is not None:
            raise request.error
        return request.result

    def run(self) -> None:
        """Answer whenever everybody waits, until everybody is done."""
        with self._requests_ready:
            while self._num_unfinished:
                self._requests_ready.wait_for(lambda: not self._num_running)
                waiting, self._requests = sorted(self._requests, key=lambda request: request.client_index), []
                dispatch(waiting)
                self._num_running = len(waiting)
                self._response_ready.notify_all()

    def abort(self, error: BaseException) -> None:
        """Let everybody fail, now and later: somebody that they would wait for will never come."""
        with self._response_ready:
            self._abort_error = error
            self._response_ready.notify_all()

    def _pause(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._requests_ready.notify()

    def _raise_if_aborted(self) -> None:
        if self._abort_error is not None:
            raise RuntimeError("not all members of a stack could be started") from self._abort_error


def dispatch(requests: list[LockstepRequest]) -> None:
    """Answer requests kind by kind. A failure is everybody's who asked."""
    kinds: dict[Hashable, list[LockstepRequest]] = {}
    for request in requests:
        kinds.setdefault(request.group_key, []).append(request)
    for alike in kinds.values():
        try:
            results = alike[0].handler([request.payload for request in alike])
            for request, result in zip(alike, results, strict=True):
                request.result = result
        except BaseException as error:
            for request in alike:
                request.error = error
    for request in requests:
        request.is_done = True


class LockstepContext(threading.local):
    """What this thread is in the gang that it works for."""

    group: LockstepGroup | None = None
    client_index: int = 0


LOCKSTEP_CONTEXT = LockstepContext()


def current_group() -> LockstepGroup | None:
    """The gang that this thread takes part in, if any."""
    return LOCKSTEP_CONTEXT.group


def current_worker_id() -> int:
    """At whose place this thread computes: its own or, as one member of a gang runs at a time, its worker's."""
    return LOCKSTEP_CONTEXT.group.worker_id if LOCKSTEP_CONTEXT.group else threading.get_ident()
