"""Single rules of a site: metrics of every response, the privacy ledger before a response, limits of evaluations."""

from __future__ import annotations

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.egress import EgressFilter
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.privacy_ledger import PrivacyLedger
from fedmosaic_cli.federation.protocol import ProtocolError, Request, Response
from fedmosaic_cli.labels.privacy.accounting import Release, total_epsilon
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.storage import syscalls
from tests.federation.sites import (
    NOISY_LABELS,
    Sites,
    export_shards,
    is_request,
    join,
    local_round,
    make_config,
    request_site,
    run,
    run_id,
)
from tests.federation.test_site_egress import BUDGET
from tests.toys import TOYS, from_client

KINDS = (protocol.JOIN, protocol.LOCAL_ROUND, protocol.FINALIZE, protocol.EVALUATE, protocol.FINISH)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_of_every_response_are_rounded(kind):
    header = {"kind": kind, "evaluation": {"accuracy": 0.98765, "loss": 0.01234}, "metrics": {"loss_private": 12.345}}
    filtered = EgressFilter(SitePolicy(), 100, 100).filter_header(header)
    assert filtered == {"kind": kind, "evaluation": {"accuracy": 0.99, "loss": 0.01}, "metrics": {"loss_private": 12.0}}


def test_the_response_to_a_join_contains_rounded_metrics(shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy()).sites[0]
    metrics = join(site, make_config(shards, "fedct", tmp_path))["evaluation"]
    assert 0 < metrics["loss"] == pytest.approx(round(metrics["loss"], 2), abs=0)


def test_metrics_are_withheld_if_the_examples_they_average_over_are_few():
    header = {"evaluation": {"accuracy": 0.5}, "metrics": {"loss_private": 1.0}}
    few_train = EgressFilter(SitePolicy(), num_train=19, num_test=100).filter_header(header)
    assert few_train == {"evaluation": {"accuracy": 0.5}, "metrics": {}}
    few_tests = EgressFilter(SitePolicy(), num_train=20, num_test=19).filter_header(header)
    assert few_tests == {"evaluation": None, "metrics": {"loss_private": 1.0}, "withheld": True}


@pytest.mark.parametrize(("planned", "limit"), [(None, 8.0), (6.5, 6.5), (20.0, 8.0)])
def test_the_lower_limit_of_site_and_plan_counts(planned, limit, shards, tmp_path):
    more = () if planned is None else (f"privacy.max_epsilon={planned}",)
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS, *more)
    assert BUDGET.limited_config(config).privacy.max_epsilon == limit
    assert SitePolicy().limited_config(config).privacy.max_epsilon == planned


def test_a_batch_is_not_larger_than_the_data_of_a_site(shards, tmp_path):
    """The loss of a plan with large batches is that of few examples if the site has only these."""
    config = make_config(shards, "fedct", tmp_path, "train.batch_size=64", "train.local_steps=100")
    SitePolicy().check_config(config, 0, 8)
    with pytest.raises(RequestError, match=r"train.batch_size is 7, and this site requires 8"):
        SitePolicy().check_config(config, 0, 7)


def test_releases_count_with_the_fewest_classes_of_all_data(tmp_path):
    path, releases = tmp_path / "ledger.jsonl", [Release(1, "krr", 60, epsilon=0.5)]
    PrivacyLedger(path, "first", 10, tmp_path).append("run", releases)
    PrivacyLedger(path, "second", 3, tmp_path).append("run", releases)
    costs = {classes: total_epsilon(2 * releases, 1e-5, classes) for classes in (3, 10)}
    assert costs[3] > costs[10]
    for classes in (3, 10):
        assert PrivacyLedger(path, f"data of {classes}", classes, tmp_path).total_epsilon(1e-5) == costs[3]


def test_a_ledger_entry_is_synced_with_its_content_before_it_is_recorded_elsewhere(tmp_path, monkeypatch):
    path, synced = tmp_path / "site" / "ledger.jsonl", []
    fsync = syscalls.fsync

    def record_fsync(target):
        synced.append((target, path.read_bytes().count(b"\n") if path.is_file() else 0))
        fsync(target)

    ledger = PrivacyLedger(path, "data", 10, tmp_path / "anchors")
    monkeypatch.setattr(syscalls, "fsync", record_fsync)
    ledger.append("run", [Release(1, "krr", 60, epsilon=0.5)])
    assert (path, 1) in synced
    anchored = [number for number, (target, _) in enumerate(synced) if target.name.startswith(".data.json")]
    assert anchored
    assert synced.index((path, 1)) < min(anchored)


