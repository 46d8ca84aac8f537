"""Requests of the coordinator and responses of the sites: a JSON header and the encoded parts of a message.

The receiver trusts no byte: it checks lengths before it slices, and names, shapes and values before it uses them. An
invalid message is rejected as a whole. No field is a path, and none is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from fedmosaic_cli.engine.messages import InvalidPartError, require_declared
from fedmosaic_cli.engine.round_log import MAX_ABS_VALUE, invalid_metric

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Self

    from fedmosaic_cli.engine.context import Message, ReceivedMessage
    from fedmosaic_cli.engine.messages import Part, Route

EncodedParts = dict[str, tuple[str, bytes]]
"""The parts of a message by name, each with its kind."""

JOIN, LOCAL_ROUND, FINALIZE = "join", "local_round", "finalize"
EVALUATE, FINISH, ERROR = "evaluate", "finish", "error"
"""Kinds of requests and responses. `ERROR` is only a response."""
KIND_TITLES = {
    JOIN: "join",
    LOCAL_ROUND: "local round",
    FINALIZE: "finalization",
    EVALUATE: "evaluation",
    FINISH: "finish",
}
"""How logs call a request of each kind."""
EVALUATION_FIELD, METRICS_FIELD, SKIPPED_FIELD = "evaluation", "metrics", "skipped"
"""Header fields of responses: the evaluation of the client, its log values, and whether it diverged and skipped the
round."""
ERROR_UNKNOWN_PARTS, ERROR_DIVERGED, ERROR_REFUSED = "unknown_parts", "diverged", "refused"
ERROR_INVALID, ERROR_FAILED = "invalid", "failed"
ERROR_CODES = frozenset(
    {
        *(ERROR_UNKNOWN_PARTS, ERROR_DIVERGED, ERROR_REFUSED, ERROR_INVALID, ERROR_FAILED),
        *("too_large", "truncated", "trailing", "bad_magic", "bad_version", "checksum", "bad_header", "wrong_run"),
        *("wrong_parts", "missing_parts", "bad_tensors", "wrong_names", "wrong_shape", "not_finite", "too_many"),
        *("wrong_clients", "wrong_public_set", "unknown_client", "stale_round", "future_round", "wrong_count"),
        *("wrong_encoding", "label_range", "expertise_nonfinite", "expertise_range", "expertise_inconsistent"),
    }
)
"""All codes of a site's error responses. Other reasons of an invalid request are sent as "invalid"."""
LAST_ANSWERED_ROUND = "last_answered_round"
"""Key of the last round in which the coordinator received a client's response. A site that remembers less has lost
data."""

WITHHELD = "withheld"
"""Key of a response from which the site's policy removed metrics; see `federation.egress`."""

MAGIC = b"FMLT"
PROTOCOL_VERSION = 3
PREAMBLE = struct.Struct("<4sBI")  # magic, version, length of the header
PROTOCOL_CHECKSUM_BYTES = 8
MAX_HEADER_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 1 << 29
"""The largest message, 512 MiB: a model of 134 million weights in single precision. Larger ones are not decoded."""


class ProtocolError(Exception):
    """A rejected message. The text is a short reason such as "wrong_shape"."""


@dataclass(frozen=True)
class Request:
    """A request of the coordinator.

    Attributes:
        header: Kind, run, round and further values.
        parts: The server's message, encoded.
        cached_digest: `digest_parts` of the parts that the site received last, sent instead of these parts.
    """

    header: dict[str, Any]
    parts: EncodedParts = field(default_factory=dict)
    cached_digest: str | None = None

    @property
    def kind(self) -> str:
        return str(self.header.get("kind"))

    def encode(self) -> bytes:
        known = {"known": self.cached_digest} if self.cached_digest else {}
        return encode_message({**self.header, **known}, self.parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a request of at most `MAX_MESSAGE_BYTES`. Raise `ProtocolError` if it is invalid."""
        header, parts = decode_message(data)
        known = header.pop("known", None)
        if known is not None and (not isinstance(known, str) or parts):
            reject_message("bad_header")
        return cls(header, parts, known)


@dataclass(frozen=True)
class Response:
    """A site's response: what it reports, and its encoded upload."""

    header: dict[str, Any]
    parts: EncodedParts = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.header.get("kind"))

    def encode(self) -> bytes:
        return encode_message(self.header, self.parts)

    @classmethod
    def decode(cls, data: bytes, max_bytes: int | None = None) -> Self:
        """Decode a response of at most `max_bytes`. Raise `ProtocolError` if it is invalid."""
        return cls(*decode_message(data, max_bytes))


