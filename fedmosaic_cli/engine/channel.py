"""The way between clients and server in one process: everything that travels is counted, and arrives as it would be
read. To clients elsewhere the same parts go as letters (`federation.protocol`), and count as much.

What is counted is what a message says. The envelope around an opinion or a consensus, 78 bytes, is not: nor are those
of whatever network carries it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmosaic_cli.engine.messages import Message, Route
    from fedmosaic_cli.engine.method import ReceivedMessage


def send_message(message: Message, route: Route) -> tuple[ReceivedMessage, int]:
    """The message as the other side sees it, and how many bits it took."""
    received: ReceivedMessage = {}
    bits = 0
    for name, part in message.items():
        received[name], part_bits = part.deliver(route)
        bits += part_bits
    return received, bits
