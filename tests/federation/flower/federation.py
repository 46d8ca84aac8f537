"""A federation of echoes on this machine: a carrier, and sites in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmosaic_cli.federation.flower.flower_processes import marked_processes
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress
from fedmosaic_cli.federation.flower.flower_processes import MARKER_VARIABLE
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from fedmosaic_cli.machine import PARENT_PID_VARIABLE


class Federation:
    """Three sites and their carrier. Sites are kept running by nobody: a test that kills one starts it again."""

    def __init__(self, folder: Path, clients: int = 3) -> None:
        self.folder = folder
        self.clients = range(clients)
        self.papers = create_certificate_authority(folder / "papers", ["127.0.0.1", "localhost"])
        self.keys = {client: create_node_key(folder / f"site-{client}") for client in self.clients}
        self.carrier = FlowerTransport(self.keys, SuperLinkAddress(credentials=self.papers))
        self.sites: dict[str, subprocess.Popen[bytes]] = {}
        for client in self.clients:
            self.start(client)

    def start(self, client: int, key: Path | None = None, root: Path | None = None, name: str = "") -> None:
        """Start a site, in the place of one that ended."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        key = key or self.folder / f"site-{client}"
        arguments = [str(client), self.carrier.address, str(root or self.papers.ca_certificate), str(key), str(folder)]
        self.sites[name or str(client)] = start_site(*arguments)

    def diary(self, client: int, name: str = "") -> list[dict[str, Any]]:
        """What a site noted."""
        path = self.folder / name / f"site-{client}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_all(self, seconds: float = 60) -> None:
        wait(lambda: self.carrier.reachable_clients() == set(self.clients), seconds)

    def ask(
        self, word: str = "echo x", seconds: float = 60, **others: str
    ) -> dict[int, ClientResponse | ClientFailure]:
        """One round; clients named `c1=...` get another letter."""
        letters = {client: others.get(f"c{client}", word).encode() for client in self.clients}
        outcomes = list(self.carrier.send_requests(letters, seconds))
        assert sorted(outcome.client_id for outcome in outcomes) == list(self.clients)
        return {outcome.client_id: outcome for outcome in outcomes}

    def echoes(self, word: str = "echo x", **others: str) -> dict[int, ClientResponse]:
        """What all answer if nothing is wrong."""
        return {
            client: ClientResponse(client, f"{client}:{others.get(f'c{client}', word)}".encode())
            for client in self.clients
        }

    def room_of_site(self, client: int) -> Path:
        """Where a site keeps its socket: its SuperNode carries the mark."""
        site = self.sites[str(client)].pid
        for process in [grandchild for child in children(site) for grandchild in children(child)]:
            if room := mark_of(process):
                return room
        raise AssertionError("no SuperNode runs")

    def close(self) -> None:
        for site in self.sites.values():
            site.terminate()
        self.carrier.close()
        for site in self.sites.values():
            site.wait(timeout=30)


def start_site(*arguments: str) -> subprocess.Popen[bytes]:
    """A site that does not outlive the tests."""
    command = [sys.executable, "-m", "tests.federation.flower.site", *arguments]
    return subprocess.Popen(command, env={**os.environ, PARENT_PID_VARIABLE: str(os.getpid())})


def wait(condition: Callable[[], bool], seconds: float, pause: float = 0.3) -> float:
    """Wait until something is so; how long that took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, "it took too long"
        time.sleep(pause)
    return time.monotonic() - begin


def children(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def mark_of(process: int) -> Path | None:
    """The room that a process belongs to."""
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next(
        (Path(os.fsdecode(one.split(b"=")[1])) for one in variables if one.startswith(MARKER_VARIABLE.encode())), None
    )


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill(room: Path, program: str) -> None:
    """Kill one of Flower's programs in a room."""
    victims = [process for process in marked_processes(room) if program in command_of(process)]
    assert len(victims) == 1, victims
    os.kill(victims[0], signal.SIGKILL)
