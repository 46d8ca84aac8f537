"""The only way between clients and server: everything that travels is counted, and arrives as it would be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Received


def send(message: Message, device: torch.device) -> tuple[Received, int]:
    """The message as the other side sees it, which computes on `device`, and how many bits it took."""
    received: Received = {}
    bits = 0
    for name, part in message.items():
        received[name], part_bits = part.travel(device)
        bits += part_bits
    return received, bits
