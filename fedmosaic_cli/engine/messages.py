"""What a message is made of. Each part knows what it looks like on the wire, so the channel can count it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedmosaic_cli.cotraining import wire

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.method import Parameters


@dataclass(frozen=True)
class Way:
    """From one side to the other: where the receiver computes, and what stands on the envelope."""

    device: torch.device
    envelope: wire.Envelope


class Part(Protocol):
    """One part of a message."""

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

    def travel(self, way: Way) -> tuple[bytes, int]:
        data = wire.write_opinion(way.envelope, self.form, self.labels, self.expertise)
        return data, 8 * self.form.payload_bytes


@dataclass(frozen=True)
class Consensus:
    """What the crowd says of the public set, a class an example; below 0 where it says nothing."""

    labels: Tensor
    num_classes: int

    def travel(self, way: Way) -> tuple[Tensor, int]:
        import torch

        labels, to = self.labels.cpu().numpy(), way.envelope
        code = wire.LabelCode.MASKED if (labels < 0).any() else wire.LabelCode.INDEX
        form = wire.Form(len(labels), self.num_classes, wire.Kind.CONSENSUS, code)
        data = wire.write_consensus(to, form, labels)
        seen = wire.read_consensus(data, wire.Expected(form, to.run, to.public, to.round, {to.client}))
        return torch.as_tensor(seen, dtype=torch.int64), 8 * form.payload_bytes


@dataclass(frozen=True)
class Weights:
    """The tensors of a model as they are. Names and shapes are known to both sides and not counted."""

    values: Parameters

    def travel(self, way: Way) -> tuple[Parameters, int]:
        seen = {name: carried(tensor, way.device) for name, tensor in self.values.items()}
        return seen, sum(bits_of(tensor) for tensor in seen.values())


@dataclass(frozen=True)
class Logits:
    """A model's outputs on the public set as they are: 32 bits per example and class in single precision."""

    values: Tensor

    def travel(self, way: Way) -> tuple[Tensor, int]:
        return carried(self.values, self.values.device), bits_of(self.values)


def carried(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the receiver's own. Numbers sent as they are need not be written out to know what arrives."""
    return tensor.detach().to(device, copy=True)


def bits_of(tensor: Tensor) -> int:
    """The size of a tensor's numbers, written out as they are."""
    return 8 * tensor.numel() * tensor.element_size()
