"""What a coordinator may use of a site per day: runs, steps and time; and the disk space of all runs.

The day is that of UTC. If the clock is set back, the day of the last recorded use continues.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.storage.files import make_directories, read_checksummed_json, to_checksummed_json, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE_FILE = "usage.json"
GIGABYTE = 1e9


@dataclass(frozen=True)
class UsageLimits:
    """Limits per coordinator and day, of the disk space of all runs, and of the weights of a network."""

    max_runs: int = 20
    max_steps: int = 1_000_000
    max_hours: float = 24.0
    max_disk_gb: float = 20.0
    max_weights: int = 500_000_000


@dataclass
class DailyUsage:
    """What a coordinator has used on a day."""

    day: str = ""
    runs: int = 0
    steps: int = 0
    seconds: float = 0.0


class UsageRecord:
    """The use of a site, in a file that survives restarts.

    Args:
        path: The file.
        limits: What is allowed.
        today: Returns the date, as YYYY-MM-DD.
    """

    def __init__(self, path: Path, limits: UsageLimits, today: Callable[[], str] | None = None) -> None:
        self._path = path
        self._limits = limits
        self._today = today or utc_date
        self.num_runs_without_noise = 0
        """Runs of all coordinators and days from which values without noise left the site."""
        self._usage = self._read()

    def usage_today(self) -> dict[str, DailyUsage]:
        """Return what each known coordinator has used today."""
        return {coordinator: self._current(coordinator) for coordinator in self._usage}

    def require_weights(self, num_weights: int) -> None:
        """Raise `RequestError` if the networks of a plan are larger than allowed."""
        if num_weights > self._limits.max_weights:
            raise RequestError(
                f"the networks of the plan have {num_weights:,} weights, with copies and optimizer states, and this "
                f"site allows {self._limits.max_weights:,} (max_weights in site.json): use a smaller network"
            )

    def count_run(self, coordinator: str, runs_dir: Path) -> None:
        """Count a new run. Raise `RequestError` if a limit is exceeded; then nothing is counted."""
        limits, usage = self._limits, self._current(coordinator)
        self._require(usage.runs + 1 <= limits.max_runs, f"{limits.max_runs} runs per day", "max_runs_per_day")
        self.require_disk_space(runs_dir)
        usage.runs += 1
        self._save(coordinator, usage)

    def count_run_without_noise(self, coordinator: str) -> None:
        """Count a run before values without noise leave the site."""
        self.num_runs_without_noise += 1
        self._save(coordinator, self._current(coordinator))

    def require_disk_space(self, runs_dir: Path) -> None:
        """Raise `RequestError` if the stored runs take more disk space than allowed."""
        limit = self._limits.max_disk_gb
        is_allowed = directory_bytes(runs_dir) / GIGABYTE <= limit
        self._require(
            is_allowed, f"at most {limit:g} GB of stored runs", "max_disk_gb", "remove old runs, or raise the limit"
        )

    def require_time(self, coordinator: str) -> None:
        """Raise `RequestError` if a coordinator has used its time of this day."""
        limit = self._limits.max_hours
        is_allowed = self._current(coordinator).seconds < 3600 * limit
        self._require(is_allowed, f"{limit:g} hours per day", "max_hours_per_day")

    def count_steps(self, coordinator: str, num_steps: int) -> None:
        """Count the steps of a training before it begins. Raise `RequestError` if the limit is exceeded."""
        limits, usage = self._limits, self._current(coordinator)
        self._require(
            usage.steps + num_steps <= limits.max_steps, f"{limits.max_steps:,} steps per day", "max_steps_per_day"
        )
        usage.steps += num_steps
        self._save(coordinator, usage)

    def add_seconds(self, coordinator: str, seconds: float) -> None:
        """Count the duration of a request, as far as it was on this day."""
        usage = self._current(coordinator)
        usage.seconds += min(seconds, seconds_since_midnight())
        self._save(coordinator, usage)

    def _require(self, is_allowed: bool, limit: str, key: str, advice: str = "continue later") -> None:
        if not is_allowed:
            raise RequestError(f"this site allows a coordinator {limit} ({key} in site.json): {advice}")

    def _current(self, coordinator: str) -> DailyUsage:
        today, usage = self._today(), self._usage.get(coordinator, DailyUsage())
        return usage if today <= usage.day else DailyUsage(today)

    def _read(self) -> dict[str, DailyUsage]:
        if not self._path.exists():
            self.num_runs_without_noise = num_stored_plans(self._path.parent)
            return {}
        content: dict[str, Any] = read_checksummed_json(self._path)
        try:
            self.num_runs_without_noise = int(content["runs_without_noise"])
            return {name: DailyUsage(**usage) for name, usage in content["coordinators"].items()}
        except (AttributeError, KeyError, TypeError):
            raise RunStateError(f"the record of this site's use is damaged ({self._path}): restore it") from None

    def _save(self, coordinator: str, usage: DailyUsage) -> None:
        self._usage[coordinator] = usage
        content = {
            "coordinators": {name: vars(usage) for name, usage in self._usage.items()},
            "runs_without_noise": self.num_runs_without_noise,
        }
        make_directories(self._path.parent)
        write_atomic(self._path, to_checksummed_json(content))


def num_stored_plans(site_dir: Path) -> int:
    """Return the number of runs of a site without a record of its use. It is unknown whether they had noise."""
    return sum(1 for _ in (site_dir / "runs").glob("*/*/*/*/plan.json"))


def seconds_since_midnight() -> float:
    now = datetime.now(UTC)
    return (now - now.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()


def utc_date() -> str:
    return datetime.now(UTC).date().isoformat()


def directory_bytes(path: Path) -> int:
    """Return the size of all files in a directory; 0 if it does not exist. Files may be removed at the same time."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).lstat().st_size
    return total
