"""The errors that Flower sends in place of an answer: which of them pass, and what they are called."""

from __future__ import annotations

NO_SITE = "no site process listens"
SITE_ENDED = "the site process ended while answering"

RAISED, EXPIRED, UNREAD, OFFLINE, CRASHED = 2, 3, 4, 5, 8
"""Flower's numbers: the app raised an exception, a message or its answer is too old, node offline, app crashed."""
NONSENSE = 0
"""Our own: an answer in which there is none."""
GONE, DOWN, LATE = "gone", "crashed", "deadline"


def passing(code: int, reason: str) -> str | None:
    """What to call a client that may yet answer if it is asked again; none if asking again would not help."""
    if code == OFFLINE:
        return GONE
    if code == CRASHED or (code == RAISED and (NO_SITE in reason or SITE_ENDED in reason)):
        return DOWN
    return LATE if code in (EXPIRED, UNREAD) else None
