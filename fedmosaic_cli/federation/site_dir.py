"""What lies in a site's directory: its settings, its key, how it is doing, and what it keeps of each run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.schema import Section
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import read_file, to_json, write

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS, STATUS, UNIT, RUNS = "site.json", "status.json", "fedmosaic-site.service", "runs"
LARGEST = 1 << 20


class SiteSettings(Section):
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

    def key(self, name: str) -> Path:
        """The private key of the site of this name; the public one has `.pub` behind it."""
        return self.path / name

    @property
    def unit(self) -> Path:
        return self.path / UNIT

    def settings(self) -> dict[str, Any]:
        """What `site init` was told; nothing where there was none."""
        content = self._json(SETTINGS)
        if not isinstance(content, dict) or not content.keys() <= SiteSettings.model_fields.keys():
            raise RequestError(f"not the settings of a site ({self.path / SETTINGS}): make them with 'site init'")
        return content

    def save_settings(self, settings: SiteSettings) -> None:
        write(self.path / SETTINGS, to_json(settings.model_dump(mode="json")))

    def status(self) -> dict[str, Any]:
        """How the site was doing when it last said so."""
        content = self._json(STATUS)
        return content if isinstance(content, dict) else {}

    def save_status(self, status: dict[str, Any]) -> None:
        write(self.path / STATUS, to_json(status))

    def runs(self) -> list[dict[str, Any]]:
        """The runs that the site took part in: how far each came, and whether its model is there."""
        found = []
        for plan in sorted((self.path / RUNS).glob("*/*/*/*/plan.json")):
            kept = checkpoints.all_in(plan.parent / "checkpoints")
            played = int(kept[-1].name.removeprefix(checkpoints.PREFIX)) if kept else 0
            models = sorted((plan.parent / "models").glob("*.safetensors"))
            name = plan.parent.relative_to(self.path / RUNS).as_posix()
            found.append({"run": name, "round": played, "model": str(models[0]) if models else None})
        return found

    def _json(self, name: str) -> Any:
        with suppress(FileNotFoundError):
            try:
                return json.loads(read_file(self.path / name, LARGEST))
            except (ValueError, RecursionError):
                raise RequestError(f"not valid JSON ({self.path / name}): move it away") from None
        return {}


def unit_text(python: str, site: Path, user: int) -> str:
    """A unit for systemd that keeps the site running as this user: whatever ends it, it is started again."""
    return f"""\
[Unit]
Description=fedmosaic site {site}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
ExecStart="{python}" -m fedmosaic_cli site start --site-dir "{site}"
Restart=always
RestartSec=15
KillMode=control-group
TimeoutStopSec=60
# What runs here is told what to do by the coordinator: it should be able to do little else.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ReadWritePaths="{site}"

[Install]
WantedBy=multi-user.target
"""
