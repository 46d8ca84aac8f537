"""Mutated messages in every phase of a run: a hostile site harms no other client, a hostile coordinator no site."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from collections import Counter

import pytest

from fedmosaic_cli.errors import DivergenceError, RequestError
from fedmosaic_cli.federation import protocol, remote_pool
from fedmosaic_cli.federation.coordinator import require_message_size
from fedmosaic_cli.federation.egress import WITHHELD_TEXTS
from fedmosaic_cli.federation.flower import ipc
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.protocol import ProtocolError, Request, Response
from fedmosaic_cli.methods.fedavgft import FedAvgFT
from tests.federation.fuzz_harness import (
    HOSTILE,
    METHODS_OF_PHASE,
    NUM_ROUNDS,
    PHASES,
    TINY,
    FakeClock,
    FuzzedCoordinator,
    FuzzedSite,
    RecordedTransport,
    WriteMonitor,
    reason_code,
    record_run,
)
from tests.federation.mutations import Mutator, join_bytes, join_message, split_message
from tests.federation.sites import Sites, export_shards, join_request, make_config, run
from tests.waiting import HANG_SECONDS

NUM_MUTANTS, NUM_SLOW_MUTANTS = 200, 20_000
REASON_CODES = {
    *("too_large", "truncated", "bad_magic", "bad_version", "checksum", "bad_header", "trailing", "unknown_client"),
    *(
        "wrong_run",
        "wrong_round",
        "wrong_parts",
        "invalid_metrics",
        "invalid_evaluation",
        "bad_tensors",
        "wrong_names",
        "wrong_shape",
    ),
    *("not_finite", "unknown_parts", "site error", "lost_state", "no digest", "wrong_public_set", "stale_round"),
    *("future_round", "wrong_count", "wrong_encoding", "label_range", "expertise_nonfinite", "expertise_range"),
    *("expertise_inconsistent", "missing"),
}
"""All reasons why a coordinator does not use a response."""
SITE_CODES = {
    *("truncated", "bad_magic", "bad_version", "checksum", "bad_header", "trailing", "wrong_run", "wrong_parts"),
    *("bad_tensors", "wrong_names", "wrong_shape", "not_finite", "unknown_parts", "wrong_public_set", "stale_round"),
    *("future_round", "wrong_count", "wrong_encoding", "label_range", "unknown_client", "too_large"),
    *("refused", "diverged", "missing_parts"),
}
"""All codes of a site's error responses to a coordinator's messages. "failed" is not one of them: it is a defect."""
MONITOR = WriteMonitor()
AMOUNTS = [
    pytest.param(NUM_MUTANTS, id="small"),
    pytest.param(NUM_SLOW_MUTANTS, id="large", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(
        tmp_path_factory.mktemp("shards"), examples_per_client=8, test_examples_per_client=4, public_alpha=None
    )


@pytest.fixture(scope="module")
def recordings(shards, tmp_path_factory):
    return {method: record_run(shards, method, tmp_path_factory.mktemp(method)) for method in ("fedavgft", "fedmosaic")}


@pytest.fixture
def record_result(request):
    """Return a function that adds a value to the test's entry in the file of `--junitxml`."""
    return lambda name, value: request.node.user_properties.append((name, value))


def responses_of(recordings):
    """Return all responses of all clients in all rounds, phases and runs."""
    return [response for recording in recordings.values() for _, _, response in recording.exchanges]


def requests_of(recordings):
    return [request for recording in recordings.values() for _, request, _ in recording.exchanges]


