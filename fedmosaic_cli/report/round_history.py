"""Accuracy and lambda over the rounds of a run, gathered from the lines of its log as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

MAX_MAGNITUDE = 1e300
MAX_INDEX = 10**9


@dataclass
class RoundSums:
    """The sums of one round, and over how many clients."""

    num_clients: int = 0
    accuracy_sum: float = 0.0
    num_with_trust: int = 0
    trust_sum: float = 0.0

    def add_client(self, accuracy: float, trust: object) -> None:
        """Take in a client; not every one has a lambda in every round."""
        self.num_clients += 1
        self.accuracy_sum += accuracy
        if is_finite_number(trust):
            self.num_with_trust += 1
            self.trust_sum += trust

    def means(self) -> tuple[float, float | None]:
        """Mean accuracy and, where clients had one, mean lambda."""
        return (
            self.accuracy_sum / self.num_clients,
            self.trust_sum / self.num_with_trust if self.num_with_trust else None,
        )


class RoundHistory:
    """What is known of the rounds so far. The last one counts when it is there for all clients.

    Of a log that was not read `from_start`, the first round may lack clients, and is left out. Without `whole`, only
    the newest rounds are kept.
    """

    def __init__(self, keep_all_rounds: bool, read_from_start: bool = True) -> None:
        self.has_invalid_rows = False
        """Whether there was a line that is none of a round."""
        self._keep_all_rounds = keep_all_rounds
        self._partial_round: int | None = None
        self._read_from_start = read_from_start
        self._round_sums: dict[int, RoundSums] = {}
        self._recent_rows: dict[int, list[dict[str, Any]]] = {}

    def add_row(self, row: dict[str, Any]) -> None:
        """Take in one line of the log."""
        number, accuracy = row.get("round"), row.get("accuracy")
        if not is_index(number) or not is_finite_number(accuracy) or not is_index(row.get("client"), minimum=0):
            self.has_invalid_rows = True
            return
        if not self._read_from_start and self._partial_round is None:
            self._partial_round = number
        if number != self._partial_round:
            self._round_sums.setdefault(number, RoundSums()).add_client(accuracy, row.get("lambda"))
            self._recent_rows.setdefault(number, []).append(row)
            self._drop_old_rounds()

    def _drop_old_rounds(self) -> None:
        while len(self._recent_rows) > 2:
            del self._recent_rows[min(self._recent_rows)]
        while not self._keep_all_rounds and len(self._round_sums) > 2:
            del self._round_sums[min(self._round_sums)]

    @property
    def last_complete_round(self) -> int:
        """The last round that is complete, 0 where there is none."""
        newest = sorted(self._recent_rows)[-2:]
        if len(newest) == 2 and len(self._recent_rows[newest[1]]) < len(self._recent_rows[newest[0]]):
            return newest[0]
        return newest[-1] if newest else 0

    def last_round_means(self) -> tuple[float | None, float | None]:
        """Accuracy and lambda in the last round."""
        return self._round_sums[self.last_complete_round].means() if self.last_complete_round else (None, None)

    def mean_curve(self) -> tuple[tuple[int, float, float | None], ...]:
        """Round, accuracy and lambda, up to the last round."""
        last = self.last_complete_round
        return tuple((number, *point.means()) for number, point in sorted(self._round_sums.items()) if number <= last)

    def last_round_rows(self) -> tuple[dict[str, Any], ...]:
        """The lines of the last round, a client each."""
        return tuple(self._recent_rows.get(self.last_complete_round, ()))


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether this is a number to calculate with; JSON holds numbers that are none, or larger than any."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE


def is_index(value: object, minimum: int = 1) -> TypeGuard[int]:
    """Whether this can be the number of a round, or of a client."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_INDEX


def logged_seconds(row: dict[str, Any]) -> float:
    """The seconds that a line of the timings tells of; 0 where it tells of none."""
    seconds = row.get("seconds")
    return max(0.0, seconds) if is_finite_number(seconds) else 0.0
