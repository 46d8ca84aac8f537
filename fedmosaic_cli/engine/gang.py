"""Clients that work in step: what several of them ask for at once is done for all of them at once.

Each member plays its part of a round as if it were alone, in a thread of its own. One of them runs at a time, until it
asks for something; when all have asked, or are done, the requests are answered together.
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
    """So many members that wait for each other."""

    def __init__(self, members: int, desk: int) -> None:
        self.desk = desk
        self._turn = threading.Condition()
        self._at_work = members
        self._requests: list[Request] = []

    def take_part(self, member: int, work: Callable[[], T]) -> T:
        """Do a member's whole work; the others move on only while it waits."""
        with self._turn:
            MINE.gang, MINE.member = self, member
            try:
                return work()
            finally:
                MINE.gang = None
                self._at_work -= 1
                self._answer_if_all_wait()

    def ask(self, kind: Hashable, answer: Callable[[list[Any]], list[Any]], content: Any) -> Any:
        """The answer to `content`, given together with those to all other requests of its kind."""
        request = Request(MINE.member, kind, answer, content)
        self._requests.append(request)
        self._at_work -= 1
        self._answer_if_all_wait()
        self._turn.wait_for(lambda: request.answered)
        if request.error is not None:
            raise request.error
        return request.result

    def _answer_if_all_wait(self) -> None:
        if self._at_work or not self._requests:
            return
        waiting, self._requests = sorted(self._requests, key=lambda request: request.member), []
        kinds: dict[Hashable, list[Request]] = {}
        for request in waiting:
            kinds.setdefault(request.kind, []).append(request)
        for alike in kinds.values():
            settle(alike)
        self._at_work = len(waiting)
        self._turn.notify_all()


def settle(alike: list[Request]) -> None:
    """Answer requests of one kind. A failure is everybody's who asked."""
    try:
        results = alike[0].answer([request.content for request in alike])
        for request, result in zip(alike, results, strict=True):
            request.result = result
    except BaseException as error:
        for request in alike:
            request.error = error
    for request in alike:
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
    """At whose place this thread computes: its own or, as one member of a gang runs at a time, the gang's."""
    return MINE.gang.desk if MINE.gang else threading.get_ident()
