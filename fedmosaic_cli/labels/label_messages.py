"""The message parts of label sharing: a client's labels with expertise, and the server's labels or class shares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedmosaic_cli.engine.messages import SERVER_ID, InvalidPartError, Part, reject_part
from fedmosaic_cli.labels import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.context import FederationInfo
    from fedmosaic_cli.engine.messages import Route, UploadLevel

ENCODING_BYTE = 7
"""The position of the label encoding in a message."""


@dataclass(frozen=True)
class LabelVotes:
    """A client's labels of the public set, and the expertise that weighs each of them."""

    labels: NDArray[Any]
    expertise: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class LabelUpload(Part):
    """`LabelVotes` on their way to the server.

    They arrive as bytes: the server validates them before it reads any of it (`labels.inbox`).

    Attributes:
        spec: Returns the encoding of the upload.
    """

    spec: Callable[[FederationInfo], wire.MessageSpec]

    kind: ClassVar[str] = "opinion"
    level: ClassVar[UploadLevel] = "labels"

    def planned_bits(self, ctx: FederationInfo) -> int:
        return 8 * self.spec(ctx).payload_bytes

    def bits(self, value: LabelVotes | bytes, ctx: FederationInfo) -> int:
        return 8 * self.spec(ctx).payload_bytes

    def encode(self, value: LabelVotes, route: Route) -> bytes:
        return wire.encode_label_upload(route.header, self.spec(route.ctx), value.labels, value.expertise)

    def decode(self, data: bytes, route: Route) -> bytes:
        return data


@dataclass(frozen=True)
class ConsensusLabels(Part):
    """One pseudo-label per public example, int64; negative if an example has no label."""

    kind: ClassVar[str] = "consensus"
    level: ClassVar[UploadLevel] = "labels"

    def num_labels(self, value: Tensor) -> int:
        """Return the number of examples that have a label."""
        return int((value >= 0).sum())

    def planned_bits(self, ctx: FederationInfo) -> int:
        return 8 * consensus_spec(ctx, wire.LabelEncoding.INDEX).payload_bytes

    def bits(self, value: Tensor, ctx: FederationInfo) -> int:
        return 8 * self.value_spec(value, ctx).payload_bytes

    def encode(self, value: Tensor, route: Route) -> bytes:
        return wire.encode_consensus_labels(route.header, self.value_spec(value, route.ctx), value.cpu().numpy())

    def decode(self, data: bytes, route: Route) -> Tensor:
        import torch

        code = data[ENCODING_BYTE] if len(data) > ENCODING_BYTE else 0
        if code not in (wire.LabelEncoding.INDEX, wire.LabelEncoding.MASKED):
            reject_part("wrong_encoding")
        spec = consensus_spec(route.ctx, wire.LabelEncoding(code))
        labels = decode_server_message(wire.decode_consensus_labels, data, spec, route)
        return torch.as_tensor(labels, dtype=torch.int64)

    def value_spec(self, value: Tensor, ctx: FederationInfo) -> wire.MessageSpec:
        """Return the encoding of these labels."""
        encoding = wire.LabelEncoding.MASKED if (value < 0).any() else wire.LabelEncoding.INDEX
        return replace(consensus_spec(ctx, encoding), public_size=len(value))


@dataclass(frozen=True)
class ClassShares(Part):
    """A distribution over the classes for every public example, float64 [examples, classes].

    The receiver sees each share rounded to a multiple of 1 / (2^level_bits - 1) of the largest share of its example.

    Attributes:
        level_bits: Bits per share.
    """

    level_bits: int = 4

    kind: ClassVar[str] = "class_shares"
    level: ClassVar[UploadLevel] = "labels"
    is_exact: ClassVar[bool] = False

    def spec(self, ctx: FederationInfo) -> wire.MessageSpec:
        """Return the encoding."""
        return wire.MessageSpec(
            ctx.public_size,
            ctx.num_classes,
            wire.LabelMessageKind.SHARES,
            expertise_encoding=wire.ExpertiseEncoding.LEVELS,
            expertise_bits=self.level_bits,
        )

    def planned_bits(self, ctx: FederationInfo) -> int:
        return 8 * self.spec(ctx).payload_bytes

    def bits(self, value: Tensor, ctx: FederationInfo) -> int:
        return self.planned_bits(ctx)

    def check(self, value: Tensor, ctx: FederationInfo) -> None:
        if tuple(value.shape) != (ctx.public_size, ctx.num_classes):
            reject_part("wrong_shape")
        if not value.isfinite().all() or (value < 0).any() or not (value > 0).any(dim=1).all():
            reject_part("not_finite")

    def encode(self, value: Tensor, route: Route) -> bytes:
        return wire.encode_class_shares(route.header, self.spec(route.ctx), value.cpu().double().numpy())

    def decode(self, data: bytes, route: Route) -> Tensor:
        import torch

        return torch.as_tensor(decode_server_message(wire.decode_class_shares, data, self.spec(route.ctx), route))


def decode_server_message(
    decode: Callable[[bytes, wire.ExpectedMessage], NDArray[Any]], data: bytes, spec: wire.MessageSpec, route: Route
) -> NDArray[Any]:
    """Return the content of a message of the server. Raise InvalidPartError if it is not the expected one."""
    header = route.header
    expected = wire.ExpectedMessage(spec, header.run_id, header.public_set_id, header.round, {SERVER_ID})
    try:
        return decode(data, expected)
    except wire.InvalidMessageError as error:
        raise InvalidPartError(error.reason.value) from None


def consensus_spec(ctx: FederationInfo, encoding: wire.LabelEncoding) -> wire.MessageSpec:
    """Return the encoding of consensus labels."""
    return wire.MessageSpec(ctx.public_size, ctx.num_classes, wire.LabelMessageKind.CONSENSUS, encoding)
