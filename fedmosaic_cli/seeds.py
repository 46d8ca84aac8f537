"""Randomness derived from names, not carried along.

Whatever is random is drawn from a stream named by (seed, purpose, client, round). So resuming needs no generator
state, the order of clients does not matter, and two methods that should agree do agree, bit for bit.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called `names` under `seed`."""
    key = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for the stream called `names` under `seed`."""
    return np.random.default_rng(derive(seed, *names))
