"""The traffic of clients: planned from the declared messages, and counted from those that are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import FederationInfo, Message
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.engine.peers import PeerMethod


@dataclass(frozen=True)
class Traffic:
    """Bits sent and received by a client in a round; None if the data itself is moved (centralized training)."""

    uplink_bits: int | None = 0
    downlink_bits: int | None = 0

    def __add__(self, other: Traffic) -> Traffic:
        if self.uplink_bits is None or other.uplink_bits is None:
            return Traffic(None, None)
        return Traffic(self.uplink_bits + other.uplink_bits, (self.downlink_bits or 0) + (other.downlink_bits or 0))


def upload_bits(method: Method, ctx: FederationInfo) -> int:
    """Return the largest size of an upload."""
    return sum(part.planned_bits(ctx) for part in method.uploads.values())


def planned_traffic(method: Method, ctx: FederationInfo) -> Traffic:
    """Return the largest traffic of a client in a round, without parts that are sent once in a run."""
    return sum_planned_bits(method, ctx, sent_once=False)


def planned_once_traffic(method: Method, ctx: FederationInfo) -> Traffic:
    """Return the largest traffic of a client by parts that are sent once in a run."""
    return sum_planned_bits(method, ctx, sent_once=True)


def sum_planned_bits(method: Method, ctx: FederationInfo, sent_once: bool) -> Traffic:
    """Return the largest traffic of a client by the parts that are, or are not, sent once."""
    up, down = (
        sum(part.planned_bits(ctx) for part in parts.values() if part.sent_once is sent_once)
        for parts in (method.uploads, method.downloads)
    )
    return client_traffic(method, min(ctx.client_sizes, default=0), ctx, up, down)


def broadcast_traffic(method: Method, message: Message, client_id: int, ctx: FederationInfo) -> Traffic:
    """Return the traffic of a client that receives a message and sends nothing."""
    bits = sum(method.downloads[name].bits(value, ctx) for name, value in message.items())
    return client_traffic(method, client_id, ctx, 0, bits)


def client_traffic(method: Method, client_id: int, ctx: FederationInfo, bits_up: int, bits_down: int) -> Traffic:
    """Return the traffic of a client in a round. A message to several neighbours counts once for each."""
    if method.needs.pooled_data:
        # Centralized training moves the raw data, which is not a message: 0 bits would be misleading.
        return Traffic(None, None)
    num_receivers = len(cast("PeerMethod", method).neighbors(client_id, ctx)) if method.needs.peers else 1
    return Traffic(num_receivers * bits_up, bits_down)
