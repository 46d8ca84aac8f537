"""Mutations of encoded requests and responses: damaged bytes, and changed content with a valid checksum."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from fedmosaic_cli.federation import protocol
from fedmosaic_cli.labels import wire

HOSTILE_VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.0, -0.0, 0.5, 1e-300),
    *(
        1e308,
        -1e308,
        5e-324,
        "",
        "0",
        "1",
        "x",
        "\x00",
        "\ud800",
        "../../etc/passwd",
        "/etc/passwd",
        "\x1b[2J\n",
        "é" * 99,
    ),
    *(
        "x" * 5000,
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"kind": "join"},
        [1, 2, 3],
        ["a", "b", 3],
        {"accuracy": 2, "loss": 0},
    ),
    *protocol.KIND_TITLES,
    *("error", "refused", "diverged", "unknown_parts", "withheld"),
]
"""Values that replace a value of a header."""
HOSTILE_LITERALS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 4000, b"1" * 5000, b"-" + b"9" * 400),
    *(b"[" * 2000 + b"]" * 2000, b"[" * 200_000, b'{"a":' * 3000 + b"1" + b"}" * 3000, b'"\xff\xfe"', b'"\\ud800"'),
    *(b"tru", b"'x'", b"0x10", b"01", b"", b'"' + b"a" * 70_000 + b'"', b'"\\u0000"', b"[1,]", b"1.5", b"1.0", b"-0"),
]
"""JSON text, also invalid, that replaces a value of a header."""
KEYS = (
    "kind",
    "run",
    "round",
    "client",
    "error",
    "text",
    "parts",
    "known",
    "last_answered_round",
    "evaluation",
    "metrics",
    "config",
    "withheld",
)
MARKER = "a value to replace 7f3a"

Message = tuple[dict[str, Any], bytes]
"""The header of a message, with its list of parts, and the bytes of all parts."""


class Mutator:
    """Mutates messages of a corpus.

    Args:
        seed: Seed of all choices.
        corpus: Valid encoded messages, also of other clients, rounds, runs and kinds.
    """

    def __init__(self, seed: int, corpus: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._corpus = list(corpus)
        self._mutations: list[Callable[[bytes], bytes]] = [
            self._flip_bits,
            self._truncate,
            self._extend,
            self._splice,
            self._replace_by_other,
            self._change_preamble,
            *(3 * [self._change_value]),
            *(2 * [self._insert_literal]),
            self._change_keys,
            self._duplicate_key,
            self._damage_header_text,
            *(2 * [self._change_part_list]),
            *(2 * [self._change_part_bytes]),
            self._change_tensor_header,
            self._change_label_message,
            self._mix_header_and_parts,
            self._report_error,
        ]

    def mutate(self, data: bytes) -> tuple[str, bytes]:
        """Return the name of a mutation and the mutated message. It may by chance be valid."""
        mutation = self._random.choice(self._mutations)
        return mutation.__name__.strip("_"), mutation(data)

    def _flip_bits(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 2, 8))):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _truncate(self, data: bytes) -> bytes:
        cut = data[: self._random.randrange(len(data))]
        return self._random.choice((cut, with_checksum(cut)))

    def _extend(self, data: bytes) -> bytes:
        more = self._random.randbytes(self._random.choice((1, 8, 100, 4000)))
        return self._random.choice(
            (data + more, more + data, with_checksum(data[: -protocol.PROTOCOL_CHECKSUM_BYTES] + more))
        )

    def _splice(self, data: bytes) -> bytes:
        other = self._random.choice(self._corpus)
        spliced = data[: self._random.randrange(len(data))] + other[self._random.randrange(len(other)) :]
        return self._random.choice((spliced, with_checksum(spliced)))

    def _replace_by_other(self, data: bytes) -> bytes:
        return self._random.choice(self._corpus)

    def _change_preamble(self, data: bytes) -> bytes:
        magic, version, length = protocol.PREAMBLE.unpack_from(data)
        magic = self._random.choice((magic, b"FMOS", b"\0\0\0\0"))
        version = self._random.choice((version, 0, 1, 3, 255))
        length = self._random.choice((length, 0, 1, length - 1, length + 1, len(data), 2**31, 2**32 - 1))
        rest = data[protocol.PREAMBLE.size : -protocol.PROTOCOL_CHECKSUM_BYTES]
        return with_checksum(protocol.PREAMBLE.pack(magic, version, length) + rest)

    def _change_value(self, data: bytes) -> bytes:
        """Replace values anywhere in the header, also in nested ones."""
        header, body = split_message(data)
        for _ in range(self._random.choice((1, 1, 2, 4))):
            container, key = self._random_place(header)
            container[key] = self._hostile_value(container[key])
        return join_message(header, body)

    def _insert_literal(self, data: bytes) -> bytes:
        """Replace a value by JSON text that no encoder would write."""
        header, body = split_message(data)
        container, key = self._random_place(header)
        container[key] = MARKER
        text = to_json(header).replace(to_json(MARKER), self._random.choice(HOSTILE_LITERALS), 1)
        return join_bytes(text, body)

    def _change_keys(self, data: bytes) -> bytes:
        """Remove, rename, swap or add keys."""
        header, body = split_message(data)
        keys = list(header)
        first, second = self._random.choice(keys), self._random.choice((*keys, *KEYS))
        kind = self._random.randrange(4)
        if kind == 0:
            del header[first]
        elif kind == 1:
            header[self._random.choice((second, first.upper(), first + "\0", ""))] = header.pop(first)
        elif kind == 2:
            header[first], header[second] = header.get(second), header[first]
        else:
            header[second] = self._hostile_value(header.get(second))
        return join_message(header, body)

    def _duplicate_key(self, data: bytes) -> bytes:
        header, body = split_message(data)
        key = self._random.choice(list(header))
        more = b"," + to_json(key) + b":" + to_json(self._hostile_value(header[key])) + b"}"
        return join_bytes(to_json(header)[:-1] + more, body)

    def _damage_header_text(self, data: bytes) -> bytes:
        header, body = split_message(data)
        text = bytearray(to_json(header))
        for _ in range(self._random.choice((1, 2, 5))):
            text[self._random.randrange(len(text))] = self._random.choice(
                (0, 34, 44, 58, 91, 123, 125, 192, 255, 48, 57)
            )
        return join_bytes(bytes(text), body)

    def _change_part_list(self, data: bytes) -> bytes:
        """Change names, kinds, lengths and number of the listed parts."""
        header, body = split_message(data)
        parts = header.get("parts") or [["model", "weights", len(body)]]
        entry = self._random.choice(parts)
        size = entry[2]
        changes = {
            0: [entry[0] + "x", "", "consensus", "opinion", "model", None, 5],
            1: ["weights", "tensors", "scalars", "logits", "per_client", "opinion", "consensus", "", None],
            2: [0, size - 1, size + 1, -1, -size, 2**40, 2**63, True, float(size), str(size), None, 2**62],
        }
        kind = self._random.randrange(6)
        if kind in changes:
            entry[kind] = self._random.choice(changes[kind])
        elif kind == 3:
            parts = [*parts, *copy.deepcopy(parts)]
        elif kind == 4:
            parts = [*parts, [f"x{self._random.randrange(9)}", "weights", 0]] * self._random.choice((1, 2, 3000))
        else:
            parts = self._random.choice(([], [[]], parts[::-1], [entry[:2]], [[*entry, 1]], {"0": entry}, "parts", 7))
        return join_message({**header, "parts": parts}, body)

    def _change_part_bytes(self, data: bytes) -> bytes:
        """Change the bytes of the parts and keep lengths and checksum valid."""
        header, body = split_message(data)
        if not body:
            return self._change_part_list(data)
        changed = bytearray(body)
        kind = self._random.randrange(4)
        start = self._random.randrange(len(changed))
        if kind == 0:
            changed[start] ^= 1 << self._random.randrange(8)
        elif kind == 1:
            value = self._random.choice((float("nan"), float("inf"), float("-inf"), 3e38, -1e20, 1e-45))
            changed[start : start + 4] = struct.pack("<f", value)[: len(changed) - start]
        elif kind == 2:
            changed[start:] = self._random.randbytes(len(changed) - start)
        else:
            self._random.shuffle(changed)
        return join_message(header, bytes(changed))

    def _change_tensor_header(self, data: bytes) -> bytes:
        """Change shapes, types, names and offsets in the header of tensors."""
        header, body = split_message(data)
        try:
            [[name, kind, _]] = header["parts"]
            [length] = struct.unpack_from("<Q", body)
            tensors = json.loads(body[8 : 8 + length])
        except (KeyError, ValueError, struct.error):
            return self._change_part_bytes(data)
        entry = tensors[self._random.choice(list(tensors))]
        changes: dict[str, list[Any]] = {
            "dtype": ["F64", "I64", "BOOL", "F16", "U8", "F4", "C64", "X", None, 7],
            "shape": [[], [0], [1], [2**40], [2**62, 2**62], [-1], [1.5], None, "1", [1] * 3000, entry["shape"][::-1]],
            "data_offsets": [[0, 0], [0, 2**62], [-1, 4], [8, 4], [0], None, [1, 5]],
        }
        key = self._random.choice(("dtype", "shape", "data_offsets", "name", "length", "values"))
        if key in changes:
            entry[key] = self._random.choice(changes[key])
        elif key == "name":
            tensors[self._random.choice(("", "x", "__metadata__"))] = tensors.pop(self._random.choice(list(tensors)))
        head = json.dumps(tensors).encode()
        declared = (
            self._random.choice((0, 2**63, 2**64 - 1, len(head) - 1, len(body))) if key == "length" else len(head)
        )
        values = body[8 + length :]
        values = values[: self._random.randrange(len(values) + 1)] if key == "values" else values
        changed = struct.pack("<Q", declared) + head + values
        return join_message({**header, "parts": [[name, kind, len(changed)]]}, changed)

    def _change_label_message(self, data: bytes) -> bytes:
        """Change a field or the payload of a label message and correct its checksum."""
        header, body = split_message(data)
        if not body.startswith(wire.MAGIC) or len(body) < wire.HEADER_STRUCT.size + wire.CHECKSUM_BYTES:
            return self._change_part_bytes(data)
        fields = list(wire.HEADER_STRUCT.unpack_from(body))
        payload = body[wire.HEADER_STRUCT.size : -wire.CHECKSUM_BYTES]
        position = self._random.randrange(len(fields) + 1)
        if position == len(fields):
            payload = self._random.choice(
                (self._random.randbytes(len(payload)), payload[:-1], payload + b"\0", b"\xff" * len(payload))
            )
        elif isinstance(fields[position], bytes):
            fields[position] = self._random.randbytes(len(fields[position]))
        elif isinstance(fields[position], float):
            fields[position] = self._random.choice((float("nan"), float("inf"), -1.0, 0.0, 1e308))
        else:
            fields[position] = self._random.choice(
                (0, 1, 2, 3, 255) if position < 7 else (0, 1, 2, 61, 2**31, 2**32 - 1)
            )
        changed = wire.HEADER_STRUCT.pack(*fields) + payload
        changed += wire.message_checksum(changed)
        [[name, kind, _]] = header["parts"]
        return join_message({**header, "parts": [[name, kind, len(changed)]]}, changed)

    def _mix_header_and_parts(self, data: bytes) -> bytes:
        """Combine the header of a message with the parts of another one."""
        header, _ = split_message(data)
        other, body = split_message(self._random.choice(self._corpus))
        header.pop("parts", None)
        return join_message(header | ({"parts": other["parts"]} if "parts" in other else {}), body)

    def _report_error(self, data: bytes) -> bytes:
        """Turn a message into an error response with a hostile code, text and round."""
        header, _ = split_message(data)
        codes = ("refused", "diverged", "unknown_parts", "failed", "diverged: x", "x" * 500, None, 7, ["refused"])
        changes = {key: self._hostile_value(header.get(key)) for key in ("text", "round", "client")}
        return join_message({**header, "kind": "error", "error": self._random.choice(codes), **changes}, b"")

    def _random_place(self, header: dict[str, Any]) -> tuple[Any, Any]:
        """Return a container in the header and a key of it; each level has the same chance to be the last."""
        container: Any = header
        while True:
            keys = list(container) if isinstance(container, dict) else list(range(len(container)))
            key = self._random.choice(keys)
            inner = container[key]
            if not isinstance(inner, (dict, list)) or not inner or self._random.random() < 0.2:
                return container, key
            container = inner

    def _hostile_value(self, value: Any) -> Any:
        """Return a value of a wrong type or range, or one that is close to a valid value."""
        if self._random.random() < 0.7:
            return copy.deepcopy(self._random.choice(HOSTILE_VALUES))
        if isinstance(value, bool) or value is None:
            return [value]
        if isinstance(value, (int, float)):
            return self._random.choice((-value, value + 1, value - 1, value * 1000, 0.5, str(value), [value]))
        if isinstance(value, str):
            return self._random.choice((value + "\0", value[:-1], value.upper(), value + "/..", [value], " " + value))
        return self._random.choice((str(value), [value], list(value)))


def split_message(data: bytes) -> Message:
    """Return header and body of a valid message."""
    _, _, length = protocol.PREAMBLE.unpack_from(data)
    end = protocol.PREAMBLE.size + length
    return json.loads(data[protocol.PREAMBLE.size : end]), data[end : -protocol.PROTOCOL_CHECKSUM_BYTES]


def join_message(header: dict[str, Any], body: bytes) -> bytes:
    """Return a message with a valid checksum, whatever its header contains."""
    return join_bytes(to_json(header), body)


def join_bytes(head: bytes, body: bytes) -> bytes:
    """Return a message with a valid checksum, also if `head` is not JSON."""
    return with_checksum(protocol.PREAMBLE.pack(protocol.MAGIC, protocol.PROTOCOL_VERSION, len(head)) + head + body)


def with_checksum(body: bytes) -> bytes:
    return body + protocol.protocol_checksum(body)


def to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
