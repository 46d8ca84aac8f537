"""What a coordinator may use of a site per day: runs, steps and time; and the disk space of all runs.

The day is that of UTC. If the clock is set back, the day of the last recorded use continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunStateError
from fedmosaic_cli.storage.files import make_directories, read_checksummed_json, to_checksummed_json, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USAGE_FILE = "usage.json"
GIGABYTE = 1e9


@dataclass(frozen=True)
class UsageLimits:
    """Limits per coordinator and day, and of the disk space of all runs."""

    max_runs: int = 20
    max_steps: int = 1_000_000
    max_hours: float = 24.0
    max_disk_gb: float = 20.0


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
        self._usage = self._read()

    def require_run(self, coordinator: str, runs_dir: Path) -> None:
        """Count a new run. Raise `RequestError` if it exceeds a limit; then nothing is counted."""
        limits, usage = self._limits, self._current(coordinator)
        self._require(usage.runs + 1 <= limits.max_runs, f"{limits.max_runs} runs per day", "max_runs_per_day")
        used_gb = directory_bytes(runs_dir) / GIGABYTE
        self._require(used_gb <= limits.max_disk_gb, f"{limits.max_disk_gb:g} GB for runs", "max_disk_gb")
        usage.runs += 1
        self._save(coordinator, usage)

    def require_steps(self, coordinator: str, num_steps: int) -> None:
        """Count the steps of a round before it begins. Raise `RequestError` if they exceed a limit."""
        limits, usage = self._limits, self._current(coordinator)
        self._require(
            usage.steps + num_steps <= limits.max_steps, f"{limits.max_steps:,} steps per day", "max_steps_per_day"
        )
        self._require(
            usage.seconds < 3600 * limits.max_hours, f"{limits.max_hours:g} hours per day", "max_hours_per_day"
        )
        usage.steps += num_steps
        self._save(coordinator, usage)

    def add_seconds(self, coordinator: str, seconds: float) -> None:
        """Count the duration of a request."""
        usage = self._current(coordinator)
        usage.seconds += seconds
        self._save(coordinator, usage)

    def _require(self, is_allowed: bool, limit: str, key: str) -> None:
        if not is_allowed:
            raise RequestError(f"this site allows a coordinator {limit} ({key} in site.json): continue later")

    def _current(self, coordinator: str) -> DailyUsage:
        today, usage = self._today(), self._usage.get(coordinator, DailyUsage())
        return usage if today <= usage.day else DailyUsage(today)

    def _read(self) -> dict[str, DailyUsage]:
        if not self._path.exists():
            return {}
        content: dict[str, Any] = read_checksummed_json(self._path)
        try:
            return {name: DailyUsage(**usage) for name, usage in content["coordinators"].items()}
        except (AttributeError, KeyError, TypeError):
            raise RunStateError(f"the record of this site's use is damaged ({self._path}): restore it") from None

    def _save(self, coordinator: str, usage: DailyUsage) -> None:
        self._usage[coordinator] = usage
        content = {"coordinators": {name: vars(usage) for name, usage in self._usage.items()}}
        make_directories(self._path.parent)
        write_atomic(self._path, to_checksummed_json(content))


def utc_date() -> str:
    return datetime.now(UTC).date().isoformat()


def directory_bytes(path: Path) -> int:
    """Return the size of all files in a directory; 0 if the directory does not exist."""
    return sum(entry.lstat().st_size for entry in path.rglob("*") if not entry.is_dir())