def digest_parts(parts: EncodedParts) -> str:
    """Return the digest that represents parts that the site has in its cache."""
    state = hashlib.blake2b(digest_size=16)
    for name, (kind, data) in parts.items():
        state.update(f"{name} {kind} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()


def encode_message(header: dict[str, Any], parts: EncodedParts) -> bytes:
    """Return preamble, JSON header, parts and checksum as bytes."""
    part_list = {"parts": [[name, kind, len(data)] for name, (kind, data) in parts.items()]} if parts else {}
    head = json.dumps({**header, **part_list}, allow_nan=False, separators=(",", ":")).encode()
    body = b"".join([PREAMBLE.pack(MAGIC, PROTOCOL_VERSION, len(head)), head, *(data for _, data in parts.values())])
    return body + protocol_checksum(body)


def decode_message(data: bytes, max_bytes: int | None = None) -> tuple[dict[str, Any], EncodedParts]:
    """Return header and parts. Raise `ProtocolError` if the bytes are not a valid message."""
    if len(data) > min(max_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES):
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
    header = decode_header(data[PREAMBLE.size : PREAMBLE.size + length])
    # A view: the body is copied once, into its parts.
    body = memoryview(data)[PREAMBLE.size + length : -PROTOCOL_CHECKSUM_BYTES]
    return header, split_parts(header.pop("parts", []), body)


def decode_header(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a header, whose numbers are finite and whose texts can be encoded again."""
    try:
        header = json.loads(text, parse_constant=reject_non_finite, parse_float=finite_float)
        if b"\\u" in text:
            json.dumps(header, ensure_ascii=False).encode()  # a ValueError for halves of surrogate pairs
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        reject_message("bad_header")
    return header


def protocol_checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=PROTOCOL_CHECKSUM_BYTES).digest()


def reject_non_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is not finite")


def finite_float(text: str) -> float:
    """Return a number. Raise `ValueError` if it is too large, such as 1e999."""
    value = float(text)
    return value if math.isfinite(value) else reject_non_finite(text)


def split_parts(part_list: Any, body: memoryview) -> EncodedParts:
    """Cut the body into the parts that the header lists. They must fill it exactly."""
    parts: EncodedParts = {}
    start = 0
    if not isinstance(part_list, list):
        reject_message("bad_header")
    for entry in part_list:
        match entry:
            case [str(name), str(kind), int(size)] if name not in parts and size >= 0:
                parts[name] = kind, bytes(body[start : start + size])
                start += size
            case _:
                reject_message("bad_header")
    if start != len(body):
        reject_message("truncated" if start > len(body) else "trailing")
    return parts


def reject_message(reason: str) -> NoReturn:
    """Raise `ProtocolError` with a short reason such as "wrong_shape"."""
    raise ProtocolError(reason)


def encode_parts(message: Message, declared: Mapping[str, Part], route: Route) -> EncodedParts:
    """Encode a message whose parts are of the declared kinds."""
    require_declared(message, declared)
    return {name: (declared[name].kind, declared[name].encode(value, route)) for name, value in message.items()}


def decode_parts(parts: EncodedParts, declared: Mapping[str, Part], route: Route) -> ReceivedMessage:
    """Decode a message as the receiver sees it.

    Args:
        parts: The encoded parts.
        declared: The parts that the method declares. Others are rejected.
        route: The receiver's device and the header that label messages must carry.

    Raises:
        ProtocolError: A part is invalid.
    """
    received: ReceivedMessage = {}
    for name, (kind, data) in parts.items():
        if name not in declared or declared[name].kind != kind:
            reject_message("wrong_parts")
        try:
            received[name] = declared[name].decode(data, route)
        except InvalidPartError as error:
            raise ProtocolError(str(error)) from None
    return received


class ReceivedParts(dict[str, Any]):
    """A received message that is invalid, instead of a defect of the method, if a declared part is read and missing.

    Args:
        received: The decoded parts.
        declared: The names of the parts that the method declares.
    """

    def __init__(self, received: ReceivedMessage, declared: Collection[str]) -> None:
        super().__init__(received)
        self._declared = declared

    def __missing__(self, name: str) -> NoReturn:
        if name in self._declared:
            reject_message("missing_parts")
        raise KeyError(name)


def validate_metrics(metrics: Any) -> dict[str, Any]:
    """Return a site's log values. Raise `ProtocolError` unless they are bounded numbers with allowed names."""
    if not isinstance(metrics, dict) or invalid_metric(metrics):
        reject_message("invalid_metrics")
    if not all(value is None or is_bounded_number(value) for value in metrics.values()):
        reject_message("invalid_metrics")
    return metrics


def is_bounded_number(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_ABS_VALUE <= value <= MAX_ABS_VALUE


def printable_text(text: str, max_chars: int = 300) -> str:
    """Return the start of a foreign text in one line, with spaces for characters that are not printable."""
    return "".join(character if character.isprintable() else " " for character in text[:max_chars])
