"""Message parts: how the values that clients and server exchange are sent, counted and checked.

A method declares the parts of its messages (`Method.uploads`, `Method.downloads`) and returns plain values. The kind of
a part knows everything else: its size, its encoding, the checks of the receiver, and what a site must allow before it
leaves. A new kind is one subclass of `Part`.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from fedmosaic_cli.errors import FedMosaicError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.context import FederationInfo, Message, ParameterGroup, Parameters, ReceivedMessage

SERVER_ID = 2**32 - 1
"""The sender of a message from the server."""

UploadLevel = Literal["labels", "predictions", "models"]
"""What a site must allow before a part leaves it, in increasing order; see `federation.policy`."""


class InvalidPartError(Exception):
    """A part that the receiver rejects. The text is a short reason such as "wrong_shape"."""


@dataclass(frozen=True)
class MessageHeader:
    """What identifies a message: its run, the public set it refers to, its round and its sender."""

    run_id: bytes
    public_set_id: bytes
    round: int
    client_id: int


@dataclass(frozen=True)
class Route:
    """Where a message goes: the device of the receiver, the header of the message, and what both sides know."""

    device: torch.device
    header: MessageHeader
    ctx: FederationInfo


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """The kind of one part of a message.

    A value reaches its receiver in two ways with the same result: `deliver` within one process, `encode` and `decode`
    between processes.

    Attributes:
        sent_once: The part is sent once in a run, e.g. in an initial exchange, and not in every round.
    """

    kind: ClassVar[str]
    """The name of this kind in the protocol of remote sites."""
    level: ClassVar[UploadLevel] = "models"
    """What a site must allow before such a part leaves it."""
    is_exact: ClassVar[bool] = True
    """Whether the receiver sees the value of the sender bit for bit."""

    sent_once: bool = False

    @abstractmethod
    def planned_bits(self, ctx: FederationInfo) -> int:
        """Return the largest size of a value in bits, without headers."""

    @abstractmethod
    def bits(self, value: Any, ctx: FederationInfo) -> int:
        """Return the size of a value in bits, without headers. The value may be the sender's or the receiver's."""

    def check(self, value: Any, ctx: FederationInfo) -> None:
        """Check a value before it is delivered within one process.

        Raises:
            InvalidPartError: `decode` would reject the value, because of its names, shapes or numbers.
        """

    @abstractmethod
    def encode(self, value: Any, route: Route) -> bytes:
        """Return the value as bytes."""

    @abstractmethod
    def decode(self, data: bytes, route: Route) -> Any:
        """Return the value as the receiver sees it. Models are on the receiver's device, other values on the CPU.

        Raises:
            InvalidPartError: The bytes are not a valid value. Names, shapes, types and numbers must all be checked.
        """

    def deliver(self, value: Any, route: Route) -> Any:
        """Return the value as the receiver sees it, without shared memory."""
        return self.decode(self.encode(value, route), route)


@dataclass(frozen=True)
class NamedTensors(Part):
    """Base class of parts whose values are tensors by name, with names, shapes and types that both sides know."""

    @abstractmethod
    def template(self, ctx: FederationInfo) -> Parameters:
        """Return tensors with the names, shapes and types of a value. Their numbers are not used."""

    def planned_bits(self, ctx: FederationInfo) -> int:
        return sum(map(tensor_bits, self.template(ctx).values()))

    def bits(self, value: Parameters, ctx: FederationInfo) -> int:
        return sum(map(tensor_bits, value.values()))

    def check(self, value: Parameters, ctx: FederationInfo) -> None:
        require_shapes(value, self.template(ctx))

    def encode(self, value: Parameters, route: Route) -> bytes:
        return encode_tensors(value)

    def decode(self, data: bytes, route: Route) -> Parameters:
        return checked_tensors(decode_tensors(data), self.template(route.ctx), route.device)

    def deliver(self, value: Parameters, route: Route) -> Parameters:
        from fedmosaic_cli.engine.params import copy_tensors

        detached = {name: tensor.detach() for name, tensor in value.items()}
        if all(tensor.device == route.device for tensor in detached.values()):
            return copy_tensors(detached)
        return {name: tensor.to(route.device, copy=True) for name, tensor in detached.items()}


@dataclass(frozen=True)
class Weights(NamedTensors):
    """Entries of a model. Names and shapes are known to both sides and not counted.

    Attributes:
        group: The group of entries to send, e.g. "body". None sends all of them.
        names: Returns the names of the entries to send, instead of `group`.
        network: Sends one of the additional networks that `Needs.networks` names, instead of the client's own.
    """

    group: ParameterGroup | None = None
    names: Callable[[FederationInfo], Collection[str]] | None = None
    network: str | None = None

    kind: ClassVar[str] = "weights"

    def template(self, ctx: FederationInfo) -> Parameters:
        """Return the initial values of the entries that are sent."""
        model = ctx.initial_model if self.network is None else ctx.networks[self.network]
        if self.names is None and self.group is None:
            return model
        names = self.names(ctx) if self.names is not None else ctx.group(self.group or "body")
        return {name: tensor for name, tensor in model.items() if name in names}


@dataclass(frozen=True)
class Tensors(NamedTensors):
    """Named floating-point tensors that are not a model, e.g. prototypes, counts or scores.

    Attributes:
        shapes: Returns the shape of each tensor by name.
    """

    shapes: Callable[[FederationInfo], Mapping[str, tuple[int, ...]]]

    kind: ClassVar[str] = "tensors"

    def template(self, ctx: FederationInfo) -> Parameters:
        """Return tensors of the declared shapes, without values."""
        import torch

        dtype = torch.float64 if ctx.float_bits == 64 else torch.float32
        return {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in self.shapes(ctx).items()}


@dataclass(frozen=True)
class Scalars(Part):
    """Named numbers of 64 bits each.

    Attributes:
        names: The names of the numbers.
    """

    names: tuple[str, ...]

    kind: ClassVar[str] = "scalars"

    def planned_bits(self, ctx: FederationInfo) -> int:
        return 64 * len(self.names)

    def bits(self, value: Mapping[str, float], ctx: FederationInfo) -> int:
        return 64 * len(self.names)

    def check(self, value: Mapping[str, float], ctx: FederationInfo) -> None:
        if set(value) != set(self.names):
            reject_part("wrong_names")

    def encode(self, value: Mapping[str, float], route: Route) -> bytes:
        return struct.pack(f"<{len(self.names)}d", *(float(value[name]) for name in self.names))

    def decode(self, data: bytes, route: Route) -> dict[str, float]:
        if len(data) != 8 * len(self.names):
            reject_part("wrong_shape")
        values = struct.unpack(f"<{len(self.names)}d", data)
        if not all(map(math.isfinite, values)):
            reject_part("not_finite")
        return dict(zip(self.names, values, strict=True))


@dataclass(frozen=True)
class Logits(Part):
    """The outputs of a model on the public set, [examples, classes]: 32 bits per value in single precision."""

    kind: ClassVar[str] = "logits"
    level: ClassVar[UploadLevel] = "predictions"

    def planned_bits(self, ctx: FederationInfo) -> int:
        return ctx.float_bits * ctx.public_size * ctx.num_classes

    def bits(self, value: Tensor, ctx: FederationInfo) -> int:
        return tensor_bits(value)

    def check(self, value: Tensor, ctx: FederationInfo) -> None:
        if tuple(value.shape) != (ctx.public_size, ctx.num_classes) or 8 * value.element_size() != ctx.float_bits:
            reject_part("wrong_shape")
        if not value.is_floating_point() or not value.isfinite().all():
            reject_part("not_finite")

    def encode(self, value: Tensor, route: Route) -> bytes:
        return encode_tensors({"logits": value})

    def decode(self, data: bytes, route: Route) -> Tensor:
        tensors = decode_tensors(data)
        if tensors.keys() != {"logits"}:
            reject_part("wrong_names")
        logits: Tensor = tensors["logits"]
        self.check(logits, route.ctx)
        return logits

    def deliver(self, value: Tensor, route: Route) -> Tensor:
        return detached_copy(value, value.device)


@dataclass(frozen=True)
class PerClient(Part):
    """A dictionary of values of one kind by client id, e.g. models of other clients.

    Attributes:
        part: The kind of each value.
        max_clients: Returns the largest number of values.
    """

    part: Part
    max_clients: Callable[[FederationInfo], int]

    kind: ClassVar[str] = "per_client"
    entry_header: ClassVar[struct.Struct] = struct.Struct("<II")  # client id, number of bytes

    def planned_bits(self, ctx: FederationInfo) -> int:
        return self.max_clients(ctx) * self.part.planned_bits(ctx)

    def bits(self, value: Mapping[int, Any], ctx: FederationInfo) -> int:
        return sum(self.part.bits(own, ctx) for own in value.values())

    def check(self, value: Mapping[int, Any], ctx: FederationInfo) -> None:
        if len(value) > self.max_clients(ctx) or not value.keys() <= ctx.client_sizes.keys():
            reject_part("wrong_clients")
        for own in value.values():
            self.part.check(own, ctx)

    def encode(self, value: Mapping[int, Any], route: Route) -> bytes:
        entries = {client: self.part.encode(value[client], route) for client in sorted(value)}
        return b"".join(self.entry_header.pack(client, len(data)) + data for client, data in entries.items())

    def decode(self, data: bytes, route: Route) -> dict[int, Any]:
        values: dict[int, Any] = {}
        position, size = 0, self.entry_header.size
        while position < len(data):
            if position + size > len(data) or len(values) >= self.max_clients(route.ctx):
                reject_part("truncated" if position + size > len(data) else "too_many")
            client, length = self.entry_header.unpack_from(data, position)
            if client not in route.ctx.client_sizes or client <= max(values, default=-1):
                reject_part("wrong_clients")
            position += size
            if position + length > len(data):
                reject_part("truncated")
            values[client] = self.part.decode(data[position : position + length], route)
            position += length
        return values

    def deliver(self, value: Mapping[int, Any], route: Route) -> dict[int, Any]:
        return {client: self.part.deliver(value[client], route) for client in sorted(value)}


def make_route(device: torch.device, ctx: FederationInfo, round_number: int, sender: int) -> Route:
    """Return the route of a message that `sender` sends in a round to a receiver on `device`."""
    return Route(device, MessageHeader(ctx.run_id, ctx.public_set_id, round_number, sender), ctx)


def send_message(message: Message, parts: Mapping[str, Part], route: Route) -> tuple[ReceivedMessage, int]:
    """Deliver a message within one process.

    Args:
        message: The values by part.
        parts: The declared parts.
        route: Where the message goes.

    Returns:
        The message as the receiver sees it, and its size in bits. Headers (78 bytes per label message) and what a
        network adds are not counted.
    """
    require_declared(message, parts)
    for name, value in message.items():
        try:
            parts[name].check(value, route.ctx)
        except InvalidPartError as error:
            raise FedMosaicError(
                f"the value of part '{name}' does not fit its declaration, {error} (uploads, downloads): correct either"
            ) from None
    received = {name: parts[name].deliver(value, route) for name, value in message.items()}
    return received, sum(parts[name].bits(value, route.ctx) for name, value in message.items())


def preview_message(message: Message, parts: Mapping[str, Part], route: Route) -> ReceivedMessage:
    """Return a message as a receiver on the same device would see it. Nothing is sent.

    Values of exact parts are shared with the sender, so they must not be changed.
    """
    require_declared(message, parts)
    return {
        name: value if parts[name].is_exact else parts[name].deliver(value, route) for name, value in message.items()
    }


def require_declared(message: Message, parts: Mapping[str, Part]) -> None:
    """Raise FedMosaicError if a message has parts that its method does not declare."""
    if not isinstance(message, dict):
        raise FedMosaicError(f"a message is {message!r:.100} (broadcast, local_round): return a dictionary of parts")
    unknown = sorted(set(message) - set(parts))
    if unknown:
        declared = ", ".join(parts) or "no parts"
        raise FedMosaicError(
            f"a message has the part '{unknown[0]}', declared are {declared} (uploads, downloads): declare it"
        )


def require_complete(message: Message, parts: Mapping[str, Part]) -> None:
    """Raise FedMosaicError unless an upload is empty, has all parts of a round, or only parts that are sent once."""
    require_declared(message, parts)
    if not is_complete(message, parts):
        missing = sorted(name for name, part in parts.items() if name not in message and not part.sent_once)
        raise FedMosaicError(
            f"an upload lacks the part '{missing[0]}' (local_round): return all declared parts, or {{}}"
        )


def is_complete(names: Collection[str], parts: Mapping[str, Part]) -> bool:
    """Return whether an upload with these parts is empty, has all parts of a round, or only parts sent once."""
    required = {name for name, part in parts.items() if not part.sent_once}
    return not names or required <= set(names) or required.isdisjoint(names)


def require_shapes(tensors: Parameters, template: Parameters) -> None:
    """Raise InvalidPartError unless tensors have the names, shapes and types of `template`."""
    if tensors.keys() != template.keys():
        reject_part("wrong_names")
    if any(tensors[n].shape != t.shape or tensors[n].dtype != t.dtype for n, t in template.items()):
        reject_part("wrong_shape")


def encode_tensors(tensors: Parameters) -> bytes:
    """Return tensors as bytes in the format of safetensors."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def decode_tensors(data: bytes) -> Parameters:
    """Return the tensors of `encode_tensors`. Raise InvalidPartError if the bytes are invalid."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: Parameters = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError):
        reject_part("bad_tensors")
    return tensors


def checked_tensors(tensors: Parameters, template: Parameters, device: torch.device) -> Parameters:
    """Return finite tensors with the names, shapes, types and order of `template`, on `device`."""
    from fedmosaic_cli.engine.params import is_bounded

    require_shapes(tensors, template)
    if not is_bounded(tensors):
        reject_part("not_finite")
    return {name: tensors[name].to(device) for name in template}


def reject_part(reason: str) -> NoReturn:
    """Raise InvalidPartError."""
    raise InvalidPartError(reason)


def detached_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of the tensor on `device`, without its gradient history."""
    return tensor.detach().to(device, copy=True)


def tensor_bits(tensor: Tensor) -> int:
    """Return the size of the tensor's values in bits."""
    return 8 * tensor.numel() * tensor.element_size()
