"""Runs in which sites fail, return or restart, and in which the coordinator does."""

from __future__ import annotations

import json
import shutil

import pytest

from fedmosaic_cli.errors import RequestError, RunFailedError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.protocol import Request
from fedmosaic_cli.federation.transport import ClientResponse
from fedmosaic_cli.runner.experiment import run_experiment
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.storage.privacy_summary import privacy_lines
from fedmosaic_cli.storage.runs import RunDirectory
from tests.federation.sites import Sites, export_shards, is_request, keep_response, make_config, rows_of_round, run


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg", "perfedckt"])
def test_a_client_may_fail_one_round_and_take_part_in_the_next(method, shards, tmp_path):
    config, sites = make_config(shards, method, tmp_path), Sites(shards, tmp_path)
    sites.change_response = lambda client, request, response: (
        None if client == 1 and is_request(request, protocol.LOCAL_ROUND, 2) else response
    )
    files = run(config, shards, tmp_path / "run", sites)
    [_, lost, _] = rows_of_round(files, 2)
    assert lost["lost"] == "deadline"
    assert (lost["bits_up"], lost["bits_down"], lost["loss_private"]) == (0, 0, None)
    assert [row["client"] for row in files.read_rounds() if "lost" in row] == [1]
    assert files.read_summary()["lost"] == {"1": 1}
    if method == "fedmosaic":
        assert lost["accuracy"] == rows_of_round(files, 1)[1]["accuracy"], "its last known evaluation"
        assert lost["message"] == "missing"
        assert lost["received"] == 2


def test_below_the_quorum_clients_get_a_retry_and_then_the_run_stops(shards, tmp_path):
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    retried = []

    def time_out(client, request, response):
        if client and is_request(request, protocol.LOCAL_ROUND, 3):
            retried.append(client)
            return None
        return response

    sites.change_response = time_out
    with pytest.raises(RunFailedError, match=r"1 of 3 clients took part in round 3, 2 are required \(--quorum\)"):
        run(config, shards, tmp_path / "run", sites)
    assert sorted(retried) == [1, 1, 2, 2]
    sites.change_response = keep_response
    remote = run(config, shards, tmp_path / "run", sites)
    local = run(config, shards, tmp_path / "local")
    assert remote.read_rounds() == local.read_rounds(), "no finished round has a failure"
    assert remote.read_summary()["models"] == local.read_summary()["models"]


def test_a_retry_reaches_slow_clients(shards, tmp_path):
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    late = {1, 2}

    def time_out_once(client, request, response):
        if client in late and is_request(request, protocol.LOCAL_ROUND, 2):
            late.discard(client)
            return None
        return response

    sites.change_response = time_out_once
    remote = run(config, shards, tmp_path / "run", sites)
    local = run(config, shards, tmp_path / "local")
    assert remote.read_rounds() == local.read_rounds()


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg", "apfl", "gated"])
def test_restarting_sites_before_every_request_changes_nothing(method, shards, tmp_path):
    config, sites = make_config(shards, method, tmp_path), Sites(shards, tmp_path)
    send_requests = sites.send_requests

    def restart_and_send(requests, timeout_seconds):
        for client in requests:
            sites.restart(client)
        return send_requests(requests, timeout_seconds)

    sites.send_requests = restart_and_send
    remote = run(config, shards, tmp_path / "run", sites)
    local = run(config, shards, tmp_path / "local")
    assert remote.read_rounds() == local.read_rounds()
    assert remote.read_summary()["models"] == local.read_summary()["models"]


class CoordinatorKilledError(BaseException):
    """Stands for the death of the coordinator."""


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg"])
@pytest.mark.parametrize("kind", [protocol.LOCAL_ROUND, protocol.EVALUATE, "finish"])
def test_a_killed_coordinator_resumes_and_sites_repeat_their_responses(method, kind, shards, tmp_path):
    if kind == protocol.EVALUATE and method == "fedmosaic":
        pytest.skip("its clients evaluate in their local rounds")
    noise = ("privacy.labels=krr", "privacy.epsilon=50") if method == "fedmosaic" else ()
    config, sites = make_config(shards, method, tmp_path, *noise), Sites(shards, tmp_path)
    number = 4 if kind == "finish" else 3

    def kill_coordinator(client, request, response):
        if is_request(request, kind, number):
            received.append((client, response))
            if len(received) == 2:
                raise CoordinatorKilledError
        return response

    received = []
    sites.change_response = kill_coordinator
    with pytest.raises(CoordinatorKilledError):
        run(config, shards, tmp_path / "run", sites)
    before, sites.exchanges = dict(received), []
    sites.change_response = keep_response
    files = run(config, shards, tmp_path / "run", sites)
    again = {client: response for client, request, response in sites.exchanges if is_request(request, kind, number)}
    assert {client: again[client] for client in before} == before, "the same bytes: noise is drawn once"
    assert [row["round"] for row in files.read_rounds()] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    if method == "fedavg":
        assert files.read_rounds() == run(config, shards, tmp_path / "local").read_rounds()
    else:
        ledger = files.read_summary()["privacy"]["ledger"]
        assert sorted(entry["rounds"] for entry in ledger) == [1, 4], "a histogram once, labels in every round"


