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
class Request:
    """What a member waits for. Requests of one `kind` are handed to `answer` in one list, in the members' order."""

    member: int
    kind: Hashable
    answer: Callable[[list[Any]], list[Any]]
    content: Any
    result: Any = None
    error: BaseException | None = None
    answered: bool = False


class Gang:
    """So many members that wait for each other, and the worker (the thread that makes the gang) who serves them.

    All answers are given by that one thread: what a thread once needed of memory, its allocator keeps for it.
    """

    def __init__(self, members: int) -> None:
        self.worker = threading.get_ident()
        one_at_a_time = threading.Lock()
        self._for_an_answer = threading.Condition(one_at_a_time)
        self._for_requests = threading.Condition(one_at_a_time)
        self._at_work = members
        self._unfinished = members
        self._requests: list[Request] = []
        self._broken: BaseException | None = None

    def take_part(self, member: int, work: Callable[[], T]) -> T:
        """Do a member's whole work; the others move on only while it waits."""
        with self._for_an_answer:
            self._check()
            MINE.gang, MINE.member = self, member
            try:
                return work()
            finally:
                MINE.gang = None
                self._unfinished -= 1
                self._rest()

    def ask(self, kind: Hashable, answer: Callable[[list[Any]], list[Any]], content: Any) -> Any:
        """The answer to `content`, given together with those to all other requests of its kind."""
        request = Request(MINE.member, kind, answer, content)
        self._requests.append(request)
        self._rest()
        self._for_an_answer.wait_for(lambda: request.answered or self._broken)
        self._check()
        if request.error is not None:
            raise request.error
        return request.result

    def serve(self) -> None:
        """Answer whenever everybody waits, until everybody is done."""
        with self._for_requests:
            while self._unfinished:
                self._for_requests.wait_for(lambda: not self._at_work)
                waiting, self._requests = sorted(self._requests, key=lambda request: request.member), []
                settle(waiting)
                self._at_work = len(waiting)
                self._for_an_answer.notify_all()

    def break_up(self, error: BaseException) -> None:
        """Let everybody fail, now and later: somebody that they would wait for will never come."""
        with self._for_an_answer:
            self._broken = error
            self._for_an_answer.notify_all()

    def _rest(self) -> None:
        self._at_work -= 1
        if not self._at_work:
            self._for_requests.notify()

    def _check(self) -> None:
        if self._broken is not None:
            raise RuntimeError("not all members of a stack could be started") from self._broken


def settle(requests: list[Request]) -> None:
    """Answer requests kind by kind. A failure is everybody's who asked."""
    kinds: dict[Hashable, list[Request]] = {}
    for request in requests:
        kinds.setdefault(request.kind, []).append(request)
    for alike in kinds.values():
        try:
            results = alike[0].answer([request.content for request in alike])
            for request, result in zip(alike, results, strict=True):
                request.result = result
        except BaseException as error:
            for request in alike:
                request.error = error
    for request in requests:
        request.answered = True


class Mine(threading.local):
    """What this thread is in the gang that it works for."""

    gang: Gang | None = None
    member: int = 0


MINE = Mine()


def my_gang() -> Gang | None:
    """The gang that this thread takes part in, if any."""
    return MINE.gang


def my_desk() -> int:
    """At whose place this thread computes: its own or, as one member of a gang runs at a time, its worker's."""
    return MINE.gang.worker if MINE.gang else threading.get_ident()
