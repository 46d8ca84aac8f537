"""How long runs will take: from what others of their setting took here, or else a guess that is called one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.storage.runs import TIMINGS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.sweeps.sweep_plan import SweepJob, SweepRun

STARTUP_SECONDS = 5.0
"""What a command takes before its first round."""
# Seconds of a round in multiples of Local's, measured on the quickstart presets.
RELATIVE_ROUND_COST = {
    "local": 1.0,
    "centralized": 3.0,
    "fedavg": 1.0,
    "fedprox": 1.1,
    "fedct": 1.3,
    "fedbn": 1.0,
    "perfedavg": 4.5,
    "ditto": 2.2,
    "pfedme": 6.8,
    "apfl": 3.7,
    "fedphp": 1.4,
    "perfedckt": 3.9,
    "fedmosaic": 1.5,
    "gated": 4.2,
}
DEFAULT_ROUND_COST = 2.0
# Seconds of a whole Local run on two cores: a rough guess, for as long as nothing was run here.
LOCAL_RUN_SECONDS = {
    "pathological-fashion-mnist-quick": 8.0,
    "practical-fashion-mnist-quick": 8.0,
    "pathological-cifar10-quick": 12.0,
    "practical-cifar10-quick": 12.0,
    "misleading-cifar10-quick": 12.0,
    "feature-shift-office10-quick": 4.0,
    "hybrid-office10-quick": 7.0,
    "quickstart": 3.0,
    "quickstart-feature-shift": 3.0,
    "quickstart-hybrid": 3.0,
}
TIME_COMMENT_PATTERN = re.compile(r"^# Time: (.*(?:\n# (?![A-Z]).*)*)", re.MULTILINE)


@dataclass(frozen=True)
class DurationEstimate:
    """Seconds for all that remains, None where nobody knows; whether they are a guess; and what presets say of it."""

    seconds: float | None
    is_guess: bool = False
    preset_notes: tuple[str, ...] = ()


class RoundDurations:
    """Seconds a round, by setting and method, as far as runs here have told."""

    def __init__(self, runs: Iterable[SweepRun]) -> None:
        own: dict[tuple[str, str], list[float]] = {}
        self._num_finished_rounds: dict[object, int] = {}
        for cell in runs:
            seconds = round_seconds(cell.files)
            self._num_finished_rounds[cell.files.path] = len(seconds)
            if seconds:
                own.setdefault((cell.scenario.name, cell.row.method), []).append(fmean(seconds))
        self._mean_round_seconds = {key: fmean(values) for key, values in own.items()}

    def remaining_seconds(self, run: SweepRun) -> tuple[float | None, bool]:
        """What a run will still take, and whether that is a guess."""
        rounds, setting, method = run.config.train.rounds, run.scenario.name, run.row.method
        left = max(1, rounds - self._num_finished_rounds.get(run.files.path, 0))
        if (setting, method) in self._mean_round_seconds:
            return left * self._mean_round_seconds[setting, method], False
        others = [
            pace / relative_round_cost(name)
            for (where, name), pace in self._mean_round_seconds.items()
            if where == setting
        ]
        if others:
            return left * fmean(others) * relative_round_cost(method), False
        whole = LOCAL_RUN_SECONDS.get(run.scenario.preset)
        return (None, True) if whole is None else (left / rounds * whole * relative_round_cost(method), True)


def estimate_duration(jobs: Sequence[SweepJob], runs: Iterable[SweepRun], max_parallel: int) -> DurationEstimate:
    """What the jobs will take, so many side by side."""
    paces = RoundDurations(runs)
    lengths, guessed, unknown = list[float](), False, list[str]()
    for job in jobs:
        length = STARTUP_SECONDS
        for cell in job.runs:
            seconds, guess = paces.remaining_seconds(cell)
            guessed |= guess
            length += seconds or 0.0
            unknown += [cell.scenario.preset] if seconds is None else []
        lengths.append(length)
    if unknown:
        words = [f"{preset}: {preset_time_note(preset)}" for preset in dict.fromkeys(unknown)]
        return DurationEstimate(None, True, tuple(words))
    return DurationEstimate(max([sum(lengths) / max_parallel, *lengths], default=0.0), guessed)


def relative_round_cost(method: str) -> float:
    return RELATIVE_ROUND_COST.get(method, DEFAULT_ROUND_COST)


def round_seconds(files: RunDirectory) -> list[float]:
    """The seconds of each round that a run has played; nothing where its log is missing or cannot be read."""
    try:
        lines = (files.path / TIMINGS_FILE).read_text(encoding="utf-8").splitlines()
        return [float(json.loads(line)["seconds"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def preset_time_note(preset: str) -> str:
    """What a preset says of its time."""
    found = TIME_COMMENT_PATTERN.search(load_preset(preset).path.read_text(encoding="utf-8"))
    return found[1].replace("\n# ", " ") if found else "it does not say how long it takes"
