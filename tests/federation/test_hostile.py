"""Invalid requests and responses: none stops the coordinator or reaches the vote, and no site exceeds its policy."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedmosaic_cli.engine.messages import Logits, Scalars, Tensors, Weights
from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.protocol import ProtocolError, Request, Response
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.label_messages import ConsensusLabels, LabelUpload
from tests.federation.sites import (
    NOISY_LABELS,
    Sites,
    export_shards,
    is_request,
    join,
    local_round,
    make_config,
    request_site,
    rows_of_round,
    run,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


def changed_header(**changes):
    def change(response):
        return Response({**response.header, **changes}, response.parts)

    return change


def changed_upload(change):
    """Return a function that replaces the bytes of a response's label upload."""

    def changed(response):
        kind, data = response.parts["opinion"]
        return Response(response.header, {"opinion": (kind, change(data))})

    return changed


def with_label_header(**changes):
    """Return a function that changes the header of a label upload and corrects its checksum."""

    def change(data):
        header = wire.parse_header(data)
        fields = {
            name: changes.get(name, getattr(header, name)) for name in ("run_id", "public_set_id", "round", "client_id")
        }
        values = list(wire.HEADER_STRUCT.unpack_from(data))
        values[7:11] = fields.values()
        body = wire.HEADER_STRUCT.pack(*values) + data[wire.HEADER_STRUCT.size : -wire.CHECKSUM_BYTES]
        return body + wire.message_checksum(body)

    return changed_upload(change)


def with_nan_expertise(data):
    """Replace the last expertise value by NaN and correct the checksum."""
    body = bytearray(data[: -wire.CHECKSUM_BYTES])
    body[-4:] = np.float32(np.nan).tobytes()
    return bytes(body) + wire.message_checksum(bytes(body))


CHANGED_UPLOADS = {
    "wrong round": (with_label_header(round=7), "future_round"),
    "old round": (with_label_header(round=1), "stale_round"),
    "wrong public set": (with_label_header(public_set_id=bytes(16)), "wrong_public_set"),
    "wrong run": (with_label_header(run_id=bytes(16)), "wrong_run"),
    "other client": (with_label_header(client_id=0), "unknown_client"),
    "NaN": (changed_upload(with_nan_expertise), "expertise_nonfinite"),
    "too long": (changed_upload(lambda data: data + bytes(9)), "too_large"),
    "cut": (changed_upload(lambda data: data[:-9]), "truncated"),
    "garbage": (changed_upload(lambda data: bytes(len(data))), "bad_magic"),
}


@pytest.mark.parametrize("change_name", CHANGED_UPLOADS)
def test_an_upload_with_a_wrong_header_is_rejected(change_name, shards, tmp_path):
    change, reason = CHANGED_UPLOADS[change_name]
    config = make_config(shards, "fedmosaic", tmp_path, "methods.fedmosaic.expertise_bits=float32")
    sites = Sites(shards, tmp_path)

    def change_response(client, request, response):
        is_changed = client == 1 and is_request(request, protocol.LOCAL_ROUND, 2)
        return change(Response.decode(response)).encode() if is_changed else response

    sites.change_response = change_response
    files = run(config, shards, tmp_path / "run", sites)
    rows = rows_of_round(files, 2)
    assert [row["message"] for row in rows] == ["accepted", reason, "accepted"]
    assert rows[0]["rejected"] == {reason: 1}


def edited(**changes):
    """Return a function that changes the header of an encoded response."""
    return lambda data: changed_header(**changes)(Response.decode(data)).encode()


INVALID_RESPONSES = {
    "other round": (edited(round=3), "wrong_round"),
    "other client": (edited(client=0), "unknown_client"),
    "other run": (edited(run="other"), "wrong_run"),
    "other kind": (edited(kind=protocol.EVALUATE), "wrong_round"),
    "oversized": (lambda data: data + bytes(1 << 21), "too_large"),
    "flipped bit": (lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], "checksum"),
    "empty": (lambda data: b"", "truncated"),
    "garbage": (lambda data: bytes(200), "bad_magic"),
    "reserved metric": (edited(metrics={"accuracy": 1.0}), "invalid_metrics"),
    "metrics in a list": (edited(metrics=[1]), "invalid_metrics"),
    "huge integer": (edited(metrics={"x": 10**400}), "invalid_metrics"),
    "number that overflows sums": (edited(metrics={"trust": 1e308}), "invalid_metrics"),
    "metric of the server": (edited(metrics={"degraded": 1}), "invalid_metrics"),
    "evaluation among the metrics": (edited(metrics={"global_accuracy": 0.5}), "invalid_metrics"),
    "huge accuracy": (edited(evaluation={"accuracy": 10**400, "loss": 0.1}), "invalid_evaluation"),
    "accuracy above 1": (edited(evaluation={"accuracy": 2.0, "loss": 0.1}), "invalid_evaluation"),
    "other parts": (
        lambda data: Response(Response.decode(data).header, {"model": ("weights", b"")}).encode(),
        "wrong_parts",
    ),
}


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("change_name", INVALID_RESPONSES)
def test_an_invalid_response_counts_as_a_failure(change_name, shards, tmp_path):
    change, reason = INVALID_RESPONSES[change_name]
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.change_response = lambda client, request, response: (
        change(response) if client == 1 and is_request(request, protocol.LOCAL_ROUND, 2) else response
    )
    files = run(config, shards, tmp_path / "run", sites)
    assert rows_of_round(files, 2)[1]["lost"] == reason
    assert files.read_summary()["lost"] == {"1": 1}


