"""How messages look on the wire: labels and scores in as few bits as they need, packed without gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def label_bits(num_classes: int) -> int:
    """ceil(log2 C): what the index of one of C classes takes; at least one bit."""
    return max(1, (num_classes - 1).bit_length())


def packed_bits(count: int, bits: int) -> int:
    """What `count` values of `bits` bits take once packed into whole bytes."""
    return 8 * -(-count * bits // 8)


def pack(values: NDArray[np.int64], bits: int) -> bytes:
    """`values`, each in [0, 2^bits), one after the other, highest bit first; the last byte is filled with zeros."""
    shifts = np.arange(bits - 1, -1, -1)
    return np.packbits((values[:, None] >> shifts) & 1).tobytes()


def unpack(data: bytes, bits: int, count: int) -> NDArray[np.int64]:
    """The `count` values that `pack` put into `data`."""
    flags = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count * bits).reshape(count, bits)
    return flags.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1))


def quantise(values: NDArray[np.float64], low: float, high: float, bits: int) -> NDArray[np.int64]:
    """The nearest of 2^bits evenly spaced levels from `low` to `high`, for each value."""
    if high == low:
        return np.zeros(len(values), dtype=np.int64)
    top = (1 << bits) - 1
    return np.clip(np.rint((values - low) / (high - low) * top), 0, top).astype(np.int64)


def dequantise(levels: NDArray[np.int64], low: float, high: float, bits: int) -> NDArray[np.float64]:
    """What the receiver takes each level for. Level 0 is exactly `low`."""
    return low + levels.astype(np.float64) * ((high - low) / ((1 << bits) - 1))
