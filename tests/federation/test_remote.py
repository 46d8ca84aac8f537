"""A run with clients at sites equals the run with clients in one process, bit by bit."""

from __future__ import annotations

import pytest

from fedmosaic_cli.errors import DivergenceError, RunFailedError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.protocol import FINALIZE, Request, Response
from fedmosaic_cli.federation.transport import ClientFailure
from fedmosaic_cli.methods.fedavgft import FedAvgFT
from fedmosaic_cli.methods.registry import METHODS
from tests.federation.sites import Sites, export_shards, keep_response, make_config, run

SIMULATED_ONLY = {name for name, m in METHODS.items() if m().needs.pooled_data or m().needs.public_labels}
FEDERATED_METHODS = [name for name in METHODS if name not in SIMULATED_ONLY]
WITH_STATE = ["fedavgft", "fedrep", "scaffold", "fedproto", "fedfomo", "pfedhn", "feddf", "dpsgd"]


@pytest.fixture(scope="module")
def all_shards(tmp_path_factory):
    """Return shards without and with validation data."""
    return {
        needed: export_shards(tmp_path_factory.mktemp("shards"), val_fraction=0.2 if needed else 0.0)
        for needed in (False, True)
    }


def prepare(method, all_shards, folder, *assignments):
    """Return shards and configuration that a method supports."""
    needs = METHODS[method]().needs
    sgd = ("train.optimizer=sgd", "train.lr=0.1") if needs.plain_sgd else ()
    shards = all_shards[needs.validation]
    return shards, make_config(shards, method, folder, *sgd, *assignments)


def assert_equal_runs(remote, local):
    assert (remote.path / "rounds.jsonl").read_bytes() == (local.path / "rounds.jsonl").read_bytes()
    local_summary, remote_summary = local.read_summary(), remote.read_summary()
    assert remote_summary["models"] == local_summary["models"]
    assert remote_summary.pop("lost") == {}
    assert remote_summary.pop("federation") == {"engine": "test", "sites": 3, "models": "at the sites"}
    assert remote_summary == local_summary


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("method", FEDERATED_METHODS)
def test_a_run_with_sites_equals_the_local_run(method, all_shards, tmp_path):
    shards, config = prepare(method, all_shards, tmp_path)
    local = run(config, shards, tmp_path / "local")
    remote = run(config, shards, tmp_path / "remote", Sites(shards, tmp_path))
    assert_equal_runs(remote, local)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("method", FEDERATED_METHODS)
def test_a_run_with_sampled_clients_at_sites_equals_the_local_run(method, all_shards, tmp_path):
    shards, config = prepare(method, all_shards, tmp_path, "train.clients_per_round=2")
    local = run(config, shards, tmp_path / "local")
    remote = run(config, shards, tmp_path / "remote", Sites(shards, tmp_path))
    assert_equal_runs(remote, local)


class RestartingSites(Sites):
    """Sites that restart before every request: only their disks remain."""

    def send_requests(self, requests, timeout_seconds):
        for client in requests:
            self.restart(client)
        return super().send_requests(requests, timeout_seconds)


@pytest.mark.parametrize("method", WITH_STATE)
def test_sites_that_restart_between_rounds_change_nothing(method, all_shards, tmp_path):
    shards, config = prepare(method, all_shards, tmp_path)
    remote = run(config, shards, tmp_path / "remote", RestartingSites(shards, tmp_path))
    assert_equal_runs(remote, run(config, shards, tmp_path / "local"))


class RepeatedRequests(Sites):
    """Sites that receive every request to finalize twice, the second time after a restart."""

    def send_requests(self, requests, timeout_seconds):
        for client, request in requests.items():
            if Request.decode(request).kind == FINALIZE:
                first = self.sites[client].handle_request(request)
                assert first == self.sites[client].handle_request(request)
                self.restart(client)
                if Request.decode(request).cached_digest is None:
                    assert first == self.sites[client].handle_request(request)
        return super().send_requests(requests, timeout_seconds)


class LostFinalizeRequests(Sites):
    """Sites of which one never receives the request to finalize."""

    def send_requests(self, requests, timeout_seconds):
        for client in [c for c, request in requests.items() if c == 1 and Request.decode(request).kind == FINALIZE]:
            requests = {other: request for other, request in requests.items() if other != client}
            yield ClientFailure(client, "deadline")
        yield from super().send_requests(requests, timeout_seconds)