def test_a_site_without_cached_parts_receives_them_again(shards, tmp_path):
    """The evaluation already sends the next round's broadcast, which the next request names by its digest."""
    config, sites = make_config(shards, "fedavg", tmp_path), Sites(shards, tmp_path)
    run(config, shards, tmp_path / "run", sites)
    sizes = [len(request) for _, request, _ in sites.exchanges if is_request(request, protocol.LOCAL_ROUND, 3)]
    assert max(sizes) < 300
    forgetful = Sites(shards, tmp_path / "other")
    send_requests = forgetful.send_requests

    def clear_cache_and_send(requests, timeout_seconds):
        forgetful.sites[0]._cached_parts = None
        return send_requests(requests, timeout_seconds)

    forgetful.send_requests = clear_cache_and_send
    files = run(config, shards, tmp_path / "again", forgetful)
    assert files.read_rounds() == run(config, shards, tmp_path / "local").read_rounds()
    sizes = {
        client: len(request)
        for client, request, _ in forgetful.exchanges
        if is_request(request, protocol.LOCAL_ROUND, 3)
    }
    assert sizes[0] > 10_000
    assert sizes[1] < 300


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg"])
@pytest.mark.parametrize("what", ["checkpoints", "everything"])
def test_a_site_that_lost_its_state_does_not_silently_start_again(what, method, shards, tmp_path):
    config, sites = make_config(shards, method, tmp_path), Sites(shards, tmp_path)

    def lose_state(client, request, response):
        if client == 1 and is_request(request, protocol.LOCAL_ROUND, 2):
            [plan] = (tmp_path / "site-1").rglob("plan.json")
            shutil.rmtree(plan.parent if what == "everything" else plan.parent / "checkpoints")
            sites.restart(1)
        return response

    expected = "has not joined the run" if what == "everything" else "last stored round is 0, but it answered round 2"
    sites.change_response = lose_state
    with pytest.raises(
        RunFailedError, match=rf"2 of 3 clients took part in round 3, .* client 1: refused: .*{expected}"
    ):
        run(config, shards, tmp_path / "run", sites, quorum=3)
    sites.change_response = keep_response
    with pytest.raises(
        RunStateError, match=r"client 1 has answered in round 2, and its site remembers round 0: restore"
    ):
        run(config, shards, tmp_path / "run", sites, quorum=3)
    files = run(config, shards, tmp_path / "run", sites)
    lost = [(row["client"], row["round"]) for row in files.read_rounds() if "lost" in row]
    assert lost == [(1, 3), (1, 4)], "the others go on"
    assert "client-001.safetensors" not in files.read_summary()["models"]


def test_a_run_does_not_start_before_a_quorum_of_clients_joined(shards, tmp_path):
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.reachable_clients = lambda: {0, 2}
    with pytest.raises(
        RunFailedError, match=r"2 of 3 clients joined within 5 s \(--join-timeout\), client 1: start their"
    ):
        run(config, shards, tmp_path / "run", sites, quorum=3)
    files = run(config, shards, tmp_path / "run", sites)
    assert files.read_summary()["unreported"] == [1]


def test_waiting_for_sites_can_be_stopped(shards, tmp_path):
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteCoordinator
    from fedmosaic_cli.runner.events import RunStopped, WaitingForClients
    from fedmosaic_cli.storage.runs import RunDirectory

    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.reachable_clients = set
    (tmp_path / "run").mkdir()
    seen = []
    run_options = RunOptions(
        device="cpu",
        remote=RemoteCoordinator("test", sites.opened),
        should_stop=lambda: WaitingForClients({0, 1, 2}) in seen,
    )
    for event in run_experiment(config, shards, RunDirectory(tmp_path / "run"), DataDirs(tmp_path), run_options):
        seen.append(event)
    assert seen[-1] == RunStopped(0)


def test_noise_at_sites_is_not_seeded(shards, tmp_path):
    config = make_config(shards, "fedct", tmp_path, "privacy.labels=krr", "privacy.epsilon=50")
    files, responses = [], []
    for name in ("one", "two"):
        sites = Sites(shards, tmp_path / name)
        files.append(run(config, shards, tmp_path / f"run-{name}", sites))
        responses.append(
            [response for _, request, response in sites.exchanges if is_request(request, protocol.LOCAL_ROUND, 1)]
        )
    assert files[0].read_summary()["privacy"]["noise"] == "system"
    assert "without noise: the accuracies and losses" in privacy_lines(files[0].read_summary()["privacy"])[-1]
    assert all(one != two for one, two in zip(*responses, strict=True))
    local = run(config, shards, tmp_path / "local").read_summary()["privacy"]
    assert local["noise"] == "seeded"
    assert local["total_epsilon"] == files[0].read_summary()["privacy"]["total_epsilon"]


