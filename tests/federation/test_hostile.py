"""Letters that are not as they should be: none can stop the coordinator or reach the vote, and no site does more than
its people agreed to."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedmosaic_cli import __version__
from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.protocol import ProtocolError, ProtocolMessage
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.labels import wire
from tests.federation.sites import Sites, configured, exported, play
from tests.federation.test_losses import asked, rows_of

SPARING = ("train.rounds=2", "privacy.epsilon=8", "privacy.labels=krr")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("shards"))


def changed_head(**changes):
    def change(letter):
        return ProtocolMessage({**letter.header, **changes}, letter.parts)

    return change


def changed_opinion(change):
    """The same answer with other bytes in the place of its opinion."""

    def changed(letter):
        kind, data = letter.parts["opinion"]
        return ProtocolMessage(letter.header, {"opinion": (kind, change(data))})

    return changed


def resealed(**changes):
    """An opinion that says something else of itself, in good form."""

    def change(data):
        envelope = wire.parse_header(data)
        fields = {
            name: changes.get(name, getattr(envelope, name))
            for name in ("run_id", "public_set_id", "round", "client_id")
        }
        head = list(wire.HEADER_STRUCT.unpack_from(data))
        head[7:11] = fields.values()
        body = wire.HEADER_STRUCT.pack(*head) + data[wire.HEADER_STRUCT.size : -wire.CHECKSUM_BYTES]
        return body + wire.message_checksum(body)

    return changed_opinion(change)


def not_a_number(data):
    """Expertise that is none, where it travels as it is."""
    body = bytearray(data[: -wire.CHECKSUM_BYTES])
    body[-4:] = np.float32(np.nan).tobytes()
    return bytes(body) + wire.message_checksum(bytes(body))


OPINIONS = {
    "wrong round": (resealed(round=7), "future_round"),
    "old round": (resealed(round=1), "stale_round"),
    "wrong public set": (resealed(public_set_id=bytes(16)), "wrong_public_set"),
    "wrong run": (resealed(run_id=bytes(16)), "wrong_run"),
    "somebody else's words": (resealed(client_id=0), "unknown_client"),
    "no number": (changed_opinion(not_a_number), "expertise_nonfinite"),
    "too long": (changed_opinion(lambda data: data + bytes(9)), "too_large"),
    "cut": (changed_opinion(lambda data: data[:-9]), "truncated"),
    "garbage": (changed_opinion(lambda data: bytes(len(data))), "bad_magic"),
}


@pytest.mark.parametrize("lie", OPINIONS)
def test_an_opinion_that_lies_about_itself_does_not_count(lie, shards, tmp_path):
    change, reason = OPINIONS[lie]
    config = configured(shards, "fedmosaic", tmp_path, "methods.fedmosaic.expertise_bits=float32")
    sites = Sites(shards, tmp_path)

    def spoil(client, letter, answer):
        spoilt = client == 1 and asked(letter, "turn", 2)
        return protocol.encode_protocol_message(change(protocol.decode_protocol_message(answer))) if spoilt else answer

    sites.spoil = spoil
    files = play(config, shards, tmp_path / "run", sites)
    rows = rows_of(files, 2)
    assert [row["message"] for row in rows] == ["accepted", reason, "accepted"]
    assert rows[0]["rejected"] == {reason: 1}


def without_sense(letter):
    return ProtocolMessage({**letter.header, "notes": {"accuracy": 1.0}}, letter.parts)


LETTERS = {
    "another round": (
        lambda a: protocol.encode_protocol_message(changed_head(round=3)(protocol.decode_protocol_message(a))),
        "wrong_round",
    ),
    "another client": (
        lambda a: protocol.encode_protocol_message(changed_head(client=0)(protocol.decode_protocol_message(a))),
        "unknown_client",
    ),
    "another run": (
        lambda a: protocol.encode_protocol_message(changed_head(run="other")(protocol.decode_protocol_message(a))),
        "wrong_run",
    ),
    "an answer to something else": (
        lambda a: protocol.encode_protocol_message(changed_head(kind="exam")(protocol.decode_protocol_message(a))),
        "wrong_round",
    ),
    "oversized": (lambda a: a + bytes(1 << 21), "too_large"),
    "a flipped bit": (lambda a: a[:-20] + bytes([a[-20] ^ 1]) + a[-19:], "checksum"),
    "nothing": (lambda a: b"", "truncated"),
    "garbage": (lambda a: bytes(200), "bad_magic"),
    "the log's own words": (
        lambda a: protocol.encode_protocol_message(without_sense(protocol.decode_protocol_message(a))),
        "bad_notes",
    ),
    "notes that are none": (
        lambda a: protocol.encode_protocol_message(changed_head(notes=[1])(protocol.decode_protocol_message(a))),
        "bad_notes",
    ),
    "a number beyond all": (
        lambda a: protocol.encode_protocol_message(
            changed_head(notes={"x": 10**400})(protocol.decode_protocol_message(a))
        ),
        "bad_notes",
    ),
    "a number that would spoil sums": (
        lambda a: protocol.encode_protocol_message(
            changed_head(notes={"trust": 1e308})(protocol.decode_protocol_message(a))
        ),
        "bad_notes",
    ),
    "what the server says of all": (
        lambda a: protocol.encode_protocol_message(
            changed_head(notes={"degraded": 1})(protocol.decode_protocol_message(a))
        ),
        "bad_notes",
    ),
    "marks among the notes": (
        lambda a: protocol.encode_protocol_message(
            changed_head(notes={"global_accuracy": 0.5})(protocol.decode_protocol_message(a))
        ),
        "bad_notes",
    ),
    "a mark beyond all": (
        lambda a: protocol.encode_protocol_message(
            changed_head(mark={"accuracy": 10**400, "loss": 0.1})(protocol.decode_protocol_message(a))
        ),
        "bad_mark",
    ),
    "a mark above all": (
        lambda a: protocol.encode_protocol_message(
            changed_head(mark={"accuracy": 2.0, "loss": 0.1})(protocol.decode_protocol_message(a))
        ),
        "bad_mark",
    ),
    "no message": (
        lambda a: protocol.encode_protocol_message(
            ProtocolMessage(protocol.decode_protocol_message(a).header, {"model": ("weights", b"")})
        ),
        "wrong_parts",
    ),
}


@pytest.mark.parametrize("lie", LETTERS)
def test_an_answer_that_makes_no_sense_is_as_good_as_none(lie, shards, tmp_path):
    change, reason = LETTERS[lie]
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.spoil = lambda c, letter, answer: change(answer) if c == 1 and asked(letter, "turn", 2) else answer
    files = play(config, shards, tmp_path / "run", sites)
    assert rows_of(files, 2)[1]["lost"] == reason
    assert files.read_summary()["lost"] == {"1": 1}


def spoilt_run(shards, folder, config, change, kind, number=None):
    """A run in which client 1's answer of a kind is changed."""

    def spoil(client, letter, answer):
        head = protocol.decode_protocol_message(letter).header
        there = client == 1 and head["kind"] == kind and number in (None, head.get("round"))
        return protocol.encode_protocol_message(change(protocol.decode_protocol_message(answer))) if there else answer

    sites = Sites(shards, folder)
    sites.spoil = spoil
    return play(config, shards, folder / "run", sites)


