"""What a message is made of. Each part knows what it looks like on the wire, so the channel can count it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedmosaic_cli.cotraining import codecs

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.method import Parameters


class Part(Protocol):
    """One part of a message."""

    def travel(self, device: torch.device) -> tuple[Tensor | Parameters, int]:
        """The part as the receiver sees it, and the bits of its serialised form. Nothing is shared with the sender.

        Models arrive on the receiver's `device`; what is said of the public set is worked on by CPUs.
        """


Message = dict[str, Part]


@dataclass(frozen=True)
class Labels:
    """One class index per public example, ceil(log2 C) bits each."""

    values: Tensor
    num_classes: int

    def travel(self, device: torch.device) -> tuple[Tensor, int]:
        bits = codecs.label_bits(self.num_classes)
        data = codecs.pack(self.values.numpy(), bits)
        return like(self.values, codecs.unpack(data, bits, len(self.values))), 8 * len(data)


@dataclass(frozen=True)
class Scores:
    """One value per public example, in `bits` bits each between two bounds that both sides know."""

    values: Tensor
    low: float
    high: float
    bits: int

    def travel(self, device: torch.device) -> tuple[Tensor, int]:
        levels = codecs.quantise(self.values.double().numpy(), self.low, self.high, self.bits)
        data = codecs.pack(levels, self.bits)
        seen = codecs.unpack(data, self.bits, len(self.values))
        return like(self.values, codecs.dequantise(seen, self.low, self.high, self.bits)), 8 * len(data)


@dataclass(frozen=True)
class Weights:
    """The tensors of a model as they are. Names and shapes are known to both sides and not counted."""

    values: Parameters

    def travel(self, device: torch.device) -> tuple[Parameters, int]:
        seen = {name: carried(tensor, device) for name, tensor in self.values.items()}
        return seen, sum(bits_of(tensor) for tensor in seen.values())


@dataclass(frozen=True)
class Logits:
    """A model's outputs on the public set as they are: 32 bits per example and class in single precision."""

    values: Tensor

    def travel(self, device: torch.device) -> tuple[Tensor, int]:
        return carried(self.values, self.values.device), bits_of(self.values)


def carried(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the receiver's own. Numbers sent as they are need not be written out to know what arrives."""
    return tensor.detach().to(device, copy=True)


def bits_of(tensor: Tensor) -> int:
    """The size of a tensor's numbers, written out as they are."""
    return 8 * tensor.numel() * tensor.element_size()


def like(sent: Tensor, array: NDArray[Any]) -> Tensor:
    """What arrived, as a tensor."""
    import torch

    return torch.as_tensor(array, dtype=sent.dtype)