def run_with_changed_response(shards, folder, config, change, kind, number=None):
    """Make a run in which client 1's responses of one kind are changed."""

    def change_response(client, request, response):
        header = Request.decode(request).header
        is_changed = client == 1 and header["kind"] == kind and number in (None, header.get("round"))
        return change(Response.decode(response)).encode() if is_changed else response

    sites = Sites(shards, folder)
    sites.change_response = change_response
    return run(config, shards, folder / "run", sites)


@pytest.mark.parametrize("metrics", [None, {"accuracy": 2, "loss": 1}, {"accuracy": 0.5, "loss": 10**400}])
def test_an_invalid_evaluation_keeps_the_last_one(metrics, shards, tmp_path):
    config = make_config(shards, "fedavg", tmp_path)
    change = changed_header(evaluation=metrics)
    files = run_with_changed_response(shards, tmp_path, config, change, protocol.EVALUATE, 2)
    assert rows_of_round(files, 2)[1]["evaluation_error"] == "invalid_evaluation"
    assert rows_of_round(files, 2)[1]["accuracy"] == rows_of_round(files, 1)[1]["accuracy"]


@pytest.mark.parametrize("number", [2, "many", [1], None])
def test_a_reported_divergence_fails_the_round_of_one_client(number, shards, tmp_path):
    error = Response({"kind": "error", "error": "diverged", "round": number, "text": "it\nall\x1b[2J"})
    config = make_config(shards, "fedmosaic", tmp_path)
    files = run_with_changed_response(shards, tmp_path, config, lambda _: error, protocol.LOCAL_ROUND, 2)
    assert rows_of_round(files, 2)[1]["lost"] == "diverged: it all [2J"


