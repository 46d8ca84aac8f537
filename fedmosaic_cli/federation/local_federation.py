"""A federation on one machine: each site is a process, connected in the same way as a remote one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RunFailedError
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.ipc import RuntimeDir
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress
from fedmosaic_cli.federation.privacy_ledger import STATE_DIR_VARIABLE
from fedmosaic_cli.machine import PARENT_PID_VARIABLE
from fedmosaic_cli.plugin_sources import child_environment
from fedmosaic_cli.runner.prepare import load_shard_data
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import read_regular_file, remove_path
from fedmosaic_cli.storage.lock import require_unlocked
from fedmosaic_cli.storage.shards import ShardSet, client_file_name, write_shards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse, Transport

SITES_DIR = Path("sites")
LOCAL_SITE_GRACE_SECONDS = 15.0


@contextmanager
def start_local_federation(shards: ShardSet, data_dirs: DataDirs, insecure: bool, device: str) -> Iterator[Transport]:
    """Start one site per client of these shards on this machine, and yield the transport to them.

    The sites store their state in sites/<name of the shards>, where the next run finds it. All processes end with the
    context.
    """
    home = SITES_DIR / shards.path.name
    folders = {client: home / node_name(client) for client in range(len(shards.manifest["clients"]))}
    for folder in folders.values():
        require_unlocked(folder)
    exported = export_shards_copy(shards, data_dirs, home / "shards")
    with ExitStack() as stack:
        runtime_dir = RuntimeDir()
        stack.callback(runtime_dir.close)
        credentials, keys = None, dict[int, Path | None].fromkeys(folders)
        if not insecure:
            from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key

            hosts = ["localhost", "127.0.0.1"]
            credentials = create_certificate_authority(runtime_dir.path / "credentials", hosts)
            for client, folder in folders.items():
                key = folder / node_name(client)
                for old in (key, key.with_name(f"{key.name}.pub")):  # keys are not reused between commands
                    with suppress(FileNotFoundError):
                        remove_path(old)
                keys[client] = create_node_key(key)
        transport = stack.enter_context(FlowerTransport(keys, SuperLinkAddress(credentials=credentials)))
        options = ["--insecure"] if credentials is None else ["--ca", str(credentials.ca_certificate)]
        options += [
            "--superlink",
            transport.address,
            "--allow-upload",
            "models-unprotected",
            "--metrics",
            "exact-unprotected",
            "--device",
            device,
            "--quiet",
        ]
        options += ["--allow-root"] if os.getuid() == 0 else []  # the coordinator is this very process
        sites = {}
        for client, folder in folders.items():
            shard = exported / client_file_name(client)
            sites[client] = stack.enter_context(start_local_site(shard, folder, options, runtime_dir.path))
        yield MonitoredTransport(transport, sites)


def export_shards_copy(shards: ShardSet, data_dirs: DataDirs, target: Path) -> Path:
    """Return the directory of the shards with their examples, and write it if necessary."""
    if shards.has_examples:
        return shards.path
    dataset, _ = load_shard_data(shards, data_dirs)
    copy = ShardSet(target, shards.manifest, shards.partition)
    return write_shards(copy, dataset, export=True, on_progress=lambda *_: None).path


@contextmanager
def start_local_site(shard: Path, folder: Path, options: list[str], log_dir: Path) -> Iterator[LocalSite]:
    """Start a site as a process that ends with this one. Its stderr goes to a file in `log_dir`."""
    log_path = log_dir / f"{folder.name}.txt"
    handle = syscalls.create_file(log_path)
    command = [sys.executable, "-m", "fedmosaic_cli", "site", "start", "--site-dir", str(folder), "--shard", str(shard)]
    process = subprocess.Popen(
        [*command, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=handle,
        env={
            **os.environ,
            **child_environment(),
            PARENT_PID_VARIABLE: str(os.getpid()),
            # Simulated sites of several runs have the same data, and each run has its own privacy ledgers.
            STATE_DIR_VARIABLE: str(folder.absolute() / "state"),
        },
        start_new_session=True,
    )
    os.close(handle)
    try:
        yield LocalSite(process, folder, log_path)
    finally:
        process.terminate()
        try:
            process.wait(LOCAL_SITE_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class LocalSite:
    """A site process, its directory and its log file, which is removed when the federation ends."""

    process: subprocess.Popen[bytes]
    folder: Path
    log_path: Path

    def exit_reason(self) -> str:
        """Return the last line of an ended site's log, or "" while it runs."""
        if self.process.poll() is None:
            return ""
        lines = read_regular_file(self.log_path).decode(errors="replace").split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last_line.removeprefix("error: ") or f"code {self.process.returncode}"


class MonitoredTransport:
    """A transport to local site processes that fails as soon as one of them has ended."""

    def __init__(self, transport: FlowerTransport, sites: Mapping[int, LocalSite]) -> None:
        self._transport = transport
        self._sites = sites

    def reachable_clients(self) -> set[int]:
        self._require_running_sites()
        return self._transport.reachable_clients()

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        self._require_running_sites()
        return self._transport.send_requests(requests, timeout_seconds)

    def close(self) -> None:
        self._transport.close()

    def _require_running_sites(self) -> None:
        for client, site in self._sites.items():
            if reason := site.exit_reason():
                raise RunFailedError(
                    f"the site of client {client} ended, {reason} ({site.folder}): repeat the command to continue"
                )
