"""The inbox of label uploads: order, duplicates, damage, wrong senders, late and missing messages."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.attacks import AttackContext, LabelAttack, UploadDelivery
from fedmosaic_cli.labels.inbox import ABSTAINED, ACCEPTED, MISSING, LabelInbox
from fedmosaic_cli.labels.label_settings import AttackSettings, DefenceSettings
from fedmosaic_cli.labels.label_upload_filter import CollectedUploads, receive_uploads
from fedmosaic_cli.labels.sharing import with_label_sharing
from fedmosaic_cli.labels.voting import Ballot, aggregate_votes
from fedmosaic_cli.labels.wire import SERVER_ID, ExpertiseEncoding, LabelEncoding, LabelMessageKind, MessageSpec
from tests.labels.ballots import PUBLIC, ROUND, RUN, encode_upload, expected, make_header
from tests.labels.test_wire import mutated

CLIENTS, SIZE, CLASSES = 5, 9, 3
SPEC = MessageSpec(SIZE, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS)
FLOAT_SPEC = MessageSpec(SIZE, CLASSES, expertise_encoding=ExpertiseEncoding.FLOATS)


def client_upload(client: int, number: int = ROUND, spec: MessageSpec = SPEC) -> bytes:
    """Return the upload of a client in a round; it is deterministic."""
    rng = np.random.default_rng((client, number))
    return encode_upload(spec, rng.integers(0, CLASSES, SIZE), rng.random(SIZE), client, number)


UPLOADS = {client: client_upload(client) for client in range(CLIENTS)}
OTHER = encode_upload(SPEC, np.zeros(SIZE, dtype=int), np.full(SIZE, 0.3))
ABSTENTION = encode_upload(SPEC, np.zeros(SIZE, dtype=int), np.zeros(SIZE))
DAMAGED = UPLOADS[0][:-1] + bytes([UPLOADS[0][-1] ^ 1])
STALE, FUTURE = client_upload(0, ROUND - 1), client_upload(0, ROUND + 1)
INVALID = wire.encode_message(make_header(0), SPEC, b"\xff" * SPEC.payload_bytes)


def inbox_with(*arrivals: tuple[int, bytes], spec: MessageSpec = SPEC) -> LabelInbox:
    inbox = LabelInbox(expected(spec, range(CLIENTS)))
    for sender, data in arrivals:
        inbox.receive(sender, data)
    return inbox


def consensus_bytes(ballots: list[Ballot]) -> bytes:
    """Return the encoded consensus, in an encoding that allows missing labels."""
    spec = MessageSpec(SIZE, CLASSES, LabelMessageKind.CONSENSUS, LabelEncoding.MASKED)
    labels = aggregate_votes(ballots).labels if ballots else np.full(SIZE, -1)
    return wire.encode_consensus_labels(make_header(SERVER_ID), spec, labels)


def without(*clients: int) -> list[Ballot]:
    """Return the ballots of all other clients."""
    return [Ballot(client, data, SPEC) for client, data in UPLOADS.items() if client not in clients]


# Order of arrival.


def test_order_of_arrival_does_not_change_ballots_or_consensus():
    for order in permutations(UPLOADS.items()):
        ballots = inbox_with(*order).accepted_ballots()
        assert ballots == without()
        assert consensus_bytes(ballots) == consensus_bytes(without())


ARRIVALS = [
    *UPLOADS.items(),
    *((0, data) for data in (UPLOADS[0], OTHER, ABSTENTION, DAMAGED, STALE, FUTURE, INVALID, b"", b"hello")),
    *((1, data) for data in (UPLOADS[1], UPLOADS[0], UPLOADS[1][:50])),
    (2, encode_upload(SPEC, np.zeros(SIZE, dtype=int), np.zeros(SIZE), client=2)),
    (99, UPLOADS[3]),
    (99, client_upload(99)),
]


@settings(max_examples=250)
@given(st.lists(st.sampled_from(ARRIVALS), max_size=12), st.randoms(use_true_random=False))
def test_order_of_arbitrary_messages_does_not_matter(arrivals, random):
    shuffled = random.sample(arrivals, len(arrivals))
    one, other = inbox_with(*arrivals), inbox_with(*shuffled)
    assert one.accepted_ballots() == other.accepted_ballots()
    assert consensus_bytes(one.accepted_ballots()) == consensus_bytes(other.accepted_ballots())
    assert (one.num_received, one.num_valid) == (other.num_received, other.num_valid) == (len(arrivals), one.num_valid)
    assert all((one.status(c) == "duplicate") == (other.status(c) == "duplicate") for c in range(CLIENTS))


# Duplicates.


def test_repeated_message_counts_once():
    inbox = inbox_with((0, UPLOADS[0]), (0, UPLOADS[0]), (0, bytes(bytearray(UPLOADS[0]))))
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [0]
    assert (inbox.num_received, inbox.num_valid, dict(inbox.rejection_counts)) == (3, 1, {})


@pytest.mark.parametrize("second", [OTHER, ABSTENTION, INVALID], ids=["other", "abstention", "invalid payload"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("after", [[], [UPLOADS[0]], [DAMAGED], [STALE, b""]], ids=range(4))
def test_two_different_messages_are_rejected_as_duplicates(second, reverse, after):
    both = [UPLOADS[0], second]
    inbox = inbox_with(*((0, data) for data in [*(both[::-1] if reverse else both), *after]), (1, UPLOADS[1]))
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [1]
    assert inbox.status(0) == "duplicate"
    assert inbox.rejection_counts["duplicate"] >= 1
    assert inbox.num_valid == 1


# Damaged messages and wrong senders.


@pytest.mark.parametrize("damaged", [DAMAGED, b"", UPLOADS[0][:60], UPLOADS[0] + b"!", STALE, FUTURE], ids=range(6))
def test_damaged_or_mistimed_message_can_be_sent_again(damaged):
    assert inbox_with((0, damaged)).status(0) not in (ACCEPTED, MISSING)
    for arrivals in [damaged, UPLOADS[0]], [UPLOADS[0], damaged]:
        inbox = inbox_with(*((0, data) for data in arrivals))
        assert inbox.status(0) == ACCEPTED
        assert inbox.accepted_ballots() == [Ballot(0, UPLOADS[0], SPEC)]
        assert inbox.rejection_counts.total() == 1


def test_client_cannot_send_for_another_client():
    inbox = inbox_with((1, UPLOADS[0]))
    assert (inbox.status(0), inbox.status(1)) == (MISSING, "unknown_client")
    inbox.receive(0, UPLOADS[0])
    inbox.receive(1, UPLOADS[1])
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [0, 1], (
        "a forged message affects neither client"
    )
    inbox.receive(2, OTHER)
    assert inbox.status(0) == ACCEPTED


def test_unknown_clients_cannot_vote():
    inbox = inbox_with((99, client_upload(99)), (SERVER_ID, client_upload(SERVER_ID)))
    assert inbox.accepted_ballots() == []
    assert dict(inbox.rejection_counts) == {"unknown_client": 2}


def test_all_messages_are_counted():
    abstention = encode_upload(SPEC, np.zeros(SIZE, dtype=int), np.zeros(SIZE), client=3)
    inbox = inbox_with(
        (0, STALE), (0, FUTURE), (0, UPLOADS[0]), (1, DAMAGED), (1, b""), (2, INVALID), (3, abstention), (99, b"x")
    )
    assert inbox.num_received == 8
    assert dict(inbox.rejection_counts) == {
        "stale_round": 1,
        "future_round": 1,
        "checksum": 1,
        "truncated": 1,
        "unknown_client": 1,
        "bad_magic": 1,
    }
    assert (inbox.count_status(ACCEPTED), inbox.count_status(ABSTAINED), inbox.num_valid) == (1, 1, 2)
    assert [inbox.status(client) for client in range(CLIENTS)] == [
        *(ACCEPTED, "truncated", "unknown_client", ABSTAINED, MISSING)
    ]
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [0], "an abstention is not a ballot"


def test_no_message_can_stop_the_server():
    rng = np.random.default_rng(0)
    for number in range(3000):
        inbox = inbox_with((0, mutated(UPLOADS[0], rng)), (0, mutated(UPLOADS[0], rng)), *UPLOADS.items())
        assert [ballot.client_id for ballot in inbox.accepted_ballots()][-4:] == [1, 2, 3, 4], number
        assert inbox.num_received == 7


# One round.


def collect(*deliveries: UploadDelivery, spec: MessageSpec = SPEC, **defence: int) -> CollectedUploads:
    ctx = FederationInfo(CLASSES, {}, {}, 9, run_id=RUN, public_set_id=PUBLIC, public_size=SIZE)
    ctx = with_label_sharing(ctx, defence=DefenceSettings(**defence))
    return receive_uploads(deliveries, spec, ctx, ROUND, list(range(CLIENTS)))


def deliveries_of(*clients: int, late: bool = False) -> list[UploadDelivery]:
    return [UploadDelivery(client, UPLOADS[client], late) for client in clients]


def test_late_messages_are_ignored_if_more_than_half_are_on_time():
    collected = collect(*deliveries_of(4, 0, 2), *deliveries_of(1, late=True))
    assert collected.ballots == without(1, 3)
    assert collected.round_metrics == {"received": 3, "accepted": 3, "abstained": 0, "late": 1, "rejected": {}}
    assert [collected.client_metrics[client]["message"] for client in range(CLIENTS)] == [
        *("accepted", "late", "accepted", "missing", "accepted")
    ]


def test_too_few_messages_on_time_include_late_ones():
    collected = collect(*deliveries_of(4), *deliveries_of(1, 0, late=True))
    assert collected.ballots == without(2, 3)
    assert collected.round_metrics["retried"] == 1
    assert "degraded" not in collected.round_metrics
    assert collected.client_metrics[1] == {"message": "accepted"}


def test_round_with_too_few_messages_is_degraded():
    collected = collect(*deliveries_of(4), *deliveries_of(1, late=True))
    assert collected.ballots == []
    metrics = collected.round_metrics
    assert (metrics["retried"], metrics["degraded"], metrics["accepted"]) == (1, 1, 2)
    assert collect().round_metrics["degraded"] == 1


def test_min_clients_is_configurable():
    assert collect(*deliveries_of(3), min_clients=1).ballots == without(0, 1, 2, 4)
    assert collect(*deliveries_of(0, 1, 2, 3), min_clients=5).ballots == []


def test_abstentions_count_towards_the_minimum():
    abstentions = [UploadDelivery(c, encode_upload(SPEC, np.zeros(SIZE, dtype=int), np.zeros(SIZE), c)) for c in (1, 2)]
    collected = collect(*abstentions, *deliveries_of(0))
    assert "degraded" not in collected.round_metrics
    assert collected.ballots == without(1, 2, 3, 4)
    assert collected.round_metrics["abstained"] == 2


def test_late_message_of_an_unknown_client_is_ignored():
    collected = collect(*deliveries_of(0, 1, 2), UploadDelivery(99, b"", is_late=True))
    assert collected.ballots == without(3, 4)
    assert 99 not in collected.client_metrics


# Rejected messages equal missing messages.


def attack_context(uploads: dict[int, bytes]) -> AttackContext:
    return AttackContext(ROUND, uploads, {0: client_upload(0, ROUND - 1), 1: client_upload(1, ROUND - 1)}, None)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["malformed", "replay"])
def test_rejected_messages_equal_missing_messages(kind, seed):
    attack = AttackSettings(kind=kind, clients=(0, 1))
    sent = LabelAttack(attack, SPEC, seed).delivered_uploads(attack_context(UPLOADS))
    collected, absent = collect(*sent), collect(*deliveries_of(2, 3, 4))
    assert {delivery.sender_id for delivery in sent} == set(range(CLIENTS))
    assert collected.ballots == absent.ballots
    assert consensus_bytes(collected.ballots) == consensus_bytes(absent.ballots)
    assert sum(collected.round_metrics["rejected"].values()) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 1.5, 3e38])
def test_invalid_expertise_is_not_used(value):
    honest = [UploadDelivery(client, client_upload(client, spec=FLOAT_SPEC)) for client in range(1, CLIENTS)]
    expertise = np.full(SIZE, 0.5)
    expertise[4] = value
    collected = collect(
        UploadDelivery(0, encode_upload(FLOAT_SPEC, np.zeros(SIZE, dtype=int), expertise)), *honest, spec=FLOAT_SPEC
    )
    assert collected.ballots == collect(*honest, spec=FLOAT_SPEC).ballots
    assert collected.client_metrics[0]["message"] in ("expertise_nonfinite", "expertise_range")
