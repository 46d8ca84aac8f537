"""How long a round is waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass
class AdaptiveDeadline:
    """How long a round may take: so many seconds or, unless somebody chose, a multiple of what rounds took so far."""

    fixed_seconds: float | None = None
    initial_seconds: float = 3600.0
    min_seconds: float = 90.0
    multiplier: float = 3.0
    _durations_seconds: list[float] = field(default_factory=list)

    def timeout_seconds(self) -> float:
        if self.fixed_seconds is not None:
            return self.fixed_seconds
        return (
            max(self.min_seconds, self.multiplier * median(self._durations_seconds))
            if self._durations_seconds
            else self.initial_seconds
        )

    def record_duration(self, seconds: float) -> None:
        self._durations_seconds.append(seconds)
