"""Estimates of the duration of runs, from measured rounds of runs in the same experiment. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.run_costs import logged_round_seconds
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.sweeps.relative_costs import SINGLE_EXCHANGE_METHODS, relative_cost

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class MeasuredRounds:
    """Durations of rounds in one experiment.

    The last round of a method with a single exchange takes longer than the others, so its rounds count for itself only,
    and only in finished runs.
    """

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    executions: dict[str, str] = field(default_factory=dict)

    def add(self, method: str, files: RunDirectory, num_rounds: int) -> int:
        """Add the rounds of a run that has `num_rounds` if it is finished; return how many are logged."""
        seconds = logged_round_seconds(files)
        if seconds and (method not in SINGLE_EXCHANGE_METHODS or len(seconds) >= num_rounds):
            self.seconds[method] += seconds
            self.executions[method] = recorded_execution(files)
        return len(seconds)

    def references(self) -> list[str]:
        """Return the methods whose rounds predict those of others."""
        return [name for name in self.seconds if name not in SINGLE_EXCHANGE_METHODS]

    def round_seconds(self, method: str) -> float | None:
        """Return the mean duration of a round of a method, or None if nothing is known.

        Rounds of the same method count if there are any. Otherwise those of the other methods count, each divided by
        the relative cost of its method and multiplied by that of this one.
        """
        if self.seconds.get(method):
            return fmean(self.seconds[method])
        scaled = [
            fmean(self.seconds[name])
            * relative_cost(method, self.executions[name])
            / relative_cost(name, self.executions[name])
            for name in self.references()
        ]
        return fmean(scaled) if scaled else None

    def source(self, method: str) -> str:
        """Say what an estimate for a method is derived from."""
        if self.seconds.get(method):
            return f"from {len(self.seconds[method])} measured rounds of {method}"
        if self.references():
            return f"from measured rounds of {', '.join(self.references())} and the relative cost of {method}"
        return "unknown: no run of this experiment has been measured here"


def measured_rounds(experiment_dir: Path) -> MeasuredRounds:
    """Read the durations of all rounds below `<runs>/<experiment>`."""
    measured = MeasuredRounds()
    for path in sorted(experiment_dir.glob("*/seed-*")):
        files = RunDirectory(path)
        try:
            content = read_yaml(files.config_path)
            measured.add(str(content["method"]), files, int(content["train"]["rounds"]))
        except (RequestError, KeyError, TypeError, ValueError):
            continue  # not a run, or damaged
    return measured


def recorded_execution(files: RunDirectory) -> str:
    """Return how the clients of a run were executed; "" if env.json is missing or damaged."""
    try:
        return str(files.read_environment().get("execution", ""))
    except RequestError:
        return ""
