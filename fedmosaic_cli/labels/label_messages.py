"""The message parts of label sharing: a client's labels with their expertise, and the consensus of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedmosaic_cli.engine.messages import SERVER_ID
from fedmosaic_cli.labels import wire

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.messages import MessageHeader, Route


@dataclass(frozen=True)
class LabelUpload:
    """A client's labels of the public set, and the expertise that weighs each of them.

    It arrives as bytes: the server validates them before it reads any of it (`labels.inbox`).
    """

    labels: NDArray[Any]
    expertise: NDArray[np.float64] | None
    spec: wire.MessageSpec

    kind: ClassVar[str] = "opinion"

    @property
    def bits(self) -> int:
        return 8 * self.spec.payload_bytes

    def encode(self, route: Route) -> bytes:
        return wire.encode_label_upload(route.header, self.spec, self.labels, self.expertise)

    def deliver(self, route: Route) -> tuple[bytes, int]:
        return self.encode(route), self.bits


@dataclass(frozen=True)
class ConsensusLabels:
    """One pseudo-label per public example; negative if an example has no label."""

    labels: Tensor
    num_classes: int

    kind: ClassVar[str] = "consensus"

    @property
    def spec(self) -> wire.MessageSpec:
        encoding = wire.LabelEncoding.MASKED if (self.labels < 0).any() else wire.LabelEncoding.INDEX
        return wire.MessageSpec(len(self.labels), self.num_classes, wire.LabelMessageKind.CONSENSUS, encoding)

    @property
    def bits(self) -> int:
        return 8 * self.spec.payload_bytes

    def encode(self, route: Route) -> bytes:
        return wire.encode_consensus_labels(route.header, self.spec, self.labels.cpu().numpy())

    def deliver(self, route: Route) -> tuple[Tensor, int]:
        return decode_consensus(self.encode(route), self.spec, route.header), self.bits


def decode_consensus(data: bytes, spec: wire.MessageSpec, header: MessageHeader) -> Tensor:
    """Read consensus labels that the server sent.

    Args:
        data: The encoded message.
        spec: The expected encoding.
        header: Run, public set and round that the message must name.

    Raises:
        wire.InvalidMessageError: The message is damaged or belongs to another run or round.
    """
    import torch

    expected = wire.ExpectedMessage(spec, header.run_id, header.public_set_id, header.round, {SERVER_ID})
    return torch.as_tensor(wire.decode_consensus_labels(data, expected), dtype=torch.int64)
