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


class Part(ABC):
    """The kind of one part of a message.

    A value reaches its receiver in two ways with the same result: `deliver` within one process, `encode` and `decode`
    between processes.
    """

    kind: ClassVar[str]
    """The name of this kind in the protocol of remote sites."""
    level: ClassVar[UploadLevel] = "models"
    """What a site must allow before such a part leaves it."""
    is_exact: ClassVar[bool] = True
    """Whether the receiver sees the value of the sender bit for bit."""
    is_once: bool = False
    """Whether the part is sent once in a run instead of in every round."""

    @abstractmethod
    def planned_bits(self, ctx: FederationInfo) -> int:
        """Return the largest size of a value in bits, without headers."""

    @abstractmethod
    def bits(self, value: Any, ctx: FederationInfo) -> int:
        """Return the size of a value in bits, without headers. The value may be the sender's or the receiver's."""

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
class Weights(Part):
    """Entries of the model. Names and shapes are known to both sides and not counted.

    Attributes:
        group: The group of entries to send, e.g. "body". None sends all of them.
        names: Returns the names of the entries to send, instead of `group`.
        max_models: If given, the value is a dictionary of models by client id, and this returns their largest number.
    """

    group: ParameterGroup | None = None
    names: Callable[[FederationInfo], Collection[str]] | None = None
    max_models: Callable[[FederationInfo], int] | None = None

    kind: ClassVar[str] = "weights"

    def template(self, ctx: FederationInfo) -> Parameters:
        """Return the entries of the initial model that are sent."""
        if self.names is None and self.group is None:
            return ctx.initial_model
        names = self.names(ctx) if self.names is not None else ctx.group(self.group or "body")
        return {name: tensor for name, tensor in ctx.initial_model.items() if name in names}

    def planned_bits(self, ctx: FederationInfo) -> int:
        num_models = 1 if self.max_models is None else self.max_models(ctx)
        return num_models * sum(map(tensor_bits, self.template(ctx).values()))

    def bits(self, value: Any, ctx: FederationInfo) -> int:
        return sum(map(tensor_bits, self._flat(value).values()))

    def encode(self, value: Any, route: Route) -> bytes:
        return encode_tensors(self._flat(value))

    def decode(self, data: bytes, route: Route) -> Any:
        tensors, template = decode_tensors(data), self.template(route.ctx)
        if self.max_models is None:
            return checked_tensors(tensors, template, route.device)
        models: dict[int, Parameters] = {}
        for name, tensor in tensors.items():
            client, _, entry = name.partition("/")
            if not client.isascii() or not client.isdigit() or int(client) not in route.ctx.client_sizes:
                reject_part("wrong_names")
            models.setdefault(int(client), {})[entry] = tensor
        if len(models) > self.max_models(route.ctx):
            reject_part("too_many")
        return {client: checked_tensors(models[client], template, route.device) for client in sorted(models)}

    def deliver(self, value: Any, route: Route) -> Any:
        if self.max_models is None:
            return {name: detached_copy(tensor, route.device) for name, tensor in value.items()}
        return {client: Weights().deliver(value[client], route) for client in sorted(value)}

    def _flat(self, value: Any) -> Parameters:
        if self.max_models is None:
            return dict(value)
        return {f"{client}/{name}": tensor for client, model in value.items() for name, tensor in model.items()}


@dataclass(frozen=True)
class Tensors(Part):
    """Named floating-point tensors that are not a model, e.g. prototypes, counts or scores.

    Attributes:
        shapes: Returns the shape of each tensor by name.
    """

    shapes: Callable[[FederationInfo], Mapping[str, tuple[int, ...]]]

    kind: ClassVar[str] = "tensors"

    def planned_bits(self, ctx: FederationInfo) -> int:
        return ctx.float_bits * sum(math.prod(shape) for shape in self.shapes(ctx).values())

    def bits(self, value: Parameters, ctx: FederationInfo) -> int:
        return sum(map(tensor_bits, value.values()))

    def encode(self, value: Parameters, route: Route) -> bytes:
        return encode_tensors(value)

    def decode(self, data: bytes, route: Route) -> Parameters:
        import torch

        dtype = torch.float64 if route.ctx.float_bits == 64 else torch.float32
        template = {name: torch.empty(shape, dtype=dtype) for name, shape in self.shapes(route.ctx).items()}
        return checked_tensors(decode_tensors(data), template, route.device)

    def deliver(self, value: Parameters, route: Route) -> Parameters:
        return {name: detached_copy(tensor, route.device) for name, tensor in value.items()}


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

    def encode(self, value: Tensor, route: Route) -> bytes:
        return encode_tensors({"logits": value})

    def decode(self, data: bytes, route: Route) -> Tensor:
        tensors, ctx = decode_tensors(data), route.ctx
        if tensors.keys() != {"logits"}:
            reject_part("wrong_names")
        logits: Tensor = tensors["logits"]
        if tuple(logits.shape) != (ctx.public_size, ctx.num_classes) or 8 * logits.element_size() != ctx.float_bits:
            reject_part("wrong_shape")
        if not logits.is_floating_point() or not logits.isfinite().all():
            reject_part("not_finite")
        return logits

    def deliver(self, value: Tensor, route: Route) -> Tensor:
        return detached_copy(value, value.device)


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
    unknown = sorted(set(message) - set(parts))
    if unknown:
        declared = ", ".join(parts) or "none"
        raise FedMosaicError(
            f"a message has a part '{unknown[0]}', but the method declares {declared} (uploads, downloads): declare it"
        )


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

    if tensors.keys() != template.keys():
        reject_part("wrong_names")
    if any(tensors[n].shape != t.shape or tensors[n].dtype != t.dtype for n, t in template.items()):
        reject_part("wrong_shape")
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
