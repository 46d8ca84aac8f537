"""What a message is made of. Each part knows what it looks like on the wire, so the channel can count it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from fedmosaic_cli.labels import wire

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.method import Parameters


PartKind = Literal["opinion", "consensus", "weights", "logits"]


@dataclass(frozen=True)
class Route:
    """From one side to the other: where the receiver computes, and what stands on the envelope."""

    device: torch.device
    header: wire.MessageHeader


class MessagePart(Protocol):
    """One part of a message."""

    kind: ClassVar[PartKind]

    @property
    def bits(self) -> int:
        """The size of what it says."""

    def encode(self, route: Route) -> bytes:
        """The part as it goes from one machine to another; `federation.protocol` reads it there."""

    def deliver(self, route: Route) -> tuple[Tensor | Parameters | bytes, int]:
        """The part as the receiver sees it, and the bits of what it says. Nothing is shared with the sender.

        Models arrive on the receiver's device; what is said of the public set is worked on by CPUs.
        """


Message = dict[str, MessagePart]


@dataclass(frozen=True)
class LabelUpload:
    """What a client says of the public set: labels, and how far it is to be trusted in each.

    It arrives sealed: whether it is fit to be read is for the server to find out.
    """

    labels: NDArray[Any]
    expertise: NDArray[np.float64] | None
    spec: wire.MessageSpec

    kind: ClassVar[PartKind] = "opinion"

    @property
    def bits(self) -> int:
        return 8 * self.spec.payload_bytes

    def encode(self, route: Route) -> bytes:
        return wire.encode_label_upload(route.header, self.spec, self.labels, self.expertise)

    def deliver(self, route: Route) -> tuple[bytes, int]:
        return self.encode(route), self.bits


@dataclass(frozen=True)
class ConsensusLabels:
    """What the crowd says of the public set, a class an example; below 0 where it says nothing."""

    labels: Tensor
    num_classes: int

    kind: ClassVar[PartKind] = "consensus"

    @property
    def spec(self) -> wire.MessageSpec:
        code = wire.LabelEncoding.MASKED if (self.labels < 0).any() else wire.LabelEncoding.INDEX
        return wire.MessageSpec(len(self.labels), self.num_classes, wire.LabelMessageKind.CONSENSUS, code)

    @property
    def bits(self) -> int:
        return 8 * self.spec.payload_bytes

    def encode(self, route: Route) -> bytes:
        return wire.encode_consensus_labels(route.header, self.spec, self.labels.cpu().numpy())

    def deliver(self, route: Route) -> tuple[Tensor, int]:
        return decode_consensus(self.encode(route), self.spec, route.header), self.bits


@dataclass(frozen=True)
class Weights:
    """The tensors of a model as they are. Names and shapes are known to both sides and not counted."""

    values: Parameters

    kind: ClassVar[PartKind] = "weights"

    @property
    def bits(self) -> int:
        return sum(map(tensor_bits, self.values.values()))

    def encode(self, route: Route) -> bytes:
        from safetensors.torch import save

        return save({name: tensor.detach().cpu().contiguous() for name, tensor in self.values.items()})

    def deliver(self, route: Route) -> tuple[Parameters, int]:
        return {name: copied_tensor(tensor, route.device) for name, tensor in self.values.items()}, self.bits


@dataclass(frozen=True)
class Logits:
    """A model's outputs on the public set as they are: 32 bits per example and class in single precision."""

    values: Tensor

    kind: ClassVar[PartKind] = "logits"

    @property
    def bits(self) -> int:
        return tensor_bits(self.values)

    def encode(self, route: Route) -> bytes:
        return Weights({"logits": self.values}).encode(route)

    def deliver(self, route: Route) -> tuple[Tensor, int]:
        return copied_tensor(self.values, self.values.device), self.bits


def decode_consensus(data: bytes, spec: wire.MessageSpec, header: wire.MessageHeader) -> Tensor:
    """What the crowd says, as whoever waits for it in this round reads it. Raises wire.RefusedError."""
    import torch

    seen = wire.decode_consensus_labels(
        data, wire.ExpectedMessage(spec, header.run_id, header.public_set_id, header.round, {wire.SERVER_ID})
    )
    return torch.as_tensor(seen, dtype=torch.int64)


def copied_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the receiver's own. Numbers sent as they are need not be written out to know what arrives."""
    return tensor.detach().to(device, copy=True)


def tensor_bits(tensor: Tensor) -> int:
    """The size of a tensor's numbers, written out as they are."""
    return 8 * tensor.numel() * tensor.element_size()