@pytest.mark.parametrize("mark", [None, {"accuracy": 2, "loss": 1}, {"accuracy": 0.5, "loss": 10**400}])
def test_an_exam_that_makes_no_sense_leaves_the_mark_as_it_was(mark, shards, tmp_path):
    config = configured(shards, "fedavg", tmp_path)
    files = spoilt_run(shards, tmp_path, config, changed_head(mark=mark), "exam", 2)
    assert rows_of(files, 2)[1]["unexamined"] == "bad_mark"
    assert rows_of(files, 2)[1]["accuracy"] == rows_of(files, 1)[1]["accuracy"]


@pytest.mark.parametrize("number", [2, "many", [1], None])
def test_a_site_that_cries_wolf_says_so_in_one_line(number, shards, tmp_path):
    wolf = ProtocolMessage({"kind": "error", "error": "diverged", "round": number, "text": "it\nall\x1b[2J"})
    with pytest.raises(RunFailedError, match=r"client 1 diverged in round (0|2) .* it all \[2J is not finite"):
        spoilt_run(shards, tmp_path, configured(shards, "fedmosaic", tmp_path), lambda _: wolf, "turn", 2)


def test_where_clients_that_diverge_are_left_out_none_ends_the_run(shards, tmp_path):
    config = configured(shards, "fedmosaic", tmp_path, "train.on_nan=skip")
    wolf = ProtocolMessage({"kind": "error", "error": "diverged", "round": 2, "text": "all"})
    files = spoilt_run(shards, tmp_path, config, lambda _: wolf, "turn", 2)
    assert rows_of(files, 2)[1]["lost"] == "diverged: all"


