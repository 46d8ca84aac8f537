"""Bytes through real Flower processes on this machine, and what becomes of them when any of these dies."""

from __future__ import annotations

import time

import pytest

from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from tests.federation.flower.federation import Federation, kill, wait

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("federation"))
    try:
        federation.wait_for_all()
        yield federation
    finally:
        federation.close()


def test_what_is_sent_arrives_and_what_is_answered_comes_back(federation):
    assert federation.ask() == federation.echoes()
    payload = bytes(range(256)) * 400
    answers = list(federation.carrier.send_requests({1: b"echo " + payload}, 60))
    assert answers == [ClientResponse(1, b"1:echo " + payload)]
    assert list(federation.carrier.send_requests({2: b""}, 60)) == [ClientResponse(2, b"2:")]


def test_who_is_late_is_lost_and_takes_part_again(federation):
    outcomes = federation.ask("echo a", seconds=12, c1="sleep-20 a")
    assert outcomes == federation.echoes("echo a") | {1: ClientFailure(1, "deadline")}
    assert federation.ask("echo b", seconds=60) == federation.echoes("echo b")


def test_a_site_that_dies_while_it_answers_is_asked_again_with_the_same_bytes(federation):
    site = federation.sites["0"]
    letters = {client: (b"die y" if client == 0 else b"echo y") for client in federation.clients}
    outcomes = {}
    for outcome in federation.carrier.send_requests(letters, 120):
        outcomes[outcome.client_id] = outcome
        if len(outcomes) == 2:
            site.wait(timeout=60)
            federation.start(0)
    assert outcomes == federation.echoes("echo y", c0="die y")


def test_a_site_that_is_killed_and_started_again_is_let_in_at_once(federation):
    federation.sites["1"].kill()
    federation.sites["1"].wait()
    federation.start(1)
    begin = time.monotonic()
    assert federation.ask("echo z", seconds=120) == federation.echoes("echo z")
    assert time.monotonic() - begin < 45


def test_a_site_that_stays_away_is_gone(federation):
    federation.sites["2"].kill()
    federation.sites["2"].wait()
    wait(lambda: 2 not in federation.carrier.reachable_clients(), 30)
    outcomes = federation.ask("echo w", seconds=15)
    assert outcomes == federation.echoes("echo w") | {2: ClientFailure(2, "gone")}
    federation.start(2)
    federation.wait_for_all()


def test_a_key_that_nobody_registered_is_refused_and_nobody_else_minds(federation):
    from fedmosaic_cli.federation.flower.keys import create_node_key

    create_node_key(federation.folder / "stranger")
    federation.start(1, key=federation.folder / "stranger", name="strange")
    wait(lambda: any(note["what"] == "refused" for note in federation.diary(1, "strange")), 40)
    assert federation.ask("echo v") == federation.echoes("echo v")
    assert not any(note["what"] in ("connected", "asked") for note in federation.diary(1, "strange"))
    federation.sites["strange"].terminate()
    federation.sites["strange"].wait(timeout=30)


def test_a_superlink_that_the_authority_does_not_vouch_for_is_not_spoken_to(federation):
    from fedmosaic_cli.federation.flower.keys import create_certificate_authority

    other = create_certificate_authority(federation.folder / "other", ["127.0.0.1"])
    federation.start(2, root=other.ca_certificate, name="deceived")
    wait(lambda: any(note["what"] == "refused" for note in federation.diary(2, "deceived")), 40)
    told = next(note["detail"] for note in federation.diary(2, "deceived") if note["what"] == "refused")
    assert "certificate" in told.lower(), told
    federation.sites["deceived"].terminate()
    federation.sites["deceived"].wait(timeout=30)


def test_a_superlink_that_is_killed_is_started_anew_and_the_round_goes_on(federation):
    outcomes = {}
    letters = {client: (b"sleep-8 s" if client else b"echo s") for client in federation.clients}
    for outcome in federation.carrier.send_requests(letters, 180):
        if not outcomes:
            kill(federation.carrier._runtime_dir.path, "flower-superlink")
        outcomes[outcome.client_id] = outcome
    assert outcomes == federation.echoes("sleep-8 s", c0="echo s")
    assert federation.ask("echo t", seconds=120) == federation.echoes("echo t")


def test_a_relay_that_is_killed_is_started_anew_and_the_round_goes_on(federation):
    outcomes = {}
    letters = {client: (b"sleep-8 r" if client else b"echo r") for client in federation.clients}
    for outcome in federation.carrier.send_requests(letters, 180):
        if not outcomes:
            kill(federation.carrier._runtime_dir.path, "flwr-serverapp")
        outcomes[outcome.client_id] = outcome
    assert outcomes == federation.echoes("sleep-8 r", c0="echo r")


def test_a_supernode_that_is_killed_is_refused_for_a_minute_and_then_let_in(federation):
    room = federation.room_of_site(1)
    kill(room, "flower-supernode")
    assert federation.ask("echo q", seconds=150) == federation.echoes("echo q")
    assert any(note["what"] == "refused" for note in federation.diary(1))
    assert federation.sites["1"].poll() is None


def test_an_app_that_is_killed_at_a_site_is_asked_again(federation):
    room = federation.room_of_site(0)
    outcomes = {}
    letters = {0: b"sleep-6 p", 1: b"echo p", 2: b"echo p"}
    for outcome in federation.carrier.send_requests(letters, 180):
        outcomes[outcome.client_id] = outcome
        if len(outcomes) == 1:
            wait(lambda: federation.diary(0)[-1]["detail"] == "sleep-6", 30)
            kill(room, "flwr-clientapp")
    assert outcomes == federation.echoes("echo p", c0="sleep-6 p")
