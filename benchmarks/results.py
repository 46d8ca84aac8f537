"""Results of a part of the benchmark: lines of a Markdown table, and the samples behind them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from measuring import Clock, Sample, Samples

CLOCK_NAMES = {"cpu": "CPU", "wall": "wall"}


@dataclass(frozen=True)
class Goal:
    """A limit for the median."""

    limit: float
    at_most: bool

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


def at_most(limit: float) -> Goal:
    return Goal(limit, at_most=True)


def at_least(limit: float) -> Goal:
    return Goal(limit, at_most=False)


@dataclass(frozen=True)
class Line:
    """A measured quantity with all its values."""

    label: str
    values: list[float]
    unit: str = ""
    goal: Goal | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return f"{self.goal} ({'met' if self.goal.met(self.median) else 'missed'})"

    def to_dict(self) -> dict[str, Any]:
        goal = None if self.goal is None else {"limit": str(self.goal), "met": self.goal.met(self.median)}
        return {
            "label": self.label,
            "unit": self.unit or "ratio",
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "values": self.values,
            "goal": goal,
        }


@dataclass
class Result:
    """The result of a part. `notes` describe what was measured or, without lines, why nothing was."""

    title: str
    notes: list[str]
    lines: list[Line] = field(default_factory=list)
    samples: Samples = field(default_factory=dict)

    def add(self, samples: Samples, unit: str, scale: float = 1.0, clocks: Iterable[Clock] = ("cpu",)) -> None:
        """Add a line for every variant and clock. `unit` is the unit of a second times `scale`."""
        self.samples |= samples
        for label, own_samples in samples.items():
            for clock in clocks:
                values = [scale * sample.on(clock) for sample in own_samples]
                self.lines.append(Line(label, values, f"{unit}, {CLOCK_NAMES[clock]}"))

    def compare(self, over: str, under: str, goal: Goal | None = None, clock: Clock = "cpu") -> None:
        """Add a line for the ratio of two variants, computed within each repetition."""
        values = ratios(self.samples[over], self.samples[under], clock)
        self.lines.append(Line(f"{over} / {under}", values, f"ratio, {CLOCK_NAMES[clock]}", goal))

    def table(self) -> str:
        rows = [f"## {self.title}", "", *self.notes, ""]
        if self.lines:
            rows += ["| | median | min | max | unit | goal |", "|---|---|---|---|---|---|"]
        for line in self.lines:
            figures = " | ".join(f"{value:.4g}" for value in (line.median, min(line.values), max(line.values)))
            rows.append(f"| {line.label} | {figures} | {line.unit} | {line.verdict} |")
        return "\n".join(rows) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "notes": self.notes,
            "lines": [line.to_dict() for line in self.lines],
            "samples": {
                label: [asdict(sample) for sample in own_samples] for label, own_samples in self.samples.items()
            },
        }


def ratios(over: list[Sample], under: list[Sample], clock: Clock) -> list[float]:
    return [a.on(clock) / b.on(clock) for a, b in zip(over, under, strict=True)]
