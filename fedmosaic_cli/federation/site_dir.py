"""A site's directory: its settings, key, status and log, and what it stores of each run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedmosaic_cli.engine.messages import UploadLevel
from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import MetricsLevel, SitePolicy
from fedmosaic_cli.federation.privacy_ledger import LEDGER_FILE, read_spent_budget
from fedmosaic_cli.federation.usage_limits import (
    GIGABYTE,
    USAGE_FILE,
    DailyUsage,
    UsageLimits,
    UsageRecord,
    directory_bytes,
)
from fedmosaic_cli.labels.privacy.accounting import to_json_number
from fedmosaic_cli.schema import ConfigSection
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import read_regular_file, to_json_bytes, write_atomic
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fedmosaic_cli.federation.flower.site_node import ConnectionEvent
    from fedmosaic_cli.federation.site import HandledRequest

SETTINGS_FILE, STATUS_FILE, UNIT_FILE = "site.json", "status.json", "fedmosaic-site.service"
RUNS_DIR, PLAN_FILE = "runs", "plan.json"
MAX_SITE_JSON_BYTES = 1 << 20


class SiteSettings(ConfigSection):
    """The settings of a site, as `site init` writes them.

    Attributes:
        shard, superlink, ca: The site's data, the coordinator's address, and the certificate of its authority.
        share: What the site may upload.
        max_epsilon, delta, metrics, min_batch_size, min_examples, min_lr: See `federation.policy.SitePolicy`.
        max_runs_per_day, max_steps_per_day, max_hours_per_day, max_disk_gb, max_weights: See
            `federation.usage_limits.UsageLimits`.
    """

    shard: str
    superlink: str | None = None
    ca: str | None = None
    share: UploadLevel = "labels"
    max_epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    metrics: MetricsLevel = "rounded"
    min_batch_size: Annotated[int, Field(ge=1)] = 8
    min_examples: Annotated[int, Field(ge=1)] = 20
    min_lr: Annotated[float, Field(ge=0)] = 1e-6
    max_runs_per_day: Annotated[int, Field(ge=1)] = 20
    max_steps_per_day: Annotated[int, Field(ge=1)] = 1_000_000
    max_hours_per_day: Annotated[float, Field(gt=0, le=24)] = 24.0
    max_disk_gb: Annotated[float, Field(gt=0)] = 20.0
    max_weights: Annotated[int, Field(ge=1)] = 500_000_000

    @property
    def policy(self) -> SitePolicy:
        names = ("max_epsilon", "delta", "metrics", "min_batch_size", "min_examples", "min_lr")
        return SitePolicy(self.share, **{name: getattr(self, name) for name in names})

    @property
    def limits(self) -> UsageLimits:
        return UsageLimits(
            self.max_runs_per_day, self.max_steps_per_day, self.max_hours_per_day, self.max_disk_gb, self.max_weights
        )


@dataclass(frozen=True)
class SiteFiles:
    """The files of a site's directory."""

    path: Path

    def private_key_path(self, node_name: str) -> Path:
        """Return the path of the site's private key. The public key has the suffix `.pub`."""
        return self.path / node_name

    @property
    def unit_path(self) -> Path:
        return self.path / UNIT_FILE

    def read_settings(self) -> dict[str, Any]:
        """Return the stored settings, or {} if there are none."""
        content = self._read_json(SETTINGS_FILE)
        if not isinstance(content, dict) or not content.keys() <= SiteSettings.model_fields.keys():
            raise RequestError(f"not the settings of a site ({self.path / SETTINGS_FILE}): run 'fedmosaic site init'")
        return content

    @private_files()
    def save_settings(self, settings: SiteSettings) -> None:
        write_atomic(self.path / SETTINGS_FILE, to_json_bytes(settings.model_dump(mode="json")))

    def read_status(self) -> dict[str, Any]:
        """Return the last status that the running site wrote."""
        content = self._read_json(STATUS_FILE)
        return content if isinstance(content, dict) else {}

    @private_files()
    def save_status(self, status: dict[str, Any]) -> None:
        write_atomic(self.path / STATUS_FILE, to_json_bytes(status))

    def list_runs(self) -> list[dict[str, Any]]:
        """Return name, last round and final model of each run that the site took part in."""
        runs = []
        for plan in sorted((self.path / RUNS_DIR).glob(f"*/*/*/*/{PLAN_FILE}")):
            stored = checkpoints.list_checkpoints(plan.parent / "checkpoints")
            last_round = int(stored[-1].name.removeprefix(checkpoints.CHECKPOINT_PREFIX)) if stored else 0
            models = sorted((plan.parent / "models").glob("*.safetensors"))
            name = plan.parent.relative_to(self.path / RUNS_DIR).as_posix()
            runs.append({"run": name, "round": last_round, "model": str(models[0]) if models else None})
        return runs

    def read_usage(self, settings: SiteSettings) -> dict[str, Any]:
        """Return today's use of each coordinator, with the configured one, and the disk space of all runs.

        Nothing is written.
        """
        usage = UsageRecord(self.path / USAGE_FILE, settings.limits).usage_today()
        if settings.superlink or not usage:
            usage.setdefault(settings.superlink or "", DailyUsage())
        return {
            "today": {
                name: {"runs": used.runs, "steps": used.steps, "hours": used.seconds / 3600}
                for name, used in usage.items()
            },
            "disk_gb": directory_bytes(self.path / RUNS_DIR) / GIGABYTE,
        }

    def read_privacy(self, settings: SiteSettings) -> dict[str, Any]:
        """Return the total epsilon of all releases, as in the privacy ledger, and its limit. Nothing is written.

        Runs that sent values without noise are counted separately: they have no epsilon.
        """
        spent = read_spent_budget(self.path / LEDGER_FILE, settings.delta)
        return {
            "epsilon": to_json_number(spent.epsilon),
            "max_epsilon": settings.max_epsilon,
            "delta": settings.delta,
            "releases": spent.num_releases,
            "runs_without_noise": UsageRecord(self.path / USAGE_FILE, settings.limits).num_runs_without_noise,
        }

    def _read_json(self, name: str) -> Any:
        with suppress(FileNotFoundError):
            try:
                return json.loads(read_regular_file(self.path / name, MAX_SITE_JSON_BYTES))
            except (ValueError, RecursionError):
                raise RequestError(f"not valid JSON ({self.path / name}): move it away") from None
        return {}


