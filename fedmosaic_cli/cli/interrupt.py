"""Stopping on request: the first signal ends the run after its round, the second at once. Both leave it resumable."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.console import remark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class StopRequest:
    """Whether somebody asked to stop, and the exit code that this ends in."""

    def __init__(self) -> None:
        self.code = 0

    def __call__(self) -> bool:
        return self.code != 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        code = 128 + (signal.SIGTERM if number != signal.SIGINT else signal.SIGINT)
        if self.code:
            os._exit(code)
        self.code = code
        remark("stopping after this round; once more to stop at once")


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Listen for signals while a run is under way."""
    request = StopRequest()
    before = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
