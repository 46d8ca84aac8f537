"""What a message is made of. Each part knows what it looks like on the wire, so the channel can count it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedmosaic_cli.cotraining import codecs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.method import Parameters


class Part(Protocol):
    """One part of a message."""

    def travel(self) -> tuple[Tensor | Parameters, int]:
        """The part as the receiver sees it, and the bits of its serialised form. Nothing is shared with the sender."""


Message = dict[str, Part]


@dataclass(frozen=True)
class Labels:
    """One class index per public example, ceil(log2 C) bits each."""

    values: Tensor
    num_classes: int

    def travel(self) -> tuple[Tensor, int]:
        bits = codecs.label_bits(self.num_classes)
        data = codecs.pack(self.values.cpu().numpy(), bits)
        return like(self.values, codecs.unpack(data, bits, len(self.values))), 8 * len(data)


@dataclass(frozen=True)
class Scores:
    """One value per public example, in `bits` bits each between two bounds that both sides know."""

    values: Tensor
    low: float
    high: float
    bits: int

    def travel(self) -> tuple[Tensor, int]:
        levels = codecs.quantise(self.values.double().cpu().numpy(), self.low, self.high, self.bits)
        data = codecs.pack(levels, self.bits)
        seen = codecs.unpack(data, self.bits, len(self.values))
        return like(self.values, codecs.dequantise(seen, self.low, self.high, self.bits)), 8 * len(data)


@dataclass(frozen=True)
class Weights:
    """The tensors of a model as they are. Names and shapes are known to both sides and not counted."""

    values: Parameters

    def travel(self) -> tuple[Parameters, int]:
        seen: Parameters = {}
        bits = 0
        for name, tensor in self.values.items():
            seen[name], tensor_bits = carried(tensor)
            bits += tensor_bits
        return seen, bits


@dataclass(frozen=True)
class Logits:
    """A model's outputs on the public set as they are: 32 bits per example and class in single precision."""

    values: Tensor

    def travel(self) -> tuple[Tensor, int]:
        return carried(self.values)


def carried(tensor: Tensor) -> tuple[Tensor, int]:
    """A tensor written out and read back, and the bits between."""
    array = tensor.detach().cpu().numpy()
    data = array.tobytes()
    return like(tensor, np.frombuffer(bytearray(data), array.dtype).reshape(array.shape)), 8 * len(data)


def like(sent: Tensor, array: NDArray[Any]) -> Tensor:
    """What arrived, as a tensor of its own on the device it came from."""
    import torch

    return torch.as_tensor(array, dtype=sent.dtype, device=sent.device)
