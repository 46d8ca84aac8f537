"""What lies in a site's directory: its settings, its key, how it is doing, and what it keeps of each run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.schema import ConfigSection
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import read_regular_file, to_json_bytes, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS_FILE, STATUS_FILE, UNIT_FILE, RUNS_DIR = "site.json", "status.json", "fedmosaic-site.service", "runs"
MAX_SITE_JSON_BYTES = 1 << 20


class SiteSettings(ConfigSection):
    """What the people at a site have decided: where the coordinator is, what is theirs, and what may leave it."""

    shard: str
    superlink: str | None = None
    ca: str | None = None
    share: Literal["labels", "predictions", "models"] = "labels"
    max_epsilon: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True)
class SiteFiles:
    """The files of one site's directory."""

    path: Path

    def private_key_path(self, node_name: str) -> Path:
        """The private key of the site of this name; the public one has `.pub` behind it."""
        return self.path / node_name

    @property
    def unit_path(self) -> Path:
        return self.path / UNIT_FILE

    def read_settings(self) -> dict[str, Any]:
        """What `site init` was told; nothing where there was none."""
        content = self._read_json(SETTINGS_FILE)
        if not isinstance(content, dict) or not content.keys() <= SiteSettings.model_fields.keys():
            raise RequestError(f"not the settings of a site ({self.path / SETTINGS_FILE}): make them with 'site init'")
        return content

    def save_settings(self, settings: SiteSettings) -> None:
        write_atomic(self.path / SETTINGS_FILE, to_json_bytes(settings.model_dump(mode="json")))

    def read_status(self) -> dict[str, Any]:
        """How the site was doing when it last said so."""
        content = self._read_json(STATUS_FILE)
        return content if isinstance(content, dict) else {}

    def save_status(self, status: dict[str, Any]) -> None:
        write_atomic(self.path / STATUS_FILE, to_json_bytes(status))

    def list_runs(self) -> list[dict[str, Any]]:
        """The runs that the site took part in: how far each came, and whether its model is there."""
        found = []
        for plan in sorted((self.path / RUNS_DIR).glob("*/*/*/*/plan.json")):
            kept = checkpoints.list_checkpoints(plan.parent / "checkpoints")
            played = int(kept[-1].name.removeprefix(checkpoints.CHECKPOINT_PREFIX)) if kept else 0
            models = sorted((plan.parent / "models").glob("*.safetensors"))
            name = plan.parent.relative_to(self.path / RUNS_DIR).as_posix()
            found.append({"run": name, "round": played, "model": str(models[0]) if models else None})
        return found

    def _read_json(self, name: str) -> Any:
        with suppress(FileNotFoundError):
            try:
                return json.loads(read_regular_file(self.path / name, MAX_SITE_JSON_BYTES))
            except (ValueError, RecursionError):
                raise RequestError(f"not valid JSON ({self.path / name}): move it away") from None
        return {}


def systemd_unit(python_path: str, site_dir: Path, user_id: int) -> str:
    """A unit for systemd that keeps the site running as this user: whatever ends it, it is started again."""
    return f"""\
[Unit]
Description=fedmosaic site {site_dir}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User={user_id}
ExecStart="{python_path}" -m fedmosaic_cli site start --site-dir "{site_dir}"
Restart=always
RestartSec=15
KillMode=control-group
TimeoutStopSec=60
# What runs here is told what to do by the coordinator: it should be able to do little else.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ReadWritePaths="{site_dir}"

[Install]
WantedBy=multi-user.target
"""