@pytest.mark.parametrize("device", ["<b>\x1b[2J", ["cpu"], None, "cpu\n"])
def test_a_device_that_is_none_is_not_shown(device, shards, tmp_path):
    config = configured(shards, "fedmosaic", tmp_path, "train.rounds=1")
    files = spoilt_run(shards, tmp_path, config, changed_head(device=device), "join")
    assert files.read_summary()["device"] == "cpu, unknown"


KRR = {"round": 1, "mechanism": "krr", "count": 60, "epsilon": 0.1}


@pytest.mark.parametrize(
    "ledger",
    [
        *("abc", 3, {"a": 1}, [[1]], [{}]),
        *([{**KRR, "count": count}] for count in (-5, 10**400, "x", True, None)),
        *([{**KRR, "epsilon": epsilon}] for epsilon in (-1.0, 1e308, "x", [1])),
        *([{**KRR, "mechanism": name}] for name in (3, "a\nb")),
        [{**KRR, "round": "1"}],
    ],
)
def test_a_ledger_that_is_none_ends_the_run_in_one_line(ledger, shards, tmp_path):
    config = configured(shards, "fedct", tmp_path, *SPARING, "train.rounds=1")
    with pytest.raises(RunFailedError, match=r"client 1 answers nonsense \(finish\): look at its site"):
        spoilt_run(shards, tmp_path, config, changed_head(ledger=ledger), "finish")


def test_a_ledger_of_very_many_rounds_arrives(shards, tmp_path):
    config = configured(shards, "fedct", tmp_path, *SPARING, "train.rounds=1")
    ledger = [{**KRR, "round": number} for number in range(1, 5001)]
    files = spoilt_run(shards, tmp_path, config, changed_head(ledger=ledger), "finish")
    assert files.read_summary()["privacy"]["rounds"] == 5000


def with_weights(change):
    def changed(answer):
        letter = protocol.decode_protocol_message(answer)
        kind, data = letter.parts["model"]
        return protocol.encode_protocol_message(
            ProtocolMessage(letter.header, {"model": (kind, save(change(load(data))))})
        )

    return changed


MODELS = {
    "no numbers": (with_weights(lambda m: {n: torch.full_like(t, torch.nan) for n, t in m.items()}), "not_finite"),
    "as good as infinite": (with_weights(lambda m: {n: torch.full_like(t, 1e30) for n, t in m.items()}), "not_finite"),
    "other names": (with_weights(lambda m: {f"{n}x": t for n, t in m.items()}), "wrong_names"),
    "too few": (with_weights(lambda m: dict(list(m.items())[1:])), "wrong_names"),
    "another shape": (with_weights(lambda m: {n: t[None] for n, t in m.items()}), "wrong_shape"),
    "another type": (with_weights(lambda m: {n: t.double() for n, t in m.items()}), "wrong_shape"),
}


@pytest.mark.parametrize("lie", MODELS)
def test_a_model_that_is_none_is_not_averaged(lie, shards, tmp_path):
    change, reason = MODELS[lie]
    config, sites = configured(shards, "fedavg", tmp_path), Sites(shards, tmp_path)
    sites.spoil = lambda c, letter, answer: change(answer) if c == 1 and asked(letter, "turn", 2) else answer
    files = play(config, shards, tmp_path / "run", sites)
    assert rows_of(files, 2)[1]["lost"] == reason


def join(site, planned, /, **changes):
    head = {"kind": "join", "run": f"toy/{planned.method.variant}/seed-0/0123456789abcdef", "version": __version__}
    plan = {"config": planned.to_dict(), "shards": site.shard.shards.digest}
    return protocol.decode_protocol_message(
        site.handle_request(protocol.encode_protocol_message(ProtocolMessage({**head, **plan, **changes})))
    ).header