def test_a_run_stops_if_too_few_clients_are_left_by_divergence(shards, tmp_path):
    error = Response({"kind": "error", "error": "diverged", "round": 2, "text": "it\nall\x1b[2J"}).encode()
    config, sites = make_config(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.change_response = lambda client, request, response: (
        error if client and is_request(request, protocol.LOCAL_ROUND, 2) else response
    )
    with pytest.raises(RunFailedError, match=r"client [12] diverged in round 2 .* it all \[2J is not finite"):
        run(config, shards, tmp_path / "run", sites)


def test_with_on_nan_skip_a_divergence_fails_only_the_round(shards, tmp_path):
    config = make_config(shards, "fedmosaic", tmp_path, "train.on_nan=skip")
    error = Response({"kind": "error", "error": "diverged", "round": 2, "text": "all"})
    files = run_with_changed_response(shards, tmp_path, config, lambda _: error, protocol.LOCAL_ROUND, 2)
    assert rows_of_round(files, 2)[1]["lost"] == "diverged: all"


@pytest.mark.parametrize("device", ["<b>\x1b[2J", ["cpu"], None, "cpu\n"])
def test_an_invalid_device_name_is_not_shown(device, shards, tmp_path):
    config = make_config(shards, "fedmosaic", tmp_path, "train.rounds=1")
    files = run_with_changed_response(shards, tmp_path, config, changed_header(device=device), "join")
    assert files.read_summary()["device"] == "cpu, unknown"


HOSTILE_LEDGERS = ["abc", [[1]], [{"mu": 1e100}], [{"round": 1, "mechanism": "krr", "count": 60, "epsilon": "inf"}]]


@pytest.mark.parametrize("ledger", HOSTILE_LEDGERS)
def test_the_spent_budget_follows_from_the_plan_whatever_a_site_says(ledger, shards, tmp_path):
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    files = run_with_changed_response(shards, tmp_path, config, changed_header(ledger=ledger), "finish")
    planned = config.planned_epsilon(num_classes=10)
    assert files.read_summary()["privacy"]["total_epsilon"] == pytest.approx(planned)
    assert files.read_summary()["privacy"]["rounds"] == 2


HOSTILE_RESPONSES = {
    "join refused": ("join", Response({"kind": "error", "error": "refused", "text": "no\x1b[2J"})),
    "join without metrics": ("join", changed_header(evaluation={"accuracy": 7})),
    "join without a round": ("join", changed_header(round="x")),
    "nothing joined": ("join", None),
    "diverged": (protocol.LOCAL_ROUND, Response({"kind": "error", "error": "diverged", "text": "all"})),
    "no evaluation": (protocol.EVALUATE, changed_header(evaluation="x")),
    "evaluation diverged": (protocol.EVALUATE, Response({"kind": "error", "error": "diverged", "text": "all"})),
    "no response at the end": ("finish", None),
    "no digest": ("finish", changed_header(model="../../etc/passwd")),
}


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("method", ["fedmosaic", "fedavg"])
@pytest.mark.parametrize("name", HOSTILE_RESPONSES)
def test_one_hostile_site_cannot_stop_a_run(name, method, shards, tmp_path):
    kind, change = HOSTILE_RESPONSES[name]
    config, sites = make_config(shards, method, tmp_path), Sites(shards, tmp_path)

    def change_response(client, request, response):
        if client != 1 or Request.decode(request).header["kind"] != kind:
            return response
        if change is None:
            return None
        return (change if isinstance(change, Response) else change(Response.decode(response))).encode()

    sites.change_response = change_response
    files = run(config, shards, tmp_path / "run", sites)
    honest = [row for row in files.read_rounds() if row["client"] != 1]
    if name == "join refused":
        lost = rows_of_round(files, 1)[1].get("lost", "the site of client 1 refuses the plan, no [2J")
        assert lost == "the site of client 1 refuses the plan, no [2J"
    assert len(honest) == 8
    assert not any("lost" in row for row in honest)
    assert {"client-000.safetensors", "client-002.safetensors"} <= set(files.read_summary()["models"])


def with_weights(change):
    def changed(data):
        response = Response.decode(data)
        kind, model = response.parts["model"]
        return Response(response.header, {"model": (kind, save(change(load(model))))}).encode()

    return changed


INVALID_MODELS = {
    "NaN": (with_weights(lambda m: {n: torch.full_like(t, torch.nan) for n, t in m.items()}), "not_finite"),
    "too large": (with_weights(lambda m: {n: torch.full_like(t, 1e30) for n, t in m.items()}), "not_finite"),
    "other names": (with_weights(lambda m: {f"{n}x": t for n, t in m.items()}), "wrong_names"),
    "too few": (with_weights(lambda m: dict(list(m.items())[1:])), "wrong_names"),
    "another shape": (with_weights(lambda m: {n: t[None] for n, t in m.items()}), "wrong_shape"),
    "another type": (with_weights(lambda m: {n: t.double() for n, t in m.items()}), "wrong_shape"),
}


@pytest.mark.parametrize("change_name", INVALID_MODELS)
def test_an_invalid_model_is_not_averaged(change_name, shards, tmp_path):
    change, reason = INVALID_MODELS[change_name]
    config, sites = make_config(shards, "fedavg", tmp_path), Sites(shards, tmp_path)
    sites.change_response = lambda client, request, response: (
        change(response) if client == 1 and is_request(request, protocol.LOCAL_ROUND, 2) else response
    )
    files = run(config, shards, tmp_path / "run", sites)
    assert rows_of_round(files, 2)[1]["lost"] == reason


@pytest.mark.parametrize(
    ("level", "method", "joins"),
    [
        ("labels", "fedmosaic", True),
        ("labels", "fedct", True),
        ("labels", "gated", True),
        ("labels", "local", True),
        ("labels", "perfedckt", False),
        ("labels", "fedavg", False),
        ("predictions", "perfedckt", True),
        ("predictions", "ditto", False),
        ("models", "ditto", True),
    ],
)
def test_a_site_refuses_methods_that_upload_more_than_allowed(level, method, joins, shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy(level)).sites[0]
    answer = join(site, make_config(shards, method, tmp_path))
    assert answer["kind"] == ("join" if joins else "error")
    if not joins:
        assert answer["error"] == "refused"
        assert f"this site allows the upload of {level} only" in answer["text"]
        assert not list((tmp_path / "site-0").rglob("plan.json"))


def test_a_site_refuses_a_larger_epsilon_than_allowed(shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy("labels", max_epsilon=8)).sites[0]
    for privacy, joins in (((), False), (("privacy.epsilon=8", "privacy.labels=krr"), True)):
        config = make_config(shards, "fedct", tmp_path, *privacy)
        assert (join(site, config)["kind"] == "join") is joins
    more = make_config(shards, "fedct", tmp_path, "privacy.epsilon=40", "privacy.labels=krr", "train.rounds=3")
    other = "toy/more/seed-0/0123456789abcdef"
    assert "this site allows 8" in join(site, more, run=other)["text"]


def test_a_site_refuses_rounds_beyond_the_plan(shards, tmp_path):
    site, config = Sites(shards, tmp_path).sites[0], make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    join(site, config)
    assert [local_round(site, config, number)["kind"] for number in (1, 2, 3)] == [
        protocol.LOCAL_ROUND,
        protocol.LOCAL_ROUND,
        "error",
    ]
    assert "round 3 is beyond the 2 planned rounds" in local_round(site, config, 3)["text"]


def test_spent_epsilon_counts_when_a_run_is_extended(shards, tmp_path):
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    limit = 1.01 * config.planned_epsilon(len(shards.manifest["class_names"]))
    site = Sites(shards, tmp_path, SitePolicy("labels", max_epsilon=limit)).sites[0]
    join(site, config)
    assert [local_round(site, config, number)["kind"] for number in (1, 2)] == [
        protocol.LOCAL_ROUND,
        protocol.LOCAL_ROUND,
    ]
    assert join(site, make_config(shards, "fedct", tmp_path, *NOISY_LABELS, "train.rounds=40"))["kind"] == "join"
    handled = []
    site.on_request = handled.append
    assert local_round(site, config, 3)["error"] == "refused"
    assert f"above the limit of {limit:g}" in handled[-1].error


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("privacy.delta=0.99",), "delta 0.99 is not below 1/"),
        (("privacy.unit=record-assumed", "privacy.changed_rows=1"), "protects one record"),
    ],
)
def test_an_epsilon_with_a_weaker_meaning_is_refused(more, words, shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy("labels", max_epsilon=8)).sites[0]
    assert words in join(site, make_config(shards, "fedct", tmp_path, *NOISY_LABELS, *more))["text"]


