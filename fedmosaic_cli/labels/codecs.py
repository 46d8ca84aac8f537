"""Bit packing of labels and quantised scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Big-endian types by number of bytes.
WORD_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(">u2"),
    3: np.dtype(">u4"),
    4: np.dtype(">u4"),
}


def label_bits(num_classes: int) -> int:
    """ceil(log2 C), at least 1: the bits of a class index."""
    return max(1, (num_classes - 1).bit_length())


def packed_bits(count: int, bits: int) -> int:
    """The size of `count` values of `bits` bits, rounded up to whole bytes."""
    return 8 * -(-count * bits // 8)


def pack_bits(values: NDArray[Any], bits: int) -> bytes:
    """Values in [0, 2^bits), packed without gaps, highest bit first; the last byte is padded with zeros."""
    word = WORD_DTYPES[-(-bits // 8)]
    flags = np.unpackbits(values.astype(word).view(np.uint8).reshape(len(values), word.itemsize), axis=1)
    return np.packbits(flags[:, -bits:]).tobytes()


def unpack_bits(data: bytes | memoryview, bits: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
    """The `count` values that `pack_bits` wrote, in the smallest type that holds them."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if bits == 8:
        return raw[:count]
    if 8 % bits == 0:  # several times as fast as the general case below
        per_byte = 8 // bits
        values = np.empty(per_byte * len(raw), dtype=np.uint8)
        for position in range(per_byte):
            values[position::per_byte] = (raw >> np.uint8(8 - bits * (position + 1))) & np.uint8((1 << bits) - 1)
        return values[:count]
    word = WORD_DTYPES[-(-bits // 8)]
    flags = np.zeros((count, 8 * word.itemsize), dtype=np.uint8)
    flags[:, -bits:] = np.unpackbits(raw, count=count * bits).reshape(count, bits)
    return np.packbits(flags, axis=1).reshape(-1).view(word).astype(word.newbyteorder("="))


def has_zero_padding(data: bytes | memoryview, bits: int, count: int) -> bool:
    """True if the padding of the last byte is zero, as `pack_bits` writes it."""
    padding = 8 * len(data) - bits * count
    return padding == 0 or data[-1] & ((1 << padding) - 1) == 0


def quantise(values: NDArray[np.float64], max_value: float, bits: int) -> NDArray[np.int64]:
    """The nearest of 2^bits evenly spaced levels from 0 to `max_value`. Raises ArithmeticError for NaN."""
    if np.isnan(values).any():
        raise ArithmeticError("a value to be quantised is not a number")
    if max_value == 0:
        return np.zeros(len(values), dtype=np.int64)
    top = (1 << bits) - 1
    return np.clip(np.rint(values / max_value * top), 0, top).astype(np.int64)


def dequantise(levels: NDArray[Any], max_value: float, bits: int) -> NDArray[np.float64]:
    """The value of each level. Level 0 is exactly 0."""
    return levels * (max_value / ((1 << bits) - 1))