@pytest.mark.parametrize(
    ("sharing", "method", "joins"),
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
def test_a_site_shares_what_its_people_agreed_to_and_no_more(sharing, method, joins, shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy(sharing)).sites[0]
    answer = join(site, configured(shards, method, tmp_path))
    assert answer["kind"] == ("join" if joins else "error")
    if not joins:
        assert answer["error"] == "refused"
        assert f"this site shares {sharing}" in answer["text"]
        assert not list((tmp_path / "site-0").rglob("plan.json"))


def test_a_site_refuses_noise_that_lets_through_more_than_it_allows(shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy("labels", max_epsilon=8)).sites[0]
    for privacy, joins in (((), False), (("privacy.epsilon=8", "privacy.labels=krr"), True)):
        config = configured(shards, "fedct", tmp_path, *privacy)
        assert (join(site, config)["kind"] == "join") is joins
    more = configured(shards, "fedct", tmp_path, "privacy.epsilon=9", "privacy.labels=krr")
    assert "this site allows 8" in join(site, more)["text"]


def turn(site, planned, number):
    head = {"kind": "turn", "run": f"toy/{planned.method.variant}/seed-0/0123456789abcdef", "round": number}
    return protocol.decode_protocol_message(
        site.handle_request(protocol.encode_protocol_message(ProtocolMessage(head)))
    ).header


def test_nothing_is_told_beyond_the_rounds_that_were_planned(shards, tmp_path):
    site, config = Sites(shards, tmp_path).sites[0], configured(shards, "fedct", tmp_path, *SPARING)
    join(site, config)
    assert [turn(site, config, number)["kind"] for number in (1, 2, 3)] == ["turn", "turn", "error"]
    assert "none of the 2 that are planned" in turn(site, config, 3)["text"]


def test_what_was_spent_counts_when_a_run_is_planned_anew(shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy("labels", max_epsilon=8)).sites[0]
    config = configured(shards, "fedct", tmp_path, *SPARING)
    join(site, config)
    assert [turn(site, config, number)["kind"] for number in (1, 2)] == ["turn", "turn"]
    assert join(site, configured(shards, "fedct", tmp_path, *SPARING, "train.rounds=40"))["kind"] == "join"
    assert "above the limit of 8" in turn(site, config, 3)["text"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("privacy.delta=0.99",), "delta 0.99 is not below 1/"),
        (("privacy.unit=record-assumed", "privacy.changed_rows=1"), "is that of a record"),
    ],
)
def test_an_epsilon_that_only_looks_small_is_refused(more, words, shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy("labels", max_epsilon=8)).sites[0]
    assert words in join(site, configured(shards, "fedct", tmp_path, *SPARING, *more))["text"]


@pytest.mark.parametrize("noise", [True, False])
def test_noise_is_not_drawn_twice_where_a_disk_forgot_what_was_said(noise, shards, tmp_path):
    sites = Sites(shards, tmp_path)
    config = configured(shards, "fedct", tmp_path, *(SPARING if noise else SPARING[:1]))
    join(sites.sites[0], config)
    for number in (1, 2):
        assert turn(sites.sites[0], config, number)["kind"] == "turn"
    [state] = tmp_path.rglob("round-00002/state.json")
    state.write_bytes(b"damaged")
    sites.restart(0)
    answers = [turn(sites.sites[0], config, 2) for _ in range(2)]
    assert [answer["kind"] for answer in answers] == (["error"] * 2 if noise else ["turn"] * 2)
    assert not noise or "checkpoint file is damaged" in answers[0]["text"]


def test_a_plan_that_lies_about_the_public_set_is_refused(shards, tmp_path):
    """Else the budget of one label would be given to each of many."""
    site, config = Sites(shards, tmp_path).sites[0], configured(shards, "fedct", tmp_path, *SPARING)
    content = config.to_dict()
    content["data"]["public_size"] = 1
    assert "other data than this site's" in join(site, config, config=content)["text"]


