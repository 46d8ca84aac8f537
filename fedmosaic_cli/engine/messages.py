"""Messages between clients and server. A message is a dictionary of parts; every part knows its size on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.method import FederationInfo, Parameters, ReceivedMessage

SERVER_ID = 2**32 - 1
"""The sender of a message from the server."""


@dataclass(frozen=True)
class MessageHeader:
    """What identifies a message: its run, the public set it refers to, its round and its sender."""

    run_id: bytes
    public_set_id: bytes
    round: int
    client_id: int


@dataclass(frozen=True)
class Route:
    """Where a message goes: the device of the receiver, and the header that the message carries."""

    device: torch.device
    header: MessageHeader


class MessagePart(Protocol):
    """One part of a message.

    A part travels in two ways with the same result. `deliver` hands it over within one process. `encode` writes the
    bytes that a remote receiver reads (`federation.protocol`).
    """

    kind: ClassVar[str]
    """The name of this kind of part in the protocol and in the policy of a site."""

    @property
    def bits(self) -> int:
        """Size of the content in bits, without headers."""

    def encode(self, route: Route) -> bytes:
        """Return the part as bytes."""

    def deliver(self, route: Route) -> tuple[Any, int]:
        """Return the part as the receiver sees it, and its size in bits.

        The result shares no memory with the sender. Models arrive on the receiver's device; values about the public
        set stay on the CPU.
        """


Message = dict[str, MessagePart]


@dataclass(frozen=True)
class Weights:
    """The tensors of a model. Names and shapes are known to both sides and not counted."""

    values: Parameters

    kind: ClassVar[str] = "weights"

    @property
    def bits(self) -> int:
        return sum(map(tensor_bits, self.values.values()))

    def encode(self, route: Route) -> bytes:
        from safetensors.torch import save

        return save({name: tensor.detach().cpu().contiguous() for name, tensor in self.values.items()})

    def deliver(self, route: Route) -> tuple[Parameters, int]:
        return {name: detached_copy(tensor, route.device) for name, tensor in self.values.items()}, self.bits


@dataclass(frozen=True)
class Logits:
    """The outputs of a model on the public set, [examples, classes]: 32 bits per value in single precision."""

    values: Tensor

    kind: ClassVar[str] = "logits"

    @property
    def bits(self) -> int:
        return tensor_bits(self.values)

    def encode(self, route: Route) -> bytes:
        return Weights({"logits": self.values}).encode(route)

    def deliver(self, route: Route) -> tuple[Tensor, int]:
        return detached_copy(self.values, self.values.device), self.bits


def make_route(device: torch.device, ctx: FederationInfo, round_number: int, sender: int) -> Route:
    """Return the route of a message that `sender` sends in a round to a receiver on `device`."""
    return Route(device, MessageHeader(ctx.run_id, ctx.public_set_id, round_number, sender))


def send_message(message: Message, route: Route) -> tuple[ReceivedMessage, int]:
    """Deliver a message within one process.

    Returns:
        The message as the receiver sees it, and its size in bits. Headers (78 bytes per label message) and what a
        network adds are not counted.
    """
    received: ReceivedMessage = {}
    bits = 0
    for name, part in message.items():
        received[name], part_bits = part.deliver(route)
        bits += part_bits
    return received, bits


def detached_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of the tensor on `device`, without its gradient history."""
    return tensor.detach().to(device, copy=True)


def tensor_bits(tensor: Tensor) -> int:
    """Return the size of the tensor's values in bits."""
    return 8 * tensor.numel() * tensor.element_size()
