"""Random streams derived from names instead of carried state.

Every stream is named by (seed, purpose, client, round). Resuming therefore needs no generator state, the order of
clients does not matter, and two methods that should agree do so bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def derive_seed(seed: int, *stream: str | int) -> int:
    """Return the 63-bit seed of the named stream."""
    key = "/".join([str(seed), *map(str, stream)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def derive_rng(seed: int, *stream: str | int) -> np.random.Generator:
    """Return a NumPy generator for the named stream."""
    return np.random.default_rng(derive_seed(seed, *stream))


class RandomSource(Protocol):
    """A source of random numbers: a NumPy generator or `SystemRandom`."""

    def random(self, shape: tuple[int, ...], /) -> NDArray[np.float64]: ...

    def integers(self, low: int, high: int, shape: tuple[int, ...], /) -> NDArray[np.int64]: ...

    def normal(self, mean: float, sigma: float, shape: tuple[int, ...], /) -> NDArray[np.float64]: ...


class SystemRandom:
    """Random source of the operating system, which cannot be repeated; for privacy noise on real sites."""

    def random(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return uniform values in [0, 1) with 53 random bits each."""
        words = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64)
        return (words >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return integers in [low, high)."""
        return low + (self.random(shape) * (high - low)).astype(np.int64)

    def normal(self, mean: float, sigma: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return normal values by the Box-Muller transform."""
        radius, angle = np.sqrt(-2.0 * np.log1p(-self.random(shape))), 2.0 * np.pi * self.random(shape)
        return mean + sigma * radius * np.cos(angle)
