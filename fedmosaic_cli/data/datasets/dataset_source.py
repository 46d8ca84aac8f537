"""What every data set has to say of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.io.download import Download

MAX_CLASSES = 65_536


@dataclass(frozen=True)
class LoadOptions:
    """Which part of a data set, at which size, with the help of which place.

    Without `pixels` image files are only counted: what comes back has the right shape and labels, and is black.
    """

    data_dirs: DataDirs
    domains: tuple[str, ...] = ()
    image_size: int | None = None
    load_pixels: bool = True


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before, or without, loading it. Sides are None where images come in any size."""

    num_classes: int
    num_channels: int
    image_size: int | None
    num_train: int | None = None
    num_test: int | None = None


@dataclass(frozen=True)
class UserDataInfo:
    """What a glance at the user's own files tells."""

    num_examples: int
    domains: tuple[str, ...] = ()
    num_clients: int | None = None


@dataclass(frozen=True)
class DatasetSource:
    """A data set: how to find it below a data directory, how to load it from there, and what to do where it is not.

    `public_size` is the size of the public set when nobody asks for another; where it is None, a glance (`look`)
    decides. `image_size` is the side that images are brought to, None where they stay as they are. `fedbn` are the
    shares of the smallest domain's training list that FedBN trains and validates on.
    """

    description: str
    find: Callable[[Path], Path | None]
    load: Callable[[Path, LoadOptions], Dataset]
    setup_hint: str
    default_public_size: int | None = None
    domains: tuple[str, ...] = ()
    info: DatasetInfo | None = None
    inspect: Callable[[Path], UserDataInfo] | None = None
    is_resizable: bool = False
    default_image_size: int | None = None
    fedbn_fractions: tuple[float, float] | None = None
    downloads: tuple[Download, ...] = ()
