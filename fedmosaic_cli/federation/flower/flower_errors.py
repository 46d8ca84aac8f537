"""The errors that Flower sends in place of an answer: which of them pass, and what they are called."""

from __future__ import annotations

NO_SITE_PROCESS = "no site process listens"
SITE_PROCESS_ENDED = "the site process ended while answering"

CLIENT_APP_RAISED_EXCEPTION, MESSAGE_UNAVAILABLE, REPLY_MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE, CLIENT_APP_CRASHED = (
    2,
    3,
    4,
    5,
    8,
)
"""Flower's numbers: the app raised an exception, a message or its answer is too old, node offline, app crashed."""
INVALID_REPLY = 0
"""Our own: an answer in which there is none."""
OFFLINE_REASON, CRASHED_REASON, DEADLINE_REASON = "gone", "crashed", "deadline"


def transient_failure(code: int, reason: str) -> str | None:
    """What to call a client that may yet answer if it is asked again; none if asking again would not help."""
    if code == NODE_UNAVAILABLE:
        return OFFLINE_REASON
    if code == CLIENT_APP_CRASHED or (
        code == CLIENT_APP_RAISED_EXCEPTION and (NO_SITE_PROCESS in reason or SITE_PROCESS_ENDED in reason)
    ):
        return CRASHED_REASON
    return DEADLINE_REASON if code in (MESSAGE_UNAVAILABLE, REPLY_MESSAGE_UNAVAILABLE) else None