class SiteLog:
    """Logs a running site: one line per event, and the last ones in its status file.

    Two threads call it: the one that keeps the connection, and the one that handles requests.
    """

    def __init__(self, files: SiteFiles, print_line: Callable[[str], None]) -> None:
        self._files = files
        self.print_line = print_line
        self._status: dict[str, Any] = {}
        self._lock = Lock()

    def on_start(self, settings: SiteSettings) -> None:
        """Record the settings of this start. They are those of `site.json`, or of options of `site start`."""
        self._update_status(settings=settings.model_dump(mode="json"))

    def on_connection_event(self, event: ConnectionEvent) -> None:
        """Log a connection event. A lost response does not change the state of the connection."""
        text = f"{event.kind}{f', {event.detail}' if event.detail else ''}"
        if event.kind != "response_lost":
            self._update_status(connection=text, since=utc_timestamp())
        self.print_line(f"connection: {text}")

    def on_request(self, request: HandledRequest) -> None:
        """Log a handled request."""
        title = protocol.KIND_TITLES.get(request.kind, request.kind)
        what = f"{title}{'' if request.round is None else f' {request.round}'} of {request.run_id or 'no run'}"
        problem = f"  failed: {request.error}" if request.error else ""
        line = f"{what}  {request.duration_seconds:.2f} s  {request.response_bytes} bytes{problem}"
        self._update_status(last=f"{utc_timestamp()} {line}")
        self.print_line(line)

    def on_stop(self) -> None:
        self._update_status(connection="stopped", since=utc_timestamp())

    def _update_status(self, **values: Any) -> None:
        """Write the status. A full disk must not keep the site from responding."""
        with self._lock:
            self._status |= values
            with suppress(OSError, ResourceError):
                self._files.save_status(self._status)


def utc_timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