def test_labels_leave_a_site_only_after_the_ledger_is_written(shards, tmp_path, monkeypatch):
    """A site whose ledger cannot be written sends no labels, also if the request is repeated."""
    site = Sites(shards, tmp_path, BUDGET).sites[0]
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    assert join(site, config)["kind"] == protocol.JOIN

    def full_disk(*_):
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(PrivacyLedger, "append", full_disk)
        for _ in range(2):
            header = {"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": 1}
            response = Response.decode(site.handle_request(Request(header).encode()))
            assert response.kind == protocol.ERROR
            assert not response.parts
    assert site.ledger.num_entries == 0
    assert local_round(site, config, 1)["kind"] == protocol.LOCAL_ROUND
    assert site.ledger.num_entries == 1


def test_a_site_evaluates_two_messages_of_a_round_and_no_third_one(shards, tmp_path):
    sites = Sites(shards, tmp_path)
    run(make_config(shards, "fedavg", tmp_path, "train.rounds=1"), shards, tmp_path / "run", sites)
    data = next(data for client, data, _ in sites.exchanges if client == 0 and is_request(data, protocol.EVALUATE, 1))
    request, site = Request.decode(data), sites.site(0)
    kind, model = request.parts["model"]
    answers = []
    for number in range(1, 4):
        changed = bytearray(model)
        changed[-4:] = bytes([number, 0, 0, 0])  # the last weight is nearly 0
        answers.append(request_site(site, request.header, {"model": (kind, bytes(changed))}))
    assert [answer["kind"] for answer in answers] == [protocol.EVALUATE, protocol.ERROR, protocol.ERROR]
    assert "already evaluated 2 times" in answers[1]["text"]


def test_errors_name_no_path_of_the_site(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    config = make_config(shards, "fedct", tmp_path)
    join(site, config)
    plan = next(tmp_path.rglob("plan.json"))
    plan.write_text("{}")
    site._current_run = None
    answer = local_round(site, config, 1)
    assert answer["kind"] == protocol.ERROR
    assert "checksum" in answer["text"]
    assert str(tmp_path) not in answer["text"]
    assert "..." in answer["text"]


def test_sites_draw_noise_that_the_seed_does_not_determine(shards, tmp_path):
    """The same request to two copies of a site: with noise the labels differ, without noise they are equal."""
    for noise, is_same in ((("privacy.labels=krr", "privacy.epsilon=50"), False), ((), True)):
        config = make_config(shards, "fedct", tmp_path, *noise)
        uploads = []
        for name in ("one", "two"):
            site = Sites(shards, tmp_path / f"{name}-{is_same}").sites[0]
            join(site, config)
            request = Request({"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": 1})
            uploads.append(Response.decode(site.handle_request(request.encode())).parts)
        assert set(uploads[0]) == {"opinion"}
        assert (uploads[0] == uploads[1]) == is_same


def test_parts_of_another_kind_than_declared_are_rejected():
    toy = TOYS["even"].federation(FedAvg())
    declared, route = FedAvg().uploads, from_client(toy.ctx, 0)
    parts = protocol.encode_parts({"model": toy.ctx.initial_model}, declared, route)
    assert set(protocol.decode_parts(parts, declared, route)) == {"model"}
    _, data = parts["model"]
    for wrong in ({"model": ("labels", data)}, {"other": parts["model"]}):
        with pytest.raises(ProtocolError, match="wrong_parts"):
            protocol.decode_parts(wrong, declared, route)


@pytest.mark.parametrize(("size", "reason"), [(3, "trailing"), (5, "truncated")])
def test_parts_must_fill_a_message(size, reason):
    message = bytearray(protocol.encode_message({"kind": protocol.LOCAL_ROUND}, {"a": ("labels", b"1234")}))
    body = message[: -protocol.PROTOCOL_CHECKSUM_BYTES].replace(b'["a","labels",4]', b'["a","labels",%d]' % size)
    with pytest.raises(ProtocolError, match=reason):
        protocol.decode_message(bytes(body) + protocol.protocol_checksum(body))
