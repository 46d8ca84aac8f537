"""What Flower transmits for us: node names, payloads in Flower messages, and Flower's error codes.

A payload is the only value of one `ConfigRecord`. That adds about 580 bytes in each direction; an `ArrayRecord` would
add 1150.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import RecordDict

RECORD_KEY, VALUE_KEY = "r", "v"
REQUEST_QUERY, NAME_QUERY = "query", "query.name"
"""Types of the messages to a node: a request for the site's process, and for the name that the site claims."""
NODE_NAME_PATTERN = re.compile(r"client-(\d{3,9})")
NO_SITE_PROCESS = "no site process listens"
SITE_PROCESS_ENDED = "the site process ended before it responded"
CLIENT_APP_RAISED_EXCEPTION = 2
"""Flower's code; `node_program` uses it for its own errors."""
MESSAGE_UNAVAILABLE, REPLY_MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE = 3, 4, 5
"""Codes of errors that Flower reports."""
INVALID_REPLY = 0
"""Our own code for a reply without a payload."""
OFFLINE_REASON, CRASHED_REASON, DEADLINE_REASON = "gone", "crashed", "deadline"


def node_name(client_id: int) -> str:
    """Return the name under which a client's key is registered: `client-007` for client 7."""
    return f"client-{client_id:03d}"


def parse_node_name(name: str) -> int | None:
    """Return the client id in a node name, or None if `node_name` cannot have produced the name."""
    match = NODE_NAME_PATTERN.fullmatch(name)
    return int(match[1]) if match and node_name(int(match[1])) == name else None


def to_record_dict(payload: bytes) -> RecordDict:
    """Return the content of a Flower message with this payload."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD_KEY: ConfigRecord({VALUE_KEY: payload})})


def from_record_dict(content: RecordDict) -> bytes:
    """Return the payload of a Flower message.

    Raises:
        KeyError: The record or its value is missing.
        TypeError: The value is not bytes.
    """
    payload = content.config_records[RECORD_KEY][VALUE_KEY]
    if not isinstance(payload, bytes):
        raise TypeError("a message without bytes")
    return payload


def transient_failure(code: int, reason: str) -> str | None:
    """Return the failure's short name if the same request may succeed later, else None."""
    if code == NODE_UNAVAILABLE:
        return OFFLINE_REASON
    if code == CLIENT_APP_RAISED_EXCEPTION and (NO_SITE_PROCESS in reason or SITE_PROCESS_ENDED in reason):
        return CRASHED_REASON
    return DEADLINE_REASON if code in (MESSAGE_UNAVAILABLE, REPLY_MESSAGE_UNAVAILABLE) else None
