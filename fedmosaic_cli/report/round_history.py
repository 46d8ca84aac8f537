"""Accuracy and lambda over the rounds of a run, gathered from the lines of its log as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

LARGEST = 1e300
MOST_ROUNDS = 10**9


@dataclass
class Point:
    """The sums of one round, and over how many clients."""

    clients: int = 0
    accuracy: float = 0.0
    trusting: int = 0
    trust: float = 0.0

    def add(self, accuracy: float, trust: object) -> None:
        """Take in a client; not every one has a lambda in every round."""
        self.clients += 1
        self.accuracy += accuracy
        if is_number(trust):
            self.trusting += 1
            self.trust += trust

    def means(self) -> tuple[float, float | None]:
        """Mean accuracy and, where clients had one, mean lambda."""
        return self.accuracy / self.clients, self.trust / self.trusting if self.trusting else None


class History:
    """What is known of the rounds so far. The last one counts when it is there for all clients.

    Of a log that was not read `from_start`, the first round may lack clients, and is left out. Without `whole`, only
    the newest rounds are kept.
    """

    def __init__(self, whole: bool, from_start: bool = True) -> None:
        self.damaged = False
        """Whether there was a line that is none of a round."""
        self._whole = whole
        self._cut: int | None = None
        self._from_start = from_start
        self._points: dict[int, Point] = {}
        self._rows: dict[int, list[dict[str, Any]]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take in one line of the log."""
        number, accuracy = row.get("round"), row.get("accuracy")
        if not whole_number(number) or not is_number(accuracy) or not whole_number(row.get("client"), least=0):
            self.damaged = True
            return
        if not self._from_start and self._cut is None:
            self._cut = number
        if number != self._cut:
            self._points.setdefault(number, Point()).add(accuracy, row.get("lambda"))
            self._rows.setdefault(number, []).append(row)
            self._forget()

    def _forget(self) -> None:
        while len(self._rows) > 2:
            del self._rows[min(self._rows)]
        while not self._whole and len(self._points) > 2:
            del self._points[min(self._points)]

    @property
    def last(self) -> int:
        """The last round that is complete, 0 where there is none."""
        newest = sorted(self._rows)[-2:]
        if len(newest) == 2 and len(self._rows[newest[1]]) < len(self._rows[newest[0]]):
            return newest[0]
        return newest[-1] if newest else 0

    def means(self) -> tuple[float | None, float | None]:
        """Accuracy and lambda in the last round."""
        return self._points[self.last].means() if self.last else (None, None)

    def points(self) -> tuple[tuple[int, float, float | None], ...]:
        """Round, accuracy and lambda, up to the last round."""
        last = self.last
        return tuple((number, *point.means()) for number, point in sorted(self._points.items()) if number <= last)

    def rows(self) -> tuple[dict[str, Any], ...]:
        """The lines of the last round, a client each."""
        return tuple(self._rows.get(self.last, ()))


def is_number(value: object) -> TypeGuard[float]:
    """Whether this is a number to calculate with; JSON holds numbers that are none, or larger than any."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def whole_number(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether this can be the number of a round, or of a client."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_ROUNDS


def duration(line: dict[str, Any]) -> float:
    """The seconds that a line of the timings tells of; 0 where it tells of none."""
    seconds = line.get("seconds")
    return max(0.0, seconds) if is_number(seconds) else 0.0
