"""Letters between the coordinator of a run and its sites: a head that says what is asked or answered, and the parts of
a message behind it.

Whoever reads one trusts nothing in it: lengths are compared before anything is cut out, names, shapes and numbers
before they are used, and what does not fit is refused as a whole. Nothing in a letter is a path, and none is executed.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.label_messages import decode_consensus

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message, Route
    from fedmosaic_cli.engine.method import FederationInfo, Parameters, ReceivedMessage

MAGIC = b"FMLT"
PROTOCOL_VERSION = 1
PREAMBLE = struct.Struct("<4sBI")  # magic, version, length of the head
PROTOCOL_CHECKSUM_BYTES = 8
MAX_HEADER_BYTES = 1 << 20
# Words that stand in most heads: a head is told by what it has beside them.
HEADER_DICTIONARY = (
    b'{"kind":"finish","kind":"exam","kind":"join","kind":"turn","client":10,"run":"/fedmosaic-entropy/seed-0/","round":1'
    b',"heard":1,"notes":{"trust":0.0,"public_share":0.0,"alpha":0.,"loss_private":0.0,"agreement":null,"agreement":0.,'
    b'"loss_public":0.},"left_out":false,"mark":{"accuracy":0.9,"loss":0.0,"global_accuracy":0.9},"mark":null,'
    b'"known":"","parts":[["labels","consensus",],["model","weights",],["logits","logits",],["opinion","opinion",]]}'
)
PART_KINDS = ("opinion", "consensus", "weights", "logits")
METRIC_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_METRICS = 64
# What a line of the log says by itself: no site puts its own words there.
RESERVED_METRICS = (
    *(
        "round",
        "client",
        "lambda",
        "accuracy",
        "test_loss",
        "bits_up",
        "bits_down",
        "lost",
        "unexamined",
        "message",
        "left_out",
    ),
    *("received", "accepted", "abstained", "late", "rejected", "retried", "degraded"),
)
RESERVED_METRIC_SUFFIX = "_accuracy"
MAX_ABS_VALUE = 1e100
"""No number above this is one: sums of those that are stay finite."""


class ProtocolError(Exception):
    """A letter that is not used, and the reason in a word."""


@dataclass(frozen=True)
class ProtocolMessage:
    """What was asked or answered, and the parts behind it, each of a kind. `known` stands for parts that the other side
    was sent before."""

    header: dict[str, Any]
    parts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    cached_digest: str | None = None

    @property
    def kind(self) -> str:
        return str(self.header.get("kind"))

    @property
    def parts_digest(self) -> str:
        """What stands for the parts."""
        return digest_parts(self.parts)


def digest_parts(parts: Mapping[str, tuple[str, bytes]]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for name, (kind, data) in parts.items():
        state.update(f"{name} {kind} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()


def encode_protocol_message(message: ProtocolMessage) -> bytes:
    """A letter as it travels."""
    about = (
        {"parts": [[name, kind, len(data)] for name, (kind, data) in message.parts.items()]} if message.parts else {}
    )
    told = {**message.header, **about, **({"known": message.cached_digest} if message.cached_digest else {})}
    head = compress_header(json.dumps(told, allow_nan=False, separators=(",", ":")).encode())
    body = b"".join(
        [PREAMBLE.pack(MAGIC, PROTOCOL_VERSION, len(head)), head, *(data for _, data in message.parts.values())]
    )
    return body + protocol_checksum(body)


def decode_protocol_message(data: bytes, max_bytes: int | None = None) -> ProtocolMessage:
    """A letter of at most so many bytes. Raises RefusedLetterError."""
    if max_bytes is not None and len(data) > max_bytes:
        reject_message("too_large")
    if len(data) < PREAMBLE.size + PROTOCOL_CHECKSUM_BYTES:
        reject_message("truncated")
    magic, version, length = PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        reject_message("bad_magic")
    if version != PROTOCOL_VERSION:
        reject_message("bad_version")
    if length > MAX_HEADER_BYTES or PREAMBLE.size + length + PROTOCOL_CHECKSUM_BYTES > len(data):
        reject_message("truncated")
    if protocol_checksum(memoryview(data)[:-PROTOCOL_CHECKSUM_BYTES]) != data[-PROTOCOL_CHECKSUM_BYTES:]:
        reject_message("checksum")
    head = decode_header(data[PREAMBLE.size : PREAMBLE.size + length])
    parts = split_parts(head.pop("parts", []), data[PREAMBLE.size + length : -PROTOCOL_CHECKSUM_BYTES])
    known = head.pop("known", None)
    if known is not None and (not isinstance(known, str) or parts):
        reject_message("bad_head")
    return ProtocolMessage(head, parts, known)


def compress_header(header: bytes) -> bytes:
    """A head in fewer bytes."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=HEADER_DICTIONARY)
    return squeeze.compress(header) + squeeze.flush()


