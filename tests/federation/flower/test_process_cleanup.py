"""However a coordinator or a site ends, no process, open port or directory remains."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedmosaic_cli.errors import ResourceError
from fedmosaic_cli.federation.flower.flower_processes import runtime_dir_processes
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.ipc import RuntimeDir
from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress
from fedmosaic_cli.federation.transport import ClientResponse
from tests.federation.flower.federation import Federation, start_site
from tests.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.flower


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def test_a_closed_coordinator_leaves_nothing(tmp_path):
    credentials = create_certificate_authority(tmp_path / "credentials", ["127.0.0.1"])
    transport = FlowerTransport({0: create_node_key(tmp_path / "site-0")}, SuperLinkAddress(credentials=credentials))
    runtime_dir, address = transport._runtime_dir.path, transport.address
    assert len(runtime_dir_processes(runtime_dir)) >= 3
    assert runtime_dir.stat().st_mode & 0o777 == 0o700
    assert not is_free(address)
    transport.close()
    assert runtime_dir_processes(runtime_dir) == []
    assert is_free(address)
    assert not runtime_dir.exists()


def test_a_killed_coordinator_leaves_only_a_directory_for_the_next_to_remove(tmp_path):
    command = [sys.executable, "-m", "tests.federation.flower.coordinator", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        started = json.loads(coordinator.stdout.readline())
        runtime_dir = Path(started["runtime_dir"])
        assert len(runtime_dir_processes(runtime_dir)) >= 3
        coordinator.kill()
    wait_until(lambda: runtime_dir_processes(runtime_dir) == [])
    assert is_free(started["address"])
    assert runtime_dir.exists()
    RuntimeDir().close()  # removes stale directories
    assert not runtime_dir.exists()


def test_terminated_and_killed_sites_leave_nothing(tmp_path):
    federation = Federation(tmp_path, clients=2)
    try:
        federation.wait_for_all()
        runtime_dirs = [federation.site_runtime_dir(client) for client in federation.clients]
        federation.sites["0"].terminate()
        federation.sites["0"].wait(HANG_SECONDS)
        assert runtime_dir_processes(runtime_dirs[0]) == []
        assert not runtime_dirs[0].exists()
        federation.sites["1"].kill()
        federation.sites["1"].wait()
        wait_until(lambda: runtime_dir_processes(runtime_dirs[1]) == [])
        wait_until(lambda: federation.transport.reachable_clients() == set())
    finally:
        federation.close()


def test_sites_on_this_machine_work_without_keys(tmp_path):
    with FlowerTransport({0: None, 1: None}) as transport:
        sites = [start_site(str(client), transport.address, "-", "-", str(tmp_path)) for client in (0, 1)]
        try:
            requests = {0: b"echo a", 1: b"echo b"}
            responses = {one.client_id: one for one in transport.send_requests(requests, HANG_SECONDS)}
            assert responses == {0: ClientResponse(0, b"0:echo a"), 1: ClientResponse(1, b"1:echo b")}
        finally:
            for site in sites:
                site.terminate()
                site.wait(HANG_SECONDS)


def test_a_port_in_use_is_refused(tmp_path):
    credentials = create_certificate_authority(tmp_path / "credentials", ["127.0.0.1"])
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        address = SuperLinkAddress(port=occupied.getsockname()[1], credentials=credentials)
        with pytest.raises(ResourceError, match="Address already in use"):
            FlowerTransport({0: create_node_key(tmp_path / "site-0")}, address)
