"""The relay beside the SuperLink, with fake nodes: an invalid reply of one node does not affect the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmosaic_cli.federation.flower.flower_messages import INVALID_REPLY
from fedmosaic_cli.federation.flower.ipc import decode_frame

# Elsewhere only Flower's own processes import Flower: its warnings do not concern this package.
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def reply(number, records):
    content = SimpleNamespace(config_records=records)
    metadata = SimpleNamespace(reply_to_message_id=f"message-{number}")
    return SimpleNamespace(content=content, metadata=metadata, has_error=lambda: False)


@pytest.mark.parametrize("records", [{}, {"r": {}}, {"r": {"v": "text"}}, {"r": {"v": 3}}])
def test_a_reply_without_bytes_is_an_error_of_that_node_only(records):
    from fedmosaic_cli.federation.flower.relay_serverapp import OnlineNode, Relay

    sent: list[bytes] = []
    replies = [reply(0, records), reply(1, {"r": {"v": b"fine"}})]
    relay = Relay(SimpleNamespace(pull_messages=lambda names: replies), SimpleNamespace(send_bytes=sent.append))
    relay._pending = {
        f"message-{number}": (number, OnlineNode(f"client-00{number}", number, "now")) for number in (0, 1)
    }
    relay._collect_replies()
    assert [decode_frame(frame) for frame in sent] == [
        ({"error": 0, "code": INVALID_REPLY, "reason": "the node replied without bytes"}, b""),
        ({"reply": 1, "name": "client-001"}, b"fine"),
    ]


def test_a_reply_above_the_limit_is_an_error_of_that_node_only(monkeypatch):
    """The coordinator would restart the relay if it received such a frame."""
    from fedmosaic_cli.federation.flower import relay_serverapp

    monkeypatch.setattr(relay_serverapp, "MAX_MESSAGE_BYTES", 10)
    sent: list[bytes] = []
    replies = [reply(0, {"r": {"v": bytes(11)}}), reply(1, {"r": {"v": bytes(10)}})]
    grid = SimpleNamespace(pull_messages=lambda names: replies)
    relay = relay_serverapp.Relay(grid, SimpleNamespace(send_bytes=sent.append))
    relay._pending = {
        f"message-{number}": (number, relay_serverapp.OnlineNode(f"client-00{number}", number, "now"))
        for number in (0, 1)
    }
    relay._collect_replies()
    assert [decode_frame(frame) for frame in sent] == [
        ({"error": 0, "code": INVALID_REPLY, "reason": "the reply is too large"}, b""),
        ({"reply": 1, "name": "client-001"}, bytes(10)),
    ]
