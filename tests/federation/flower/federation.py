"""A federation of echo sites on this machine: a transport, and sites in their own processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from fedmosaic_cli.federation.flower.flower_processes import RUNTIME_DIR_VARIABLE, runtime_dir_processes
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from fedmosaic_cli.machine import PARENT_PID_VARIABLE
from tests.waiting import HANG_SECONDS, wait_until


class Federation:
    """Sites and their transport. A test that kills a site starts it again."""

    def __init__(self, folder: Path, clients: int = 3) -> None:
        self.folder = folder
        self.clients = range(clients)
        self.credentials = create_certificate_authority(folder / "credentials", ["127.0.0.1", "localhost"])
        self.keys = {client: create_node_key(folder / f"site-{client}") for client in self.clients}
        self.transport = FlowerTransport(self.keys, SuperLinkAddress(credentials=self.credentials))
        self.sites: dict[str, subprocess.Popen[bytes]] = {}
        for client in self.clients:
            self.start(client)

    def start(self, client: int, key: Path | None = None, root: Path | None = None, name: str = "") -> None:
        """Start a site, also in place of one that ended."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        key, root = key or self.folder / f"site-{client}", root or self.credentials.ca_certificate
        arguments = [str(client), self.transport.address, str(root), str(key), str(folder)]
        self.sites[name or str(client)] = start_site(*arguments)

    def log(self, client: int, name: str = "") -> list[dict[str, Any]]:
        """Return a site's log."""
        path = self.folder / name / f"site-{client}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_all(self) -> None:
        wait_until(lambda: self.transport.reachable_clients() == set(self.clients))

    def send(
        self, text: str = "echo x", seconds: float = HANG_SECONDS, **others: str
    ) -> dict[int, ClientResponse | ClientFailure]:
        """Send one request per client; clients named `c1=...` get another text."""
        requests = {client: others.get(f"c{client}", text).encode() for client in self.clients}
        outcomes = list(self.transport.send_requests(requests, seconds))
        assert sorted(outcome.client_id for outcome in outcomes) == list(self.clients)
        return {outcome.client_id: outcome for outcome in outcomes}

    def echoes(self, text: str = "echo x", **others: str) -> dict[int, ClientResponse]:
        """Return the responses of all sites if nothing fails."""
        return {
            client: ClientResponse(client, f"{client}:{others.get(f'c{client}', text)}".encode())
            for client in self.clients
        }

    def site_runtime_dir(self, client: int) -> Path:
        """Return a site's runtime directory, which the environment of its node contains."""
        for process in psutil.Process(self.sites[str(client)].pid).children(recursive=True):
            if runtime_dir := process.environ().get(RUNTIME_DIR_VARIABLE):
                return Path(runtime_dir)
        raise AssertionError("no node runs")

    def close(self) -> None:
        for site in self.sites.values():
            site.terminate()
        self.transport.close()
        for site in self.sites.values():
            site.wait(HANG_SECONDS)


def start_site(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a site that ends with the tests."""
    command = [sys.executable, "-m", "tests.federation.flower.site", *arguments]
    return subprocess.Popen(command, env={**os.environ, PARENT_PID_VARIABLE: str(os.getpid())})


def kill(runtime_dir: Path, program: str) -> None:
    """Kill one of Flower's programs of a runtime directory."""
    [process] = [process for process in runtime_dir_processes(runtime_dir) if program in " ".join(process.cmdline())]
    process.kill()
