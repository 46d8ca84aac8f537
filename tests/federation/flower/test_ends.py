"""However a coordinator or a site ends: no process is left, no port is taken, and nothing lies about."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedmosaic_cli.errors import ResourceError
from fedmosaic_cli.federation.flower.flower_processes import marked_processes
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
from fedmosaic_cli.federation.flower.ipc import RuntimeDir
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress
from fedmosaic_cli.federation.transport import ClientResponse
from tests.federation.flower.federation import Federation, start_site, wait

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


def test_a_coordinator_that_closes_leaves_nothing(tmp_path):
    papers = create_certificate_authority(tmp_path / "papers", ["127.0.0.1"])
    carrier = FlowerTransport({0: create_node_key(tmp_path / "site-0")}, SuperLinkAddress(credentials=papers))
    room, address = carrier._runtime_dir.path, carrier.address
    assert len(marked_processes(room)) >= 3
    assert room.stat().st_mode & 0o777 == 0o700
    assert not is_free(address)
    carrier.close()
    assert marked_processes(room) == []
    assert is_free(address)
    assert not room.exists()


def test_a_coordinator_that_is_killed_leaves_nothing_either(tmp_path):
    command = [sys.executable, "-m", "tests.federation.flower.coordinator", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        told = json.loads(coordinator.stdout.readline())
        room = Path(told["room"])
        assert len(marked_processes(room)) >= 3
        coordinator.kill()
    wait(lambda: marked_processes(room) == [], 20, pause=0.05)
    assert is_free(told["address"])
    assert room.exists()
    RuntimeDir().close()  # whoever comes next clears up
    assert not room.exists()


def test_sites_that_end_leave_nothing_and_those_that_are_killed_neither(tmp_path):
    federation = Federation(tmp_path, clients=2)
    try:
        federation.wait_for_all()
        rooms = [federation.room_of_site(client) for client in federation.clients]
        federation.sites["0"].terminate()
        federation.sites["0"].wait(timeout=20)
        assert marked_processes(rooms[0]) == []
        assert not rooms[0].exists()
        federation.sites["1"].kill()
        federation.sites["1"].wait()
        wait(lambda: marked_processes(rooms[1]) == [], 20, pause=0.05)
        wait(lambda: federation.carrier.reachable_clients() == set(), 20)
    finally:
        federation.close()


def test_a_rehearsal_without_keys(tmp_path):
    with FlowerTransport({0: None, 1: None}) as carrier:
        sites = [start_site(str(client), carrier.address, "-", "-", str(tmp_path)) for client in (0, 1)]
        try:
            answers = {answer.client_id: answer for answer in carrier.send_requests({0: b"echo a", 1: b"echo b"}, 90)}
            assert answers == {0: ClientResponse(0, b"0:echo a"), 1: ClientResponse(1, b"1:echo b")}
        finally:
            for site in sites:
                site.terminate()
                site.wait(timeout=20)


def test_a_port_that_is_taken(tmp_path):
    papers = create_certificate_authority(tmp_path / "papers", ["127.0.0.1"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = SuperLinkAddress(port=taken.getsockname()[1], credentials=papers)
        with pytest.raises(ResourceError, match="Address already in use"):
            FlowerTransport({0: create_node_key(tmp_path / "site-0")}, place)
