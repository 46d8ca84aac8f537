"""What clients are called in Flower. A name is given when a key is registered, and tells who somebody is."""

from __future__ import annotations

import re

NAME = re.compile(r"client-(\d{3,9})")


def node_name(client: int) -> str:
    """`client-007` for client 7."""
    return f"client-{client:03d}"


def client_of(name: str) -> int | None:
    """The client that a name stands for; none if it is no name of ours."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match and node_name(int(match[1])) == name else None
