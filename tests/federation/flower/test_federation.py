"""Requests through real Flower processes on this machine, also while any of these processes is killed."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import psutil
import pytest

from fedmosaic_cli.federation.flower.flower_processes import runtime_dir_processes
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from tests.federation.flower.federation import Federation, kill
from tests.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("federation"))
    try:
        federation.wait_for_all()
        yield federation
    finally:
        federation.close()


def test_requests_and_responses_arrive_unchanged(federation):
    assert federation.send() == federation.echoes()
    payload = bytes(range(256)) * 400
    responses = list(federation.transport.send_requests({1: b"echo " + payload}, HANG_SECONDS))
    assert responses == [ClientResponse(1, b"1:echo " + payload)]
    assert list(federation.transport.send_requests({2: b""}, HANG_SECONDS)) == [ClientResponse(2, b"2:")]


def test_tokens_of_apps_are_not_in_the_list_of_processes(federation):
    commands: set[tuple[str, ...]] = set()
    ended = threading.Event()

    def collect() -> None:
        while not ended.is_set():
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if any(word.endswith(("flwr-clientapp", "flwr-serverapp")) for word in process.cmdline()):
                        commands.add(tuple(process.cmdline()))
            time.sleep(0.1)

    collector = threading.Thread(target=collect)
    collector.start()
    assert federation.send("sleep-2 a") == federation.echoes("sleep-2 a")
    ended.set()
    collector.join()
    assert commands
    assert all("--token" not in command and "--token-file" in command for command in commands)


def test_a_late_site_fails_one_round_and_takes_part_in_the_next(federation):
    outcomes = federation.send("echo a", seconds=12, c1="sleep-20 a")
    assert outcomes[1] == ClientFailure(1, "deadline")
    for client in (0, 2):  # on a slow machine they may be late, too
        assert outcomes[client] in (federation.echoes("echo a")[client], ClientFailure(client, "deadline"))
    assert federation.send("echo b") == federation.echoes("echo b")


def test_a_site_that_dies_while_responding_gets_the_same_request_again(federation):
    site = federation.sites["0"]
    requests = {client: (b"die y" if client == 0 else b"echo y") for client in federation.clients}
    outcomes = {}
    for outcome in federation.transport.send_requests(requests, HANG_SECONDS):
        outcomes[outcome.client_id] = outcome
        if len(outcomes) == 2:
            site.wait(HANG_SECONDS)
            federation.start(0)
    assert outcomes == federation.echoes("echo y", c0="die y")


def test_a_killed_and_restarted_site_is_not_refused(federation):
    """Its node ends with it and says so. A node that is killed is refused for a minute."""
    runtime_dir = federation.site_runtime_dir(1)
    federation.sites["1"].kill()
    federation.sites["1"].wait()
    wait_until(lambda: runtime_dir_processes(runtime_dir) == [])
    refusals = [event["kind"] for event in federation.log(1)].count("refused")
    federation.start(1)
    assert federation.send("echo z") == federation.echoes("echo z")
    assert [event["kind"] for event in federation.log(1)].count("refused") == refusals


def test_a_site_that_stays_offline_is_reported_as_gone(federation):
    federation.sites["2"].kill()
    federation.sites["2"].wait()
    wait_until(lambda: 2 not in federation.transport.reachable_clients())
    outcomes = federation.send("echo w", seconds=15)
    assert outcomes[2] == ClientFailure(2, "gone")
    for client in (0, 1):  # on a slow machine they may be late
        assert outcomes[client] in (federation.echoes("echo w")[client], ClientFailure(client, "deadline"))
    federation.start(2)
    federation.wait_for_all()


def test_an_unregistered_key_is_refused_and_others_are_unaffected(federation):
    from fedmosaic_cli.federation.flower.keys import create_node_key

    create_node_key(federation.folder / "unregistered-key")
    federation.start(1, key=federation.folder / "unregistered-key", name="unregistered")
    wait_until(lambda: any(event["kind"] == "refused" for event in federation.log(1, "unregistered")))
    assert federation.send("echo v") == federation.echoes("echo v")
    assert not any(event["kind"] in ("connected", "asked") for event in federation.log(1, "unregistered"))
    federation.sites["unregistered"].terminate()
    federation.sites["unregistered"].wait(HANG_SECONDS)


def test_a_site_refuses_a_superlink_of_another_authority(federation):
    from fedmosaic_cli.federation.flower.keys import create_certificate_authority

    other = create_certificate_authority(federation.folder / "other", ["127.0.0.1"])
    federation.start(2, root=other.ca_certificate, name="misdirected")
    wait_until(lambda: any(event["kind"] == "refused" for event in federation.log(2, "misdirected")))
    reason = next(event["detail"] for event in federation.log(2, "misdirected") if event["kind"] == "refused")
    assert "certificate" in reason.lower(), reason
    federation.sites["misdirected"].terminate()
    federation.sites["misdirected"].wait(HANG_SECONDS)


def test_a_killed_superlink_is_restarted_within_the_round(federation):
    outcomes = {}
    requests = {client: (b"sleep-8 s" if client else b"echo s") for client in federation.clients}
    for outcome in federation.transport.send_requests(requests, HANG_SECONDS):
        if not outcomes:
            kill(federation.transport._runtime_dir.path, "flower-superlink")
        outcomes[outcome.client_id] = outcome
    assert outcomes == federation.echoes("sleep-8 s", c0="echo s")
    assert federation.send("echo t") == federation.echoes("echo t")


def test_a_killed_relay_is_restarted_within_the_round(federation):
    outcomes = {}
    requests = {client: (b"sleep-8 r" if client else b"echo r") for client in federation.clients}
    for outcome in federation.transport.send_requests(requests, HANG_SECONDS):
        if not outcomes:
            kill(federation.transport._runtime_dir.path, "flwr-serverapp")
        outcomes[outcome.client_id] = outcome
    assert outcomes == federation.echoes("sleep-8 r", c0="echo r")


def test_a_killed_node_is_refused_for_a_minute_and_then_accepted(federation):
    runtime_dir = federation.site_runtime_dir(1)
    kill(runtime_dir, "node_program")
    assert federation.send("echo q") == federation.echoes("echo q")
    assert any(event["kind"] == "refused" for event in federation.log(1))
    assert federation.sites["1"].poll() is None
