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

from fedmosaic_cli.engine.messages import read_consensus
from fedmosaic_cli.labels import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message, Way
    from fedmosaic_cli.engine.method import Parameters, Received, World

MAGIC = b"FMLT"
VERSION = 1
FRONT = struct.Struct("<4sBI")  # magic, version, length of the head
CHECKSUM = 8
MOST_HEAD = 1 << 20
# Words that stand in most heads: a head is told by what it has beside them.
WORDS = (
    b'{"kind":"finish","kind":"exam","kind":"join","kind":"turn","client":10,"run":"/fedmosaic-entropy/seed-0/","round":1'
    b',"heard":1,"notes":{"trust":0.0,"public_share":0.0,"alpha":0.,"loss_private":0.0,"agreement":null,"agreement":0.,'
    b'"loss_public":0.},"left_out":false,"mark":{"accuracy":0.9,"loss":0.0,"global_accuracy":0.9},"mark":null,'
    b'"known":"","parts":[["labels","consensus",],["model","weights",],["logits","logits",],["opinion","opinion",]]}'
)
KINDS = ("opinion", "consensus", "weights", "logits")
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MOST_NOTES = 64
# What a line of the log says by itself: no site puts its own words there.
OURS = (
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
OURS_END = "_accuracy"
LARGEST = 1e100
"""No number above this is one: sums of those that are stay finite."""


class RefusedLetterError(Exception):
    """A letter that is not used, and the reason in a word."""


@dataclass(frozen=True)
class Letter:
    """What was asked or answered, and the parts behind it, each of a kind. `known` stands for parts that the other side
    was sent before."""

    head: dict[str, Any]
    parts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    known: str | None = None

    @property
    def kind(self) -> str:
        return str(self.head.get("kind"))

    @property
    def digest(self) -> str:
        """What stands for the parts."""
        return digest_of(self.parts)


def digest_of(parts: Mapping[str, tuple[str, bytes]]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for name, (kind, data) in parts.items():
        state.update(f"{name} {kind} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()


def write(letter: Letter) -> bytes:
    """A letter as it travels."""
    about = {"parts": [[name, kind, len(data)] for name, (kind, data) in letter.parts.items()]} if letter.parts else {}
    told = {**letter.head, **about, **({"known": letter.known} if letter.known else {})}
    head = squeezed(json.dumps(told, allow_nan=False, separators=(",", ":")).encode())
    body = b"".join([FRONT.pack(MAGIC, VERSION, len(head)), head, *(data for _, data in letter.parts.values())])
    return body + checksum(body)


def read(data: bytes, most: int | None = None) -> Letter:
    """A letter of at most so many bytes. Raises RefusedLetterError."""
    if most is not None and len(data) > most:
        refuse("too_large")
    if len(data) < FRONT.size + CHECKSUM:
        refuse("truncated")
    magic, version, length = FRONT.unpack_from(data)
    if magic != MAGIC:
        refuse("bad_magic")
    if version != VERSION:
        refuse("bad_version")
    if length > MOST_HEAD or FRONT.size + length + CHECKSUM > len(data):
        refuse("truncated")
    if checksum(memoryview(data)[:-CHECKSUM]) != data[-CHECKSUM:]:
        refuse("checksum")
    head = read_head(data[FRONT.size : FRONT.size + length])
    parts = cut(head.pop("parts", []), data[FRONT.size + length : -CHECKSUM])
    known = head.pop("known", None)
    if known is not None and (not isinstance(known, str) or parts):
        refuse("bad_head")
    return Letter(head, parts, known)


def squeezed(head: bytes) -> bytes:
    """A head in fewer bytes."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=WORDS)
    return squeeze.compress(head) + squeeze.flush()


def expanded(data: bytes) -> bytes:
    """A head as it was; however small it is, it does not grow beyond what a head may be."""
    expand = zlib.decompressobj(-zlib.MAX_WBITS, zdict=WORDS)
    try:
        head = expand.decompress(data, MOST_HEAD + 1)
    except zlib.error:
        refuse("bad_head")
    if len(head) > MOST_HEAD or not expand.eof or expand.unused_data:
        refuse("bad_head")
    return head


def checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECKSUM).digest()


def read_head(data: bytes) -> dict[str, Any]:
    try:
        head = json.loads(expanded(data), parse_constant=no_number)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        refuse("bad_head")
    return head


def no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def cut(listed: Any, body: bytes) -> dict[str, tuple[str, bytes]]:
    """The parts that lie behind the head, one after the other, with nothing before, between or after them."""
    parts: dict[str, tuple[str, bytes]] = {}
    at = 0
    if not isinstance(listed, list):
        refuse("bad_head")
    for entry in listed:
        match entry:
            case [str(name), str(kind), int(size)] if kind in KINDS and name not in parts and size >= 0:
                parts[name] = kind, body[at : at + size]
                at += size
            case _:
                refuse("bad_head")
    if at != len(body):
        refuse("truncated" if at > len(body) else "trailing")
    return parts


def refuse(reason: str) -> NoReturn:
    raise RefusedLetterError(reason)


def packed(message: Message, way: Way) -> dict[str, tuple[str, bytes]]:
    """The parts of a message as bytes."""
    return {name: (part.kind, part.write(way)) for name, part in message.items()}


def unpacked(parts: Mapping[str, tuple[str, bytes]], way: Way, world: World, expected: Parameters | None) -> Received:
    """A message as the receiver sees it. `expected` is a model that weights must be like; None is a part of the common
    one."""
    received: Received = {}
    for name, (kind, data) in parts.items():
        if kind == "opinion":
            received[name] = data  # sealed: the inbox opens it
        elif kind == "consensus":
            received[name] = consensus_of(data, way, world)
        elif kind == "weights":
            received[name] = weights_of(data, world.init, expected, way.device)
        else:
            received[name] = logits_of(data, world)
    return received


def consensus_of(data: bytes, way: Way, world: World) -> Tensor:
    code = data[7] if len(data) > 7 else 0  # where a message says how its labels are written
    if code not in (wire.LabelCode.INDEX, wire.LabelCode.MASKED):
        refuse("wrong_encoding")
    form = wire.Form(world.public_size, world.num_classes, wire.Kind.CONSENSUS, wire.LabelCode(code))
    try:
        return read_consensus(data, form, way.envelope)
    except wire.RefusedError as error:
        raise RefusedLetterError(error.reason.value) from None


def weights_of(data: bytes, common: Parameters, like: Parameters | None, device: torch.device) -> Parameters:
    """A model with the names, shapes and types of another one, and numbers that are some."""
    from fedmosaic_cli.engine.params import finite

    tensors = tensors_of(data)
    expected = {name: tensor for name, tensor in common.items() if name in tensors} if like is None else like
    if tensors.keys() != expected.keys():
        refuse("wrong_names")
    if any(tensors[n].shape != t.shape or tensors[n].dtype != t.dtype for n, t in expected.items()):
        refuse("wrong_shape")
    if not finite(tensors):
        refuse("not_finite")
    return {name: tensors[name].to(device) for name in expected}


def logits_of(data: bytes, world: World) -> Tensor:
    tensors = tensors_of(data)
    if tensors.keys() != {"logits"}:
        refuse("wrong_names")
    logits: Tensor = tensors["logits"]
    if tuple(logits.shape) != (world.public_size, world.num_classes) or 8 * logits.element_size() != world.number_bits:
        refuse("wrong_shape")
    if not logits.is_floating_point() or not logits.isfinite().all():
        refuse("not_finite")
    return logits


def tensors_of(data: bytes) -> Parameters:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: Parameters = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError):
        refuse("bad_tensors")
    return tensors


def checked_notes(notes: Any) -> dict[str, Any]:
    """What a site says of its round for the log: few numbers under plain names, none of which are ours."""
    if not isinstance(notes, dict) or len(notes) > MOST_NOTES:
        refuse("bad_notes")
    for name, value in notes.items():
        ours = name in OURS or name.endswith(OURS_END)
        if ours or not NAME.fullmatch(name) or not (value is None or is_number(value)):
            refuse("bad_notes")
    return notes


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


def printable(text: str, most: int = 300) -> str:
    """What somebody else wrote, as far as it can be shown in a line."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])