def test_people_who_change_their_minds_are_heard_in_runs_that_were_begun(shards, tmp_path):
    sites, config = Sites(shards, tmp_path, SitePolicy("models")), configured(shards, "fedavg", tmp_path)
    assert join(sites.sites[0], config)["kind"] == "join"
    sites.policy = SitePolicy("labels")
    sites.restart(0)
    assert "this site shares labels" in turn(sites.sites[0], config, 1)["text"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "0.0.1"}, "use the same"),
        ({"shards": "0" * 64}, "other shards"),
        ({"run": "../../../../etc/cron.d/x"}, "not used"),
        ({"run": "toy/fedct/seed-0/../../../../x"}, "not used"),
        ({"run": "/toy/fedct/seed-0/0123456789abcdef"}, "not used"),
        ({"run": None}, "not used"),
        ({"config": None}, "no configuration"),
        ({"config": {"data": 3}}, "this is not a run"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_nothing_is_written(changes, words, shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    answer = join(site, configured(shards, "fedct", tmp_path), **changes)
    assert answer["kind"] == "error"
    assert words in answer["text"]
    assert not list(tmp_path.rglob("plan.json"))


def test_a_plan_of_pooled_data_or_of_attacks_is_refused(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    for method, more in (("centralized", ()), ("fedct", ("attack.kind=flip", "attack.clients=[1]"))):
        assert "for one process" in join(site, configured(shards, method, tmp_path, *more))["text"]


def test_one_site_that_refuses_ends_the_run_before_it_begins(shards, tmp_path):
    sites = Sites(shards, tmp_path, SitePolicy("labels"))
    with pytest.raises(RequestError, match=r"the site of client \d refuses, refused: FedAvg would send model"):
        play(configured(shards, "fedavg", tmp_path), shards, tmp_path / "run", sites)


def test_a_site_that_did_not_join_plays_nothing(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    head = {"kind": "turn", "run": "toy/fedct/seed-0/0123456789abcdef", "round": 1}
    answer = protocol.decode_protocol_message(
        site.handle_request(protocol.encode_protocol_message(ProtocolMessage(head)))
    ).header
    assert "has not joined" in answer["text"]


@given(st.binary(max_size=300))
def test_a_site_has_an_answer_to_anything(shards, tmp_path_factory, data):
    site = Sites(shards, tmp_path_factory.getbasetemp()).sites[0]
    assert protocol.decode_protocol_message(site.handle_request(data)).header["kind"] == "error"


HEADS = st.dictionaries(
    st.sampled_from(["kind", "run", "round", "config", "shards", "version", "parts", "known"]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(max_size=5),
        st.just("turn"),
        st.just("join"),
        st.lists(st.integers(), max_size=2),
    ),
)


@given(HEADS)
def test_a_site_has_an_answer_to_any_head(shards, tmp_path_factory, head):
    site = Sites(shards, tmp_path_factory.getbasetemp()).sites[0]
    body = protocol.compress_header(json.dumps(head).encode())
    data = protocol.PREAMBLE.pack(protocol.MAGIC, protocol.PROTOCOL_VERSION, len(body)) + body
    assert (
        protocol.decode_protocol_message(site.handle_request(data + protocol.protocol_checksum(data))).header["kind"]
        == "error"
    )


PARTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(protocol.PART_KINDS), st.binary(max_size=50)),
    max_size=3,
)


@given(PARTS)
def test_a_letter_is_read_as_it_was_written(parts):
    letter = ProtocolMessage({"kind": "turn", "round": 3}, parts)
    assert protocol.decode_protocol_message(protocol.encode_protocol_message(letter)) == letter


@given(PARTS, st.data())
def test_any_flipped_bit_is_found(parts, data):
    written = bytearray(protocol.encode_protocol_message(ProtocolMessage({"kind": "turn"}, parts)))
    place = data.draw(st.integers(0, 8 * len(written) - 1))
    written[place // 8] ^= 1 << place % 8
    with pytest.raises(ProtocolError):
        protocol.decode_protocol_message(bytes(written))


@pytest.mark.parametrize(
    "head", [b"", b"{}" * 9, b"\xff" * 40, protocol.compress_header(b"[1]"), protocol.compress_header(b" " * (1 << 21))]
)
def test_a_head_that_is_none_or_grows_without_end_is_refused(head):
    data = protocol.PREAMBLE.pack(protocol.MAGIC, protocol.PROTOCOL_VERSION, len(head)) + head
    with pytest.raises(ProtocolError, match="bad_head"):
        protocol.decode_protocol_message(data + protocol.protocol_checksum(data))


def test_a_shard_of_other_shards_or_a_changed_one_is_refused(shards, tmp_path):
    import shutil

    carried = tmp_path / "carried"
    carried.mkdir()
    for name in ("manifest.json", "public.npz", "client-001.npz"):
        shutil.copy(shards.path / name, carried)
    assert load_site_shard(carried / "client-001.npz").client_id == 1
    shutil.copy(shards.path / "client-000.npz", carried / "client-001.npz")
    with pytest.raises(RequestError, match="damaged"):
        load_site_shard(carried / "client-001.npz")
    shutil.copy(shards.path / "client-000.npz", carried / "client-007.npz")
    with pytest.raises(RequestError, match="knows of 3 clients, not of client 7"):
        load_site_shard(carried / "client-007.npz")
    with pytest.raises(RequestError, match="no shard of a client"):
        load_site_shard(carried / "client-002.npz")
