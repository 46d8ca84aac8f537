"""A federation on one machine: its sites are processes of their own, and everything between them is as it would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RunFailedError
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.machine import PARENT_PID_VARIABLE
from fedmosaic_cli.runner.prepare import load_shard_data
from fedmosaic_cli.storage import shards as records
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import read_regular_file, remove_path
from fedmosaic_cli.storage.lock import require_unlocked
from fedmosaic_cli.storage.shards import ShardSet, client_file_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
    from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse, Transport

LOCAL_SITE_GRACE_SECONDS = 15.0


@contextmanager
def start_local_federation(shards: ShardSet, data_dirs: DataDirs, insecure: bool, device: str) -> Iterator[Transport]:
    """A way to sites on this machine, one for each client of these shards; all of them end with it.

    What the sites remember lies in sites/<name of the shards>, so that the next run finds it.
    """
    from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
    from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
    from fedmosaic_cli.federation.flower.ipc import RuntimeDir
    from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress as Address

    home = Path("sites") / shards.path.name
    clients = range(len(shards.manifest["clients"]))
    folders = {client: home / node_name(client) for client in clients}
    for folder in folders.values():
        require_unlocked(folder)
    exported = export_shards_copy(shards, data_dirs, home / "shards")
    with ExitStack() as stack:
        room = RuntimeDir()
        stack.callback(room.close)
        papers = None if insecure else create_certificate_authority(room.path / "papers", ["localhost", "127.0.0.1"])
        keys: dict[int, Path | None] = dict.fromkeys(clients)
        if not insecure:
            for client, folder in folders.items():
                key = folder / node_name(client)
                for old in (key, key.with_name(f"{key.name}.pub")):  # a rehearsal trusts nothing of the last one
                    with suppress(FileNotFoundError):
                        remove_path(old)
                keys[client] = create_node_key(key)
        carrier = stack.enter_context(FlowerTransport(keys, Address(credentials=papers)))
        options = ["--insecure"] if papers is None else ["--ca", str(papers.ca_certificate)]
        options += ["--superlink", carrier.address, "--share", "models", "--device", device, "--quiet"]
        sites = {
            client: stack.enter_context(
                start_local_site(exported / client_file_name(client), folder, options, room.path)
            )
            for client, folder in folders.items()
        }
        yield MonitoredTransport(carrier, sites)


def export_shards_copy(shards: ShardSet, data_dirs: DataDirs, target: Path) -> Path:
    """The shards with their examples, as sites have them."""
    if shards.has_examples:
        return shards.path
    dataset, _ = load_shard_data(shards, data_dirs)
    copy = ShardSet(target, shards.manifest, shards.partition)
    return records.write_shards(copy, dataset, lambda _: {}, export=True, on_progress=lambda *_: None).path


@contextmanager
def start_local_site(shard: Path, folder: Path, options: list[str], log_dir: Path) -> Iterator[LocalSite]:
    """A site in a process of its own, which ends with ours, however ours ends. What it says is kept in the room."""
    said = log_dir / f"{folder.name}.txt"
    handle = syscalls.create_file(said)
    command = [sys.executable, "-m", "fedmosaic_cli", "site", "start", "--site-dir", str(folder), "--shard", str(shard)]
    process = subprocess.Popen(
        [*command, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=handle,
        env={**os.environ, PARENT_PID_VARIABLE: str(os.getpid())},
        start_new_session=True,
    )
    os.close(handle)
    try:
        yield LocalSite(process, said)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(LOCAL_SITE_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class LocalSite:
    """A site of a rehearsal, and where it says what."""

    process: subprocess.Popen[bytes]
    log_path: Path

    def exit_reason(self) -> str:
        """Why it ended; "" as long as it has not."""
        if self.process.poll() is None:
            return ""
        lines = [
            line for line in read_regular_file(self.log_path).decode(errors="replace").splitlines() if line.strip()
        ]
        return lines[-1].removeprefix("error: ") if lines else f"code {self.process.returncode}"


class MonitoredTransport:
    """A carrier whose sites are processes of ours: one that has ended will not answer any more."""

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
            if words := site.exit_reason():
                raise RunFailedError(f"the site of client {client} ended, {words}")
