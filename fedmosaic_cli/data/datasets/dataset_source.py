"""The description that every data set provides."""

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
    """Which domains to load, at which image size.

    Without `load_pixels` image files are only listed: shapes and labels are correct and all images are black.
    """

    data_dirs: DataDirs
    domains: tuple[str, ...] = ()
    image_size: int | None = None
    load_pixels: bool = True


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set that are known without loading it. `image_size` is None if images vary in size."""

    num_classes: int
    num_channels: int
    image_size: int | None
    num_train: int | None = None
    num_test: int | None = None


@dataclass(frozen=True)
class UserDataInfo:
    """Facts about the user's own files."""

    num_examples: int
    domains: tuple[str, ...] = ()
    num_clients: int | None = None


@dataclass(frozen=True)
class DatasetSource:
    """A data set: how to find and load it.

    Attributes:
        description: One line for lists.
        find: Returns the location below a data directory, or None.
        load: Loads the data set from that location.
        setup_hint: What to do if the data set is missing.
        default_public_size: Default size of the public set; None for the user's own data.
        domains: Names of the domains.
        domains_variant: Name of the same data set with synthetic domains. It is used under the schemes that need some.
        info: Facts known without loading.
        inspect: Reads facts from the user's own files; None for published data sets.
        is_resizable: Whether images are scaled to `image_size`.
        default_image_size: Default side length; None keeps the original size.
        fedbn_fractions: Fractions of the smallest domain's list that FedBN trains and validates on.
        downloads: Files that `fedmosaic fetch` downloads.
    """

    description: str
    find: Callable[[Path], Path | None]
    load: Callable[[Path, LoadOptions], Dataset]
    setup_hint: str
    default_public_size: int | None = None
    domains: tuple[str, ...] = ()
    domains_variant: str | None = None
    info: DatasetInfo | None = None
    inspect: Callable[[Path], UserDataInfo] | None = None
    is_resizable: bool = False
    default_image_size: int | None = None
    fedbn_fractions: tuple[float, float] | None = None
    downloads: tuple[Download, ...] = ()
