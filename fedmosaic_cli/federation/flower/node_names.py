"""What clients are called in Flower. A name is given when a key is registered, and tells who somebody is."""

from __future__ import annotations

import re

NODE_NAME_PATTERN = re.compile(r"client-(\d{3,9})")


def node_name(client_id: int) -> str:
    """`client-007` for client 7."""
    return f"client-{client_id:03d}"


def parse_node_name(name: str) -> int | None:
    """The client that a name stands for; none if it is no name of ours."""
    match = NODE_NAME_PATTERN.fullmatch(name)
    return int(match[1]) if match and node_name(int(match[1])) == name else None