def decompress_header(data: bytes) -> bytes:
    """A head as it was; however small it is, it does not grow beyond what a head may be."""
    expand = zlib.decompressobj(-zlib.MAX_WBITS, zdict=HEADER_DICTIONARY)
    try:
        head = expand.decompress(data, MAX_HEADER_BYTES + 1)
    except zlib.error:
        reject_message("bad_head")
    if len(head) > MAX_HEADER_BYTES or not expand.eof or expand.unused_data:
        reject_message("bad_head")
    return head


def protocol_checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=PROTOCOL_CHECKSUM_BYTES).digest()


def decode_header(data: bytes) -> dict[str, Any]:
    try:
        head = json.loads(decompress_header(data), parse_constant=reject_non_finite)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        reject_message("bad_head")
    return head


def reject_non_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def split_parts(part_list: Any, body: bytes) -> dict[str, tuple[str, bytes]]:
    """The parts that lie behind the head, one after the other, with nothing before, between or after them."""
    parts: dict[str, tuple[str, bytes]] = {}
    at = 0
    if not isinstance(part_list, list):
        reject_message("bad_head")
    for entry in part_list:
        match entry:
            case [str(name), str(kind), int(size)] if kind in PART_KINDS and name not in parts and size >= 0:
                parts[name] = kind, body[at : at + size]
                at += size
            case _:
                reject_message("bad_head")
    if at != len(body):
        reject_message("truncated" if at > len(body) else "trailing")
    return parts


def reject_message(reason: str) -> NoReturn:
    raise ProtocolError(reason)


def encode_parts(message: Message, route: Route) -> dict[str, tuple[str, bytes]]:
    """The parts of a message as bytes."""
    return {name: (part.kind, part.encode(route)) for name, part in message.items()}


def decode_parts(
    parts: Mapping[str, tuple[str, bytes]], route: Route, ctx: FederationInfo, expected_model: Parameters | None
) -> ReceivedMessage:
    """A message as the receiver sees it. `expected` is a model that weights must be like; None is a part of the common
    one."""
    received: ReceivedMessage = {}
    for name, (kind, data) in parts.items():
        if kind == "opinion":
            received[name] = data  # sealed: the inbox opens it
        elif kind == "consensus":
            received[name] = decode_consensus_part(data, route, ctx)
        elif kind == "weights":
            received[name] = decode_weights_part(data, ctx.initial_model, expected_model, route.device)
        else:
            received[name] = decode_logits_part(data, ctx)
    return received


def decode_consensus_part(data: bytes, route: Route, ctx: FederationInfo) -> Tensor:
    code = data[7] if len(data) > 7 else 0  # where a message says how its labels are written
    if code not in (wire.LabelEncoding.INDEX, wire.LabelEncoding.MASKED):
        reject_message("wrong_encoding")
    form = wire.MessageSpec(ctx.public_size, ctx.num_classes, wire.LabelMessageKind.CONSENSUS, wire.LabelEncoding(code))
    try:
        return decode_consensus(data, form, route.header)
    except wire.InvalidMessageError as error:
        raise ProtocolError(error.reason.value) from None


def decode_weights_part(
    data: bytes, initial_model: Parameters, expected_model: Parameters | None, device: torch.device
) -> Parameters:
    """A model with the names, shapes and types of another one, and numbers that are some."""
    from fedmosaic_cli.engine.params import is_finite

    tensors = decode_tensors(data)
    expected = (
        {name: tensor for name, tensor in initial_model.items() if name in tensors}
        if expected_model is None
        else expected_model
    )
    if tensors.keys() != expected.keys():
        reject_message("wrong_names")
    if any(tensors[n].shape != t.shape or tensors[n].dtype != t.dtype for n, t in expected.items()):
        reject_message("wrong_shape")
    if not is_finite(tensors):
        reject_message("not_finite")
    return {name: tensors[name].to(device) for name in expected}


def decode_logits_part(data: bytes, ctx: FederationInfo) -> Tensor:
    tensors = decode_tensors(data)
    if tensors.keys() != {"logits"}:
        reject_message("wrong_names")
    logits: Tensor = tensors["logits"]
    if tuple(logits.shape) != (ctx.public_size, ctx.num_classes) or 8 * logits.element_size() != ctx.float_bits:
        reject_message("wrong_shape")
    if not logits.is_floating_point() or not logits.isfinite().all():
        reject_message("not_finite")
    return logits


def decode_tensors(data: bytes) -> Parameters:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: Parameters = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError):
        reject_message("bad_tensors")
    return tensors


def validate_metrics(metrics: Any) -> dict[str, Any]:
    """What a site says of its round for the log: few numbers under plain names, none of which are ours."""
    if not isinstance(metrics, dict) or len(metrics) > MAX_METRICS:
        reject_message("bad_notes")
    for name, value in metrics.items():
        ours = name in RESERVED_METRICS or name.endswith(RESERVED_METRIC_SUFFIX)
        if ours or not METRIC_NAME_PATTERN.fullmatch(name) or not (value is None or is_bounded_number(value)):
            reject_message("bad_notes")
    return metrics


def is_bounded_number(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_ABS_VALUE <= value <= MAX_ABS_VALUE


def printable_text(text: str, max_chars: int = 300) -> str:
    """What somebody else wrote, as far as it can be shown in a line."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:max_chars])