@pytest.mark.parametrize("noise", [True, False])
def test_noise_is_not_drawn_again_after_a_damaged_checkpoint(noise, shards, tmp_path):
    sites = Sites(shards, tmp_path)
    config = make_config(shards, "fedct", tmp_path, *(NOISY_LABELS if noise else NOISY_LABELS[:1]))
    join(sites.sites[0], config)
    for number in (1, 2):
        assert local_round(sites.sites[0], config, number)["kind"] == protocol.LOCAL_ROUND
    [state] = tmp_path.rglob("round-00002/state.json")
    state.write_bytes(b"damaged")
    sites.restart(0)
    responses = [local_round(sites.sites[0], config, 2) for _ in range(2)]
    assert [response["kind"] for response in responses] == (["error"] * 2 if noise else [protocol.LOCAL_ROUND] * 2)
    assert not noise or "checkpoint file is damaged" in responses[0]["text"]


def test_a_plan_with_another_public_size_is_refused(shards, tmp_path):
    """Otherwise each of many labels could spend the budget of one."""
    site, config = Sites(shards, tmp_path).sites[0], make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    content = config.to_dict()
    content["data"]["public_size"] = 1
    assert "other data than this site's" in join(site, config, config=content)["text"]


def test_a_changed_policy_applies_to_running_runs(shards, tmp_path):
    sites, config = Sites(shards, tmp_path, SitePolicy("models")), make_config(shards, "fedavg", tmp_path)
    assert join(sites.sites[0], config)["kind"] == "join"
    sites.policy = SitePolicy("labels")
    sites.restart(0)
    assert "this site allows the upload of labels only" in local_round(sites.sites[0], config, 1)["text"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "0.0.1"}, "install the same version"),
        ({"shards": "0" * 64}, "other shards"),
        ({"run": "../../../../etc/cron.d/x"}, "is invalid"),
        ({"run": "toy/fedct/seed-0/../../../../x"}, "is invalid"),
        ({"run": "/toy/fedct/seed-0/0123456789abcdef"}, "is invalid"),
        ({"run": None}, "is invalid"),
        ({"config": None}, "no configuration"),
        ({"config": {"data": 3}}, "is this a fedmosaic run"),
    ],
)
def test_an_invalid_plan_is_refused_and_nothing_is_written(changes, words, shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    answer = join(site, make_config(shards, "fedct", tmp_path), **changes)
    assert answer["kind"] == "error"
    assert words in answer["text"]
    assert not list(tmp_path.rglob("plan.json"))


def test_plans_with_pooled_data_or_attacks_are_refused(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    for method, more in (("centralized", ()), ("fedct", ("attack.kind=flip", "attack.clients=[1]"))):
        assert "need one process" in join(site, make_config(shards, method, tmp_path, *more))["text"]


def test_a_run_does_not_start_if_all_sites_refuse_the_plan(shards, tmp_path):
    sites = Sites(shards, tmp_path, SitePolicy("labels"))
    with pytest.raises(RequestError, match=r"the site of client \d refuses the plan, FedAvg would send model"):
        run(make_config(shards, "fedavg", tmp_path), shards, tmp_path / "run", sites)


def test_a_site_runs_no_round_before_it_joined(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    header = {"kind": protocol.LOCAL_ROUND, "run": "toy/fedct/seed-0/0123456789abcdef", "round": 1}
    assert "has not joined" in request_site(site, header)["text"]


@given(st.binary(max_size=300))
def test_a_site_responds_to_any_bytes(shards, tmp_path_factory, data):
    site = Sites(shards, tmp_path_factory.getbasetemp()).sites[0]
    assert Response.decode(site.handle_request(data)).kind == "error"


HEADERS = st.dictionaries(
    st.sampled_from(["kind", "run", "round", "config", "shards", "version", "parts", "known"]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(max_size=5),
        st.just(protocol.LOCAL_ROUND),
        st.just("join"),
        st.lists(st.integers(), max_size=2),
    ),
)


@given(HEADERS)
def test_a_site_responds_to_any_header(shards, tmp_path_factory, header):
    site = Sites(shards, tmp_path_factory.getbasetemp()).sites[0]
    body = json.dumps(header).encode()
    data = protocol.PREAMBLE.pack(protocol.MAGIC, protocol.PROTOCOL_VERSION, len(body)) + body
    assert Response.decode(site.handle_request(data + protocol.protocol_checksum(data))).kind == "error"


PART_KINDS = [part.kind for part in (LabelUpload, ConsensusLabels, Weights, Logits, Tensors, Scalars)]
PARTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(PART_KINDS), st.binary(max_size=50)),
    max_size=3,
)


@given(PARTS)
def test_requests_and_responses_round_trip(parts):
    for message in (
        Request({"kind": protocol.LOCAL_ROUND, "round": 3}, parts),
        Request({"kind": protocol.LOCAL_ROUND}, cached_digest="0f"),
        Response({"kind": protocol.LOCAL_ROUND}, parts),
    ):
        assert type(message).decode(message.encode()) == message


@given(PARTS, st.data())
def test_any_flipped_bit_is_detected(parts, data):
    encoded = bytearray(Response({"kind": protocol.LOCAL_ROUND}, parts).encode())
    position = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[position // 8] ^= 1 << position % 8
    with pytest.raises(ProtocolError):
        Response.decode(bytes(encoded))


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        *((header, "bad_header") for header in (b"", b"{}" * 9, b"\xff" * 40, b"[1]", b'{"a":NaN}', b"[" * 100_000)),
        (b" " * (1 << 21), "truncated"),
    ],
)
def test_an_invalid_or_oversized_header_is_rejected(header, reason):
    data = protocol.PREAMBLE.pack(protocol.MAGIC, protocol.PROTOCOL_VERSION, len(header)) + header
    with pytest.raises(ProtocolError, match=reason):
        Response.decode(data + protocol.protocol_checksum(data))


def test_shards_of_other_clients_and_changed_files_are_refused(shards, tmp_path):
    import shutil

    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("manifest.json", "public.npz", "client-001.npz"):
        shutil.copy(shards.path / name, copied)
    assert load_site_shard(copied / "client-001.npz").client_id == 1
    shutil.copy(shards.path / "client-000.npz", copied / "client-001.npz")
    with pytest.raises(RequestError, match="damaged"):
        load_site_shard(copied / "client-001.npz")
    shutil.copy(shards.path / "client-000.npz", copied / "client-007.npz")
    with pytest.raises(RequestError, match="has 3 clients, but no client 7"):
        load_site_shard(copied / "client-007.npz")
    with pytest.raises(RequestError, match="not the shard of a client"):
        load_site_shard(copied / "client-002.npz")
