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


Kind = Literal["opinion", "consensus", "weights", "logits"]


@dataclass(frozen=True)
class Way:
    """From one side to the other: where the receiver computes, and what stands on the envelope."""

    device: torch.device
    envelope: wire.Envelope


class Part(Protocol):
    """One part of a message."""

    kind: ClassVar[Kind]

    @property
    def bits(self) -> int:
        """The size of what it says."""

    def write(self, way: Way) -> bytes:
        """The part as it goes from one machine to another; `federation.protocol` reads it there."""

    def travel(self, way: Way) -> tuple[Tensor | Parameters | bytes, int]:
        """The part as the receiver sees it, and the bits of what it says. Nothing is shared with the sender.

        Models arrive on the receiver's device; what is said of the public set is worked on by CPUs.
        """


Message = dict[str, Part]


@dataclass(frozen=True)
class Opinion:
    """What a client says of the public set: labels, and how far it is to be trusted in each.

    It arrives sealed: whether it is fit to be read is for the server to find out.
    """

    labels: NDArray[Any]
    expertise: NDArray[np.float64] | None
    form: wire.Form

    kind: ClassVar[Kind] = "opinion"

    @property
    def bits(self) -> int:
        return 8 * self.form.payload_bytes

    def write(self, way: Way) -> bytes:
        return wire.write_opinion(way.envelope, self.form, self.labels, self.expertise)

    def travel(self, way: Way) -> tuple[bytes, int]:
        return self.write(way), self.bits


@dataclass(frozen=True)
class Consensus:
    """What the crowd says of the public set, a class an example; below 0 where it says nothing."""

    labels: Tensor
    num_classes: int

    kind: ClassVar[Kind] = "consensus"

    @property
    def form(self) -> wire.Form:
        code = wire.LabelCode.MASKED if (self.labels < 0).any() else wire.LabelCode.INDEX
        return wire.Form(len(self.labels), self.num_classes, wire.Kind.CONSENSUS, code)

    @property
    def bits(self) -> int:
        return 8 * self.form.payload_bytes

    def write(self, way: Way) -> bytes:
        return wire.write_consensus(way.envelope, self.form, self.labels.cpu().numpy())

    def travel(self, way: Way) -> tuple[Tensor, int]:
        return read_consensus(self.write(way), self.form, way.envelope), self.bits


@dataclass(frozen=True)
class Weights:
    """The tensors of a model as they are. Names and shapes are known to both sides and not counted."""

    values: Parameters

    kind: ClassVar[Kind] = "weights"

    @property
    def bits(self) -> int:
        return sum(map(bits_of, self.values.values()))

    def write(self, way: Way) -> bytes:
        from safetensors.torch import save

        return save({name: tensor.detach().cpu().contiguous() for name, tensor in self.values.items()})

    def travel(self, way: Way) -> tuple[Parameters, int]:
        return {name: carried(tensor, way.device) for name, tensor in self.values.items()}, self.bits


@dataclass(frozen=True)
class Logits:
    """A model's outputs on the public set as they are: 32 bits per example and class in single precision."""

    values: Tensor

    kind: ClassVar[Kind] = "logits"

    @property
    def bits(self) -> int:
        return bits_of(self.values)

    def write(self, way: Way) -> bytes:
        return Weights({"logits": self.values}).write(way)

    def travel(self, way: Way) -> tuple[Tensor, int]:
        return carried(self.values, self.values.device), self.bits


def read_consensus(data: bytes, form: wire.Form, to: wire.Envelope) -> Tensor:
    """What the crowd says, as whoever waits for it in this round reads it. Raises wire.RefusedError."""
    import torch

    seen = wire.read_consensus(data, wire.Expected(form, to.run, to.public, to.round, {wire.SERVER}))
    return torch.as_tensor(seen, dtype=torch.int64)


def carried(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the receiver's own. Numbers sent as they are need not be written out to know what arrives."""
    return tensor.detach().to(device, copy=True)


def bits_of(tensor: Tensor) -> int:
    """The size of a tensor's numbers, written out as they are."""
    return 8 * tensor.numel() * tensor.element_size()
