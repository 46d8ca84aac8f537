"""How long a round is waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass
class Patience:
    """How long a round may take: so many seconds or, unless somebody chose, a multiple of what rounds took so far."""

    chosen: float | None = None
    first: float = 3600.0
    least: float = 90.0
    times: float = 3.0
    _took: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        if self.chosen is not None:
            return self.chosen
        return max(self.least, self.times * median(self._took)) if self._took else self.first

    def took(self, seconds: float) -> None:
        self._took.append(seconds)
