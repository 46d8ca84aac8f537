"""Where data lies on this machine. None of it decides a result."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fedmosaic_cli.data.dataset import Dataset

    # (what is being done, how much of it, out of how much)
    ProgressCallback = Callable[[str, int, int], None]


DEFAULT_DATA_DIR = Path("data")


def default_cache_dir() -> Path:
    """FEDMOSAIC_CACHE, or a directory of ours where the desktop's rules put caches."""
    given = os.environ.get("FEDMOSAIC_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedmosaic"


def no_progress(task: str, done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class DataDirs:
    """`data_dir` holds data sets, `cache_dir` what can be made again from them; `watch` hears of long work.

    `loaded` keeps the data set that was asked for last: one command may make many runs on it.
    """

    data_dir: Path = DEFAULT_DATA_DIR
    cache_dir: Path = field(default_factory=default_cache_dir)
    on_progress: ProgressCallback = no_progress
    dataset_cache: dict[Hashable, Dataset] = field(default_factory=dict, compare=False, repr=False)
