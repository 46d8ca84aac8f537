"""Running clients side by side: threads with one core each, so that results do not depend on how many there are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """A pool of `count` threads. Even a single one runs apart from the main thread, under the same thread settings."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="client", initializer=one_core)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of every item, in the order of the items. The first failure is raised."""
        return list(self._pool.map(function, items))

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def one_core() -> None:
    """Sums in another number of threads round differently: every thread computes alone."""
    torch.set_num_threads(1)