@pytest.mark.parametrize("num_mutants", AMOUNTS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_mutated_response_affects_no_other_client(phase, num_mutants, recordings, monkeypatch, record_result):
    clock, reasons = FakeClock(), Counter()
    monkeypatch.setattr(remote_pool, "time", clock)
    methods = METHODS_OF_PHASE[phase]
    for method in methods:
        transport = RecordedTransport(recordings[method], clock, phase)
        coordinator = FuzzedCoordinator(recordings[method], transport)
        valid = transport.recorded(HOSTILE)[-1]
        mutator = Mutator(PHASES.index(phase), responses_of(recordings))
        lost, used = coordinator.run(None), coordinator.run(valid)
        assert lost.reason
        assert not used.reason
        for _ in range(num_mutants // len(methods)):
            name, mutant = mutator.mutate(valid)
            outcome = coordinator.run(mutant)
            code = reason_code(outcome.reason)
            reasons[code or "used"] += 1
            assert not code or code in REASON_CODES, (name, outcome.reason)
            assert outcome.reason.isprintable()
            assert len(outcome.reason) < 500
            assert outcome.digests.items() >= {k: v for k, v in used.digests.items() if "001" not in k}.items()
            if code:
                assert_same_as_lost(outcome, lost, name)
            assert not any("lost" in row or "evaluation_error" in row for row in outcome.honest_rows), name
    record_result("reasons", dict(reasons.most_common()))
    assert sum(reasons.values()) == num_mutants
    assert len(reasons) > 5


def assert_same_as_lost(outcome, lost, name):
    """Check that all others have the results of a run in which the response never arrived."""
    assert outcome.server == lost.server, name
    if any("message" in row for row in lost.honest_rows):  # counts of received and rejected messages
        counts = {"received", "rejected", "retried"}
        rows = [
            [{key: row[key] for key in row if key not in counts} for row in of.honest_rows] for of in (outcome, lost)
        ]
        assert rows[0] == rows[1], name
    else:
        assert outcome.honest_rows == lost.honest_rows, name


@pytest.mark.parametrize("num_mutants", AMOUNTS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_mutated_request_gets_a_response_and_changes_no_other_run(
    phase, num_mutants, shards, recordings, tmp_path, record_result
):
    codes = Counter()
    methods = METHODS_OF_PHASE[phase]
    for method in methods:
        folder = tmp_path / method
        fuzzed = FuzzedSite(Sites(shards, folder), recordings[method], phase, MONITOR, codes)
        mutator = Mutator(PHASES.index(phase), requests_of(recordings))
        assert fuzzed.handle(fuzzed.request).kind == phase
        for _ in range(num_mutants // len(methods)):
            name, mutant = mutator.mutate(fuzzed.request)
            response = fuzzed.handle(mutant)
            code = response.header.get("error")
            assert code is None or code in SITE_CODES, (name, mutant, response.header)
        assert MONITOR.violations == []
        assert not list(tmp_path.rglob("crash.txt"))
        files = run(recordings[method].config, shards, folder / "run", fuzzed.sites)
        assert files.read_summary()["models"] == recordings[method].models
    record_result("codes", dict(codes.most_common()))
    assert len(codes) > 5


NUM_RUNS = [pytest.param(2, id="small"), pytest.param(40, id="large", marks=pytest.mark.slow)]


@pytest.mark.parametrize("num_runs", NUM_RUNS)
@pytest.mark.parametrize("phase", PHASES)
def test_models_are_those_of_a_run_without_the_mutated_response(
    phase, num_runs, shards, recordings, tmp_path, monkeypatch
):
    """Runs with sites, in which each mutated response is invalid."""
    method = METHODS_OF_PHASE[phase][-1]
    config = recordings[method].config
    monkeypatch.setattr(remote_pool, "time", FakeClock())
    mutator = Mutator(100, responses_of(recordings))

    def run_with(name, mutate):
        sites, invalid = Sites(shards, tmp_path / name), []

        def change(client, request, response):
            remote_pool.time.now += 1.0
            header = Request.decode(request).header
            if client != HOSTILE or header["kind"] != phase or header.get("round", NUM_ROUNDS) != NUM_ROUNDS:
                return response
            invalid.append(mutate(response))
            return invalid[0]

        sites.change_response = change
        files = run(config, shards, tmp_path / f"run-{name}", sites)
        models = {
            client: path.read_bytes()
            for client in range(3)
            for path in (tmp_path / name / f"site-{client}").rglob("client-*.safetensors")
        }
        rows = [{k: row[k] for k in ("round", "client", "accuracy", "test_loss")} for row in files.read_rounds()]
        return models, [row for row in rows if row["client"] != HOSTILE]

    def invalid_mutant(response):
        while True:
            _, mutant = mutator.mutate(response)
            try:
                Response.decode(mutant)
            except ProtocolError:
                return mutant

    expected = run_with("lost", lambda _: None)
    for number in range(num_runs):
        assert run_with(f"mutated-{number}", invalid_mutant) == expected


def test_a_request_without_a_part_that_the_method_reads_is_invalid(shards, recordings, tmp_path):
    fuzzed = FuzzedSite(Sites(shards, tmp_path), recordings["fedavgft"], protocol.LOCAL_ROUND, MONITOR)
    header, _ = split_message(fuzzed.request)
    del header["parts"]
    assert fuzzed.handle(join_message(header, b"")).header["error"] == "missing_parts"
    assert not list(tmp_path.rglob("crash.txt"))


def test_received_parts_report_other_keys_as_a_defect_of_the_method():
    received = protocol.ReceivedParts({"model": 1}, ("model", "control"))
    assert received["model"] == 1
    assert received.get("control") is None
    with pytest.raises(ProtocolError, match="missing_parts"):
        received["control"]
    with pytest.raises(KeyError):
        received["undeclared"]


@pytest.mark.parametrize("text", [b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":1e999}', b'{"a":[-1e400]}'])
def test_a_header_has_texts_that_can_be_encoded_and_finite_numbers(text):
    with pytest.raises(ProtocolError, match="bad_header"):
        protocol.decode_message(join_bytes(text, b""))


def test_a_header_may_contain_escaped_characters():
    assert protocol.decode_message(join_bytes(b'{"a":"\\ud83d\\ude00 \\u00e9"}', b""))[0] == {"a": "\U0001f600 é"}


def test_the_reason_of_a_huge_round_is_short(recordings, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(remote_pool, "time", clock)
    transport = RecordedTransport(recordings["fedavgft"], clock, "join")
    header, _ = split_message(transport.recorded(HOSTILE)[-1])
    outcome = FuzzedCoordinator(recordings["fedavgft"], transport).run(
        join_message({**header, "round": -(10**400)}, b"")
    )
    assert "its site remembers round none" in outcome.reason
    assert len(outcome.reason) < 300


@pytest.mark.parametrize("code", ["deadline", "x" * 999, None, 7, ["refused"]])
def test_a_site_cannot_choose_the_code_of_its_error(code):
    assert remote_pool.site_error_text({"error": code, "text": "a\nb"}) == "invalid: a b"


def test_an_error_response_repeats_little_of_the_request(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    response = site.handle_request(Request({"kind": "x" * 100_000, "round": 10**300}).encode())
    assert len(response) < 300


# Memory

MEGABYTE = 1 << 20


def peak_bytes(function):
    """Return the largest number of bytes that Python allocates during a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_message_above_the_limit_is_not_copied(shards, recordings, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_MESSAGE_BYTES", MEGABYTE)
    site = Sites(shards, tmp_path).sites[0]
    site.handle_request(b"")
    large = Response({"kind": protocol.LOCAL_ROUND}, {"model": ("weights", bytes(32 * MEGABYTE))}).encode()
    for decode in (Request.decode, Response.decode, lambda data: Response.decode(data, 2**40)):
        with pytest.raises(ProtocolError, match="too_large"):
            decode(large)
    assert Response.decode(site.handle_request(large)).header["error"] == "too_large"
    assert peak_bytes(lambda: site.handle_request(large)) < MEGABYTE


def test_a_message_within_the_limit_is_copied_once():
    data = Request({"kind": protocol.LOCAL_ROUND}, {"model": ("weights", bytes(32 * MEGABYTE))}).encode()
    assert peak_bytes(lambda: Request.decode(data)) < 33 * MEGABYTE


@pytest.mark.parametrize(
    "head",
    [
        {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 4]}},
    ],
)
def test_a_small_part_with_huge_shapes_allocates_nothing(head, recordings, shards, tmp_path):
    fuzzed = FuzzedSite(Sites(shards, tmp_path), recordings["fedavgft"], protocol.LOCAL_ROUND, MONITOR)
    header, _ = split_message(fuzzed.request)
    text = json.dumps(head).encode()
    body = struct.pack("<Q", len(text)) + text + bytes(4)
    mutant = join_message({**header, "parts": [["model", "weights", len(body)]]}, body)
    assert fuzzed.handle(mutant).header["error"] == "bad_tensors"
    assert peak_bytes(lambda: fuzzed.handle(mutant)) < 8 * MEGABYTE


@pytest.mark.parametrize("hidden", [[65_536] * 100, [65_536, 65_536]])
def test_a_plan_with_a_huge_network_is_refused_before_it_is_built(hidden, shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    config = make_config(shards, "fedmosaic", tmp_path, *TINY, f"model.hidden={hidden}")
    response = Response.decode(site.handle_request(join_request(site, config).encode()))
    assert "and this site allows 500,000,000 (max_weights in site.json)" in response.header["text"]
    assert not list(tmp_path.rglob("plan.json"))


def test_a_run_whose_messages_are_too_large_does_not_start(shards, recordings, monkeypatch):
    transport = RecordedTransport(recordings["fedavgft"], FakeClock(), "join")
    federation = FuzzedCoordinator(recordings["fedavgft"], transport).initial
    require_message_size(recordings["fedavgft"].config, federation.ctx)
    monkeypatch.setattr("fedmosaic_cli.federation.coordinator.MAX_MESSAGE_BYTES", MEGABYTE)
    with pytest.raises(RequestError, match="sites accept at most"):
        require_message_size(recordings["fedavgft"].config, federation.ctx)


def test_a_socket_receives_no_frame_above_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(ipc, "MAX_FRAME_BYTES", 1000)
    listener = ipc.IpcListener(tmp_path)
    try:
        for size, is_received in ((1000, True), (1001, False)):
            with ipc.connect_socket(tmp_path) as sender, listener.next_connection(HANG_SECONDS) as receiver:
                sender.send_bytes(bytes(size))
                if is_received:
                    assert len(ipc.receive_bytes(receiver)) == size
                else:
                    with pytest.raises(OSError, match="bad message length"):
                        ipc.receive_bytes(receiver)
    finally:
        listener.close()


GIGABYTE_SCRIPT = """
import resource, sys
from pathlib import Path
from fedmosaic_cli.federation.protocol import LOCAL_ROUND, ProtocolError, Request, Response
from tests.federation.sites import Sites, export_shards

folder = Path(sys.argv[1])
shards = export_shards(folder, examples_per_client=8, test_examples_per_client=4, public_alpha=None)
site = Sites(shards, folder).sites[0]
site.handle_request(b"")
body = Request({"kind": LOCAL_ROUND}, {"model": ("weights", b"x")}).encode()
data = body + b"x" * (1 << 30)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert Response.decode(site.handle_request(data)).header["error"] == "too_large"
for decode in (Request.decode, Response.decode):
    try:
        decode(data)
    except ProtocolError as error:
        assert str(error) == "too_large"
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, before // 1024)
"""


@pytest.mark.slow
def test_a_body_of_a_gigabyte_is_refused_without_more_memory(tmp_path, record_result):
    done = subprocess.run(
        [sys.executable, "-c", GIGABYTE_SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    more_mb, before_mb = map(int, done.stdout.split())
    record_result("peak_mb", (before_mb, more_mb))
    assert more_mb < 16


# Texts of errors

SECRET = "0.7310585786"


def raise_secret(kind):
    """Return a method of a plug-in that raises an error with a value that it computed from data."""

    def raise_error(*_):
        if kind == "divergence":
            raise DivergenceError(1, 7310585786, f"a value of {SECRET}")
        if kind == "protocol":
            raise ProtocolError(f"value {SECRET}")
        if kind == "other":
            raise type(f"Error{SECRET}", (ValueError,), {})(SECRET)
        raise RequestError(f"a pixel is {SECRET} (data): read this")

    return raise_error


@pytest.mark.parametrize("kind", ["request", "divergence", "protocol", "other"])
@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("join", "personal_model"),
        ("join", "init_client"),
        (protocol.LOCAL_ROUND, "local_round"),
        ("finalize", "finalize"),
        (protocol.EVALUATE, "personal_model"),
        ("finish", "personal_model"),
    ],
)
def test_with_withheld_metrics_an_error_has_a_fixed_text(kind, phase, name, shards, recordings, tmp_path, monkeypatch):
    sites = Sites(shards, tmp_path, SitePolicy("models", metrics="withheld"))
    fuzzed, handled = FuzzedSite(sites, recordings["fedavgft"], phase, MONITOR), []
    monkeypatch.setattr(FedAvgFT, name, raise_secret(kind))
    fuzzed.site.on_request = handled.append
    data = fuzzed.site.handle_request(fuzzed.request)
    if kind == "divergence" and phase in (protocol.LOCAL_ROUND, "finalize"):
        assert Response.decode(data).kind == phase, "a diverged client is rolled back"
    else:
        header = Response.decode(data).header
        assert header.keys() == {"kind", "client", "asked", "round", "error", "text", "withheld"}
        assert header["text"] == WITHHELD_TEXTS[header["error"]]
        assert SECRET in handled[-1].error, "the site has the reason"
    assert b"73105" not in data


@pytest.mark.parametrize("kind", ["request", "divergence", "protocol", "other"])
def test_with_rounded_metrics_numbers_in_the_text_of_an_error_are_rounded(
    kind, shards, recordings, tmp_path, monkeypatch
):
    policy = SitePolicy("models", min_batch_size=1, min_examples=1)
    fuzzed = FuzzedSite(Sites(shards, tmp_path, policy), recordings["fedavgft"], protocol.EVALUATE, MONITOR)
    monkeypatch.setattr(FedAvgFT, "personal_model", raise_secret(kind))
    data = fuzzed.site.handle_request(fuzzed.request)
    header = Response.decode(data).header
    assert header["error"] in protocol.ERROR_CODES
    assert header["round"] == NUM_ROUNDS
    assert b"7310" not in data
    if kind == "request":
        assert header["text"] == "a pixel is 0.73 (data): read this"


def test_the_text_of_an_error_is_one_short_line(shards, recordings, tmp_path, monkeypatch):
    fuzzed = FuzzedSite(Sites(shards, tmp_path), recordings["fedavgft"], protocol.EVALUATE, MONITOR)

    def raise_long(*_):
        raise RequestError("a\x1b[2J\nb" + "7" * 10_000)

    monkeypatch.setattr(FedAvgFT, "personal_model", raise_long)
    text = Response.decode(fuzzed.site.handle_request(fuzzed.request)).header["text"]
    assert len(text) == 300
    assert text.startswith("a [2J b777")


def test_with_withheld_metrics_the_refusal_of_a_plan_keeps_its_text(shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy("labels", metrics="withheld")).sites[0]
    response = site.handle_request(join_request(site, make_config(shards, "fedavg", tmp_path, *TINY)).encode())
    header = Response.decode(response).header
    assert header["error"] == "refused"
    assert "this site allows the upload of labels only" in header["text"]
