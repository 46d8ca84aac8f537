"""Directories of data sets and caches on this machine. They do not affect results."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fedmosaic_cli.data.dataset import Dataset

    # (task, done, total)
    ProgressCallback = Callable[[str, int, int], None]


DEFAULT_DATA_DIR = Path("data")


def default_cache_dir() -> Path:
    """Return FEDMOSAIC_CACHE, or `fedmosaic` in the user's XDG cache directory."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEDMOSAIC_CACHE") or Path(cache_home) / "fedmosaic")


def no_progress(task: str, done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class DataDirs:
    """Where data is read from, and how progress is reported.

    Attributes:
        data_dir: Holds the data sets.
        cache_dir: Holds decoded images, which can be recreated.
        on_progress: Called during long operations.
        dataset_cache: The data set loaded last, because one command may run many experiments on it.
        image_shape_cache: The shape of images that had to be read to know it.
    """

    data_dir: Path = DEFAULT_DATA_DIR
    cache_dir: Path = field(default_factory=default_cache_dir)
    on_progress: ProgressCallback = no_progress
    dataset_cache: dict[Hashable, Dataset] = field(default_factory=dict, compare=False, repr=False)
    image_shape_cache: dict[Hashable, tuple[int, int, int]] = field(default_factory=dict, compare=False, repr=False)
