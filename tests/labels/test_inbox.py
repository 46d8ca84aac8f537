"""Where opinions arrive: in any order, twice, damaged, from somebody else, too late, or not at all."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.engine.method import FederationInfo
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
FORM = MessageSpec(SIZE, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS)
FLOATS = MessageSpec(SIZE, CLASSES, expertise_encoding=ExpertiseEncoding.FLOATS)


def said_by(client: int, number: int = ROUND, form: MessageSpec = FORM) -> bytes:
    """What a client has to say in a round; always the same."""
    rng = np.random.default_rng((client, number))
    return encode_upload(form, rng.integers(0, CLASSES, SIZE), rng.random(SIZE), client, number)


OPINIONS = {client: said_by(client) for client in range(CLIENTS)}
OTHER = encode_upload(FORM, np.zeros(SIZE, dtype=int), np.full(SIZE, 0.3))
SILENT = encode_upload(FORM, np.zeros(SIZE, dtype=int), np.zeros(SIZE))
DAMAGED = OPINIONS[0][:-1] + bytes([OPINIONS[0][-1] ^ 1])
STALE, FUTURE = said_by(0, ROUND - 1), said_by(0, ROUND + 1)
MEANT_ILL = wire.encode_message(make_header(0), FORM, b"\xff" * FORM.payload_bytes)


def inbox_with(*arrivals: tuple[int, bytes], form: MessageSpec = FORM) -> LabelInbox:
    inbox = LabelInbox(expected(form, range(CLIENTS)))
    for sender, data in arrivals:
        inbox.receive(sender, data)
    return inbox


def consensus_bytes(ballots: list[Ballot]) -> bytes:
    """What the server would send, with room for rows without a label."""
    form = MessageSpec(SIZE, CLASSES, LabelMessageKind.CONSENSUS, LabelEncoding.MASKED)
    labels = aggregate_votes(ballots).labels if ballots else np.full(SIZE, -1)
    return wire.encode_consensus_labels(make_header(SERVER_ID), form, labels)


def without(*clients: int) -> list[Ballot]:
    """The ballots of all others."""
    return [Ballot(client, data, FORM) for client, data in OPINIONS.items() if client not in clients]


# In any order.


def test_every_order_of_arrival_gives_the_same_ballots_and_the_same_consensus():
    for order in permutations(OPINIONS.items()):
        ballots = inbox_with(*order).accepted_ballots()
        assert ballots == without()
        assert consensus_bytes(ballots) == consensus_bytes(without())


ARRIVALS = [
    *OPINIONS.items(),
    *((0, data) for data in (OPINIONS[0], OTHER, SILENT, DAMAGED, STALE, FUTURE, MEANT_ILL, b"", b"hello")),
    *((1, data) for data in (OPINIONS[1], OPINIONS[0], OPINIONS[1][:50])),
    (2, encode_upload(FORM, np.zeros(SIZE, dtype=int), np.zeros(SIZE), client=2)),
    (99, OPINIONS[3]),
    (99, said_by(99)),
]


@settings(max_examples=1000)
@given(st.lists(st.sampled_from(ARRIVALS), max_size=12), st.randoms(use_true_random=False))
def test_whatever_arrives_its_order_does_not_matter(came, random):
    shuffled = random.sample(came, len(came))
    one, other = inbox_with(*came), inbox_with(*shuffled)
    assert one.accepted_ballots() == other.accepted_ballots()
    assert consensus_bytes(one.accepted_ballots()) == consensus_bytes(other.accepted_ballots())
    assert (one.num_received, one.num_valid) == (other.num_received, other.num_valid) == (len(came), one.num_valid)
    assert all((one.status(c) == "duplicate") == (other.status(c) == "duplicate") for c in range(CLIENTS))


# Twice.


def test_the_same_message_twice_is_one():
    inbox = inbox_with((0, OPINIONS[0]), (0, OPINIONS[0]), (0, bytes(bytearray(OPINIONS[0]))))
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [0]
    assert (inbox.num_received, inbox.num_valid, dict(inbox.rejection_counts)) == (3, 1, {})


@pytest.mark.parametrize("second", [OTHER, SILENT, MEANT_ILL], ids=["other", "silent", "meant ill"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("after", [[], [OPINIONS[0]], [DAMAGED], [STALE, b""]], ids=range(4))
def test_two_different_messages_are_none_and_their_sender_stays_flagged(second, turned, after):
    both = [OPINIONS[0], second]
    inbox = inbox_with(*((0, data) for data in [*(both[::-1] if turned else both), *after]), (1, OPINIONS[1]))
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [1]
    assert inbox.status(0) == "duplicate"
    assert inbox.rejection_counts["duplicate"] >= 1
    assert inbox.num_valid == 1


# Damaged, or meant for somebody else.


@pytest.mark.parametrize("damaged", [DAMAGED, b"", OPINIONS[0][:60], OPINIONS[0] + b"!", STALE, FUTURE], ids=range(6))
def test_what_came_damaged_or_out_of_time_may_come_again(damaged):
    assert inbox_with((0, damaged)).status(0) not in (ACCEPTED, MISSING)
    for arrivals in [damaged, OPINIONS[0]], [OPINIONS[0], damaged]:
        inbox = inbox_with(*((0, data) for data in arrivals))
        assert inbox.status(0) == ACCEPTED
        assert inbox.accepted_ballots() == [Ballot(0, OPINIONS[0], FORM)]
        assert inbox.rejection_counts.total() == 1


def test_nobody_speaks_for_somebody_else():
    inbox = inbox_with((1, OPINIONS[0]))
    assert (inbox.status(0), inbox.status(1)) == (MISSING, "unknown_client")
    inbox.receive(0, OPINIONS[0])
    inbox.receive(1, OPINIONS[1])
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [0, 1], "neither suffers for what was tried"
    inbox.receive(2, OTHER)
    assert inbox.status(0) == ACCEPTED


def test_strangers_do_not_vote():
    inbox = inbox_with((99, said_by(99)), (SERVER_ID, said_by(SERVER_ID)))
    assert inbox.accepted_ballots() == []
    assert dict(inbox.rejection_counts) == {"unknown_client": 2}


def test_everything_is_counted():
    silent = encode_upload(FORM, np.zeros(SIZE, dtype=int), np.zeros(SIZE), client=3)
    inbox = inbox_with(
        (0, STALE), (0, FUTURE), (0, OPINIONS[0]), (1, DAMAGED), (1, b""), (2, MEANT_ILL), (3, silent), (99, b"x")
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
    assert [ballot.client_id for ballot in inbox.accepted_ballots()] == [0], "to abstain is not to vote"


def test_nothing_that_arrives_can_stop_the_server():
    rng = np.random.default_rng(0)
    for number in range(3000):
        inbox = inbox_with((0, mutated(OPINIONS[0], rng)), (0, mutated(OPINIONS[0], rng)), *OPINIONS.items())
        assert [ballot.client_id for ballot in inbox.accepted_ballots()][-4:] == [1, 2, 3, 4], number
        assert inbox.num_received == 7


# A whole round.


def gathered(*deliveries: UploadDelivery, form: MessageSpec = FORM, **defence: int) -> CollectedUploads:
    ctx = FederationInfo(CLASSES, {}, {}, 9, run_id=RUN, public_set_id=PUBLIC, public_size=SIZE)
    ctx = with_label_sharing(ctx, defence=DefenceSettings(**defence))
    return receive_uploads(deliveries, form, ctx, ROUND, list(range(CLIENTS)))


def delivered(*clients: int, late: bool = False) -> list[UploadDelivery]:
    return [UploadDelivery(client, OPINIONS[client], late) for client in clients]


def test_more_than_half_are_enough_and_late_ones_do_not_count_then():
    found = gathered(*delivered(4, 0, 2), *delivered(1, late=True))
    assert found.ballots == without(1, 3)
    assert found.round_metrics == {"received": 3, "accepted": 3, "abstained": 0, "late": 1, "rejected": {}}
    assert [found.client_metrics[client]["message"] for client in range(CLIENTS)] == [
        *("accepted", "late", "accepted", "missing", "accepted")
    ]


def test_too_few_wait_for_the_late_ones():
    found = gathered(*delivered(4), *delivered(1, 0, late=True))
    assert found.ballots == without(2, 3)
    assert found.round_metrics["retried"] == 1
    assert "degraded" not in found.round_metrics
    assert found.client_metrics[1] == {"message": "accepted"}


def test_a_round_with_too_few_even_then_is_degraded():
    found = gathered(*delivered(4), *delivered(1, late=True))
    assert found.ballots == []
    assert (found.round_metrics["retried"], found.round_metrics["degraded"], found.round_metrics["accepted"]) == (
        1,
        1,
        2,
    )
    assert gathered().round_metrics["degraded"] == 1


def test_how_many_are_enough_can_be_asked_for():
    assert gathered(*delivered(3), min_clients=1).ballots == without(0, 1, 2, 4)
    assert gathered(*delivered(0, 1, 2, 3), min_clients=5).ballots == []


def test_to_abstain_is_to_take_part():
    silent = [UploadDelivery(c, encode_upload(FORM, np.zeros(SIZE, dtype=int), np.zeros(SIZE), c)) for c in (1, 2)]
    found = gathered(*silent, *delivered(0))
    assert "degraded" not in found.round_metrics
    assert found.ballots == without(1, 2, 3, 4)
    assert found.round_metrics["abstained"] == 2


def test_a_stranger_who_is_late_stops_nobody():
    found = gathered(*delivered(0, 1, 2), UploadDelivery(99, b"", is_late=True))
    assert found.ballots == without(3, 4)
    assert 99 not in found.client_metrics


# As if they were not there.


def scene_of(opinions: dict[int, bytes]) -> AttackContext:
    return AttackContext(ROUND, opinions, {0: said_by(0, ROUND - 1), 1: said_by(1, ROUND - 1)}, None)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["malformed", "replay"])
def test_who_sends_what_is_refused_might_as_well_not_be_there(kind, seed):
    settings_ = AttackSettings(kind=kind, clients=(0, 1))
    sent = LabelAttack(settings_, FORM, seed).delivered_uploads(scene_of(OPINIONS))
    found, absent = gathered(*sent), gathered(*delivered(2, 3, 4))
    assert {delivery.sender_id for delivery in sent} == set(range(CLIENTS))
    assert found.ballots == absent.ballots
    assert consensus_bytes(found.ballots) == consensus_bytes(absent.ballots)
    assert sum(found.round_metrics["rejected"].values()) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 1.5, 3e38])
def test_numbers_that_are_none_reach_nobody(value):
    honest = [UploadDelivery(client, said_by(client, form=FLOATS)) for client in range(1, CLIENTS)]
    expertise = np.full(SIZE, 0.5)
    expertise[4] = value
    found = gathered(
        UploadDelivery(0, encode_upload(FLOATS, np.zeros(SIZE, dtype=int), expertise)), *honest, form=FLOATS
    )
    assert found.ballots == gathered(*honest, form=FLOATS).ballots
    assert found.client_metrics[0]["message"] in ("expertise_nonfinite", "expertise_range")
