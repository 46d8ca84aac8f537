"""What every data set has to say of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.io.download import Download

MOST_CLASSES = 65_536


@dataclass(frozen=True)
class Wanted:
    """Which part of a data set, at which size, with the help of which place.

    Without `pixels` image files are only counted: what comes back has the right shape and labels, and is black.
    """

    place: Place
    domains: tuple[str, ...] = ()
    image_size: int | None = None
    pixels: bool = True


@dataclass(frozen=True)
class Facts:
    """What is known of a data set before, or without, loading it. Sides are None where images come in any size."""

    classes: int
    channels: int
    side: int | None
    train: int | None = None
    test: int | None = None


@dataclass(frozen=True)
class Look:
    """What a glance at the user's own files tells."""

    examples: int
    domains: tuple[str, ...] = ()
    clients: int | None = None


@dataclass(frozen=True)
class Source:
    """A data set: how to find it below a data directory, how to load it from there, and what to do where it is not.

    `public_size` is the size of the public set when nobody asks for another; where it is None, a glance (`look`)
    decides. `image_size` is the side that images are brought to, None where they stay as they are. `fedbn` are the
    shares of the smallest domain's training list that FedBN trains and validates on.
    """

    about: str
    find: Callable[[Path], Path | None]
    load: Callable[[Path, Wanted], Dataset]
    how_to_get: str
    public_size: int | None = None
    domains: tuple[str, ...] = ()
    facts: Facts | None = None
    look: Callable[[Path], Look] | None = None
    resizable: bool = False
    image_size: int | None = None
    fedbn: tuple[float, float] | None = None
    downloads: tuple[Download, ...] = ()