@pytest.mark.parametrize("first", ["local", "remote"])
def test_a_run_is_not_resumed_with_the_other_engine(first, shards, tmp_path):
    short, long = (make_config(shards, "fedmosaic", tmp_path, f"train.rounds={n}") for n in (2, 4))
    sites = Sites(shards, tmp_path)
    run(short, shards, tmp_path / "run", sites if first == "remote" else None)
    with pytest.raises(RequestError, match=r"continue it with --engine (local|flower)"):
        run(long, shards, tmp_path / "run", None if first == "remote" else sites)


def test_a_run_at_sites_can_be_extended(shards, tmp_path):
    short, long = (make_config(shards, "fedmosaic", tmp_path, f"train.rounds={n}") for n in (2, 4))
    sites = Sites(shards, tmp_path)
    run(short, shards, tmp_path / "run", sites)
    assert (
        run(long, shards, tmp_path / "run", sites).read_rounds() == run(long, shards, tmp_path / "local").read_rounds()
    )


def test_a_new_run_does_not_use_the_sites_state_of_an_old_one(shards, tmp_path):
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    first = run(config, shards, tmp_path / "first", sites)
    second = run(config, shards, tmp_path / "second", sites)
    assert first.read_rounds() == second.read_rounds()
    tokens = {json.loads((files.path / "env.json").read_text())["federation"]["token"] for files in (first, second)}
    assert len(tokens) == 2


def test_a_diverging_client_stops_the_run(shards, tmp_path):
    config, sites = make_config(shards, "fedmosaic", tmp_path, "train.lr=1e30"), Sites(shards, tmp_path)
    with pytest.raises(RunFailedError, match=r"client \d diverged in round 1 of fedmosaic-frequency, seed 0"):
        run(config, shards, tmp_path / "run", sites)


def test_a_crash_at_a_site_is_reported_and_fails_the_round(shards, tmp_path, monkeypatch):
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    run_local_round = sites.sites[1]._handle_local_round

    def crash_in_round_2(request):
        if request.header["round"] == 2:
            raise ZeroDivisionError("unexpected")
        return run_local_round(request)

    monkeypatch.setattr(sites.sites[1], "_handle_local_round", crash_in_round_2)
    files = run(config, shards, tmp_path / "run", sites)
    assert rows_of_round(files, 2)[1]["lost"] == "failed: ZeroDivisionError at the site"
    assert "unexpected" in (tmp_path / "site-1" / "crash.txt").read_text()


def test_a_nan_loss_at_a_site_is_a_divergence(shards, tmp_path, monkeypatch):
    from fedmosaic_cli.engine.client_pool import EvalResult
    from fedmosaic_cli.federation import site

    def evaluate(method, client, task, server):
        return EvalResult(task.client_id, task.owner_id, 0.5, float("nan") if client.round == 2 else 1.0, {})

    monkeypatch.setattr(site, "evaluate_client", evaluate)
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    with pytest.raises(RunFailedError, match=r"diverged in round 2 .* its loss on test examples is not finite"):
        run(config, shards, tmp_path / "run", sites)


def test_a_client_that_never_responds_does_not_extend_the_deadline(shards, tmp_path, monkeypatch):
    from fedmosaic_cli.federation import remote_pool

    clock = [0.0]
    monkeypatch.setattr(remote_pool.time, "monotonic", lambda: clock[0])
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    send_requests, timeouts = sites.send_requests, []

    def advance_clock(requests, timeout_seconds):
        outcomes = list(send_requests(requests, timeout_seconds))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.client_id):  # the last one times out
            clock[0] += 10.0 if isinstance(outcome, ClientResponse) else timeout_seconds
            yield outcome
        timeouts.append(timeout_seconds)

    sites.send_requests = advance_clock
    sites.change_response = lambda client, request, response: (
        None if client == 2 and Request.decode(request).kind == protocol.LOCAL_ROUND else response
    )
    run(config, shards, tmp_path / "run", sites, quorum=2)
    assert timeouts[1:5] == [3600, 90, 90, 90], "the first is that of joining"


def test_events_name_failed_clients(shards, tmp_path):
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteCoordinator
    from fedmosaic_cli.runner.events import RoundCompleted

    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.change_response = lambda client, request, response: (
        None if client == 2 and is_request(request, protocol.LOCAL_ROUND, 1) else response
    )
    (tmp_path / "run").mkdir()
    run_options = RunOptions(device="cpu", remote=RemoteCoordinator("test", sites.opened))
    events = run_experiment(config, shards, RunDirectory(tmp_path / "run"), DataDirs(tmp_path), run_options)
    assert [event.failed_clients for event in events if isinstance(event, RoundCompleted)] == [
        {2: "deadline"},
        {},
        {},
        {},
    ]
