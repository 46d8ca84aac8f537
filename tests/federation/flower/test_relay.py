"""The relay beside the SuperLink, with nodes that are made up: what one of them answers does not concern the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmosaic_cli.federation.flower.flower_messages import INVALID_REPLY
from fedmosaic_cli.federation.flower.ipc import decode_frame

# Elsewhere Flower is imported in processes of its own alone: what it warns of there is not our concern, nor here.
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def answer(number, records):
    content = SimpleNamespace(config_records=records)
    metadata = SimpleNamespace(reply_to_message_id=f"message-{number}")
    return SimpleNamespace(content=content, metadata=metadata, has_error=lambda: False)


@pytest.mark.parametrize("records", [{}, {"r": {}}, {"r": {"v": "text"}}, {"r": {"v": 3}}])
def test_an_answer_without_bytes_is_that_node_s_alone(records):
    from fedmosaic_cli.federation.flower.relay_serverapp import OnlineNode, Relay

    said: list[bytes] = []
    replies = [answer(0, records), answer(1, {"r": {"v": b"fine"}})]
    relay = Relay(SimpleNamespace(pull_messages=lambda names: replies), SimpleNamespace(send_bytes=said.append))
    relay._pending = {
        f"message-{number}": (number, OnlineNode(f"client-00{number}", number, "now")) for number in (0, 1)
    }
    relay._collect_replies()
    assert [decode_frame(frame) for frame in said] == [
        ({"error": 0, "code": INVALID_REPLY, "reason": "the node answered without bytes"}, b""),
        ({"reply": 1, "name": "client-001"}, b"fine"),
    ]
