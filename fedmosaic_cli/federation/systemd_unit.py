"""The systemd unit of a site: it keeps the site running, and restricts what it can do and read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.federation.privacy_ledger import ANCHOR_DIR, STATE_DIR_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN_DIRS = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
"""Directories that a unit with `ProtectHome=tmpfs` and `PrivateTmp=yes` shows as empty."""
SYSTEMD_RESTRICTIONS = """\
CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
LockPersonality=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
"""


def systemd_unit(
    python_path: str,
    site_dir: Path,
    user_id: int,
    state_dir: Path,
    readable_paths: Iterable[Path] = (),
    has_gpu: bool = False,
) -> str:
    """Return a systemd unit that runs the site as this user and restarts it whenever it ends.

    Args:
        python_path: The Python interpreter of this environment.
        site_dir: The site's directory. The site may write only here and to the anchor of its privacy ledger.
        user_id: The user of the site.
        state_dir: The directory of this user's state, which contains the anchor.
        readable_paths: What the site reads: its shard, the certificate and the Python environment. All else below
            the hidden directories, such as home directories, does not exist for the site.
        has_gpu: Whether the site may use the devices of this machine.
    """
    hidden = [path for path in dict.fromkeys(readable_paths) if any(map(path.is_relative_to, HIDDEN_DIRS))]
    bindings = "".join(f"BindReadOnlyPaths={quote_unit_path(path)}\n" for path in hidden)
    devices = "" if has_gpu else "PrivateDevices=yes\n"
    root = " --allow-root" if user_id == 0 else ""
    writable = f"{quote_unit_path(site_dir)} {quote_unit_path(state_dir / ANCHOR_DIR)}"
    return f"""\
[Unit]
Description=fedmosaic site {str(site_dir).replace("%", "%%")}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User={user_id}
ExecStart={quote_unit_path(python_path)} -m fedmosaic_cli site start --site-dir {quote_unit_path(site_dir)}{root}
Restart=always
RestartSec=15
KillMode=control-group
TimeoutStopSec=60
UMask=0077
# The coordinator controls this process: restrict what it can do and read.
ProtectSystem=strict
ProtectHome=tmpfs
PrivateTmp=yes
BindPaths={writable}
ReadWritePaths={writable}
Environment={quote_unit_path(f"{STATE_DIR_VARIABLE}={state_dir}")}
{bindings}\
{devices}\
{SYSTEMD_RESTRICTIONS}
[Install]
WantedBy=multi-user.target
"""


def quote_unit_path(path: Path | str) -> str:
    """Return a path as one word of a unit file."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"'