@pytest.mark.parametrize("sites", [RepeatedRequests, LostFinalizeRequests])
@pytest.mark.parametrize("clients_per_round", [2, 3])
def test_every_site_finalizes_exactly_once(sites, clients_per_round, all_shards, tmp_path, monkeypatch):
    shards, config = prepare("fedavgft", all_shards, tmp_path, f"train.clients_per_round={clients_per_round}")
    local = run(config, shards, tmp_path / "local")
    finalize, finalized = FedAvgFT.finalize, []

    def record(method, client, received, ctx):
        finalized.append((client.id, client.round))
        finalize(method, client, received, ctx)

    monkeypatch.setattr(FedAvgFT, "finalize", record)
    remote = run(config, shards, tmp_path / "remote", sites(shards, tmp_path))
    assert sorted(finalized) == [(0, 4), (1, 4), (2, 4)]
    # A client that neither trained nor answered the request to finalize has no loss to report.
    rows = [{k: v for k, v in row.items() if k != "loss_private"} for row in remote.read_rounds()]
    assert rows == [{k: v for k, v in row.items() if k != "loss_private"} for row in local.read_rounds()]
    assert remote.read_summary()["models"] == local.read_summary()["models"]


class CoordinatorKilledError(BaseException):
    """Stands for the death of the coordinator."""


@pytest.mark.parametrize("kind", [protocol.LOCAL_ROUND, "finalize", protocol.EVALUATE, "finish"])
def test_a_coordinator_that_is_killed_in_the_last_round_resumes(kind, all_shards, tmp_path):
    shards, config = prepare("fedavgft", all_shards, tmp_path)
    sites, answered = Sites(shards, tmp_path), []

    def kill_coordinator(client, request, response):
        header = Request.decode(request).header
        if (header["kind"], header.get("round")) == (kind, 4):
            answered.append(client)
            if len(answered) == 2:
                raise CoordinatorKilledError
        return response

    sites.change_response = kill_coordinator
    with pytest.raises(CoordinatorKilledError):
        run(config, shards, tmp_path / "run", sites)
    sites.change_response = keep_response
    assert_equal_runs(run(config, shards, tmp_path / "run", sites), run(config, shards, tmp_path / "local"))


def test_a_client_that_diverges_after_the_last_round_stops_a_simulation_or_is_skipped(
    all_shards, tmp_path, monkeypatch
):
    finalize = FedAvgFT.finalize

    def diverge(method, client, received, ctx):
        finalize(method, client, received, ctx)
        if client.id == 1:
            raise DivergenceError(client.id, client.round, "its model")

    monkeypatch.setattr(FedAvgFT, "finalize", diverge)
    shards, config = prepare("fedavgft", all_shards, tmp_path)
    with pytest.raises(RunFailedError, match="client 1 diverged in round 4 of fedavgft"):
        run(config, shards, tmp_path / "stop", None)
    remote = run(config, shards, tmp_path / "go-on", Sites(shards, tmp_path))
    assert [row.get("evaluation_error") for row in remote.read_rounds()[-3:]] == [None, "diverged: its model", None]
    shards, config = prepare("fedavgft", all_shards, tmp_path, "train.on_nan=skip")
    local = run(config, shards, tmp_path / "local")
    assert_equal_runs(run(config, shards, tmp_path / "remote", Sites(shards, tmp_path / "other")), local)
    assert [(row["round"], row["client"]) for row in local.read_rounds() if "left_out" in row] == [(4, 1)]


def test_a_site_refuses_to_finalize_before_the_last_round(all_shards, tmp_path):
    shards, config = prepare("fedavgft", all_shards, tmp_path)
    sites, refused = Sites(shards, tmp_path), []

    def finalize_early(client, request, response):
        decoded = Request.decode(request)
        if decoded.kind == protocol.LOCAL_ROUND and decoded.header["round"] == 2:
            header = {**decoded.header, "kind": FINALIZE}
            refused.append(Response.decode(sites.sites[client].handle_request(Request(header).encode())).header["text"])
        return response

    sites.change_response = finalize_early
    remote = run(config, shards, tmp_path / "remote", sites)
    assert refused == ["round 2 is not the last of 4 rounds (finalize): finalize after round 4"] * 3
    assert_equal_runs(remote, run(config, shards, tmp_path / "local"))
