"""Stopping on request. A command leaves at once and takes what it had begun with it; a run ends after its round.

Loaded before everything else: whoever presses Ctrl-C while libraries are loading is heard as well.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from fedmosaic_cli.machine import end_descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
WITH_RESUME = "go on with --resume and the same options"
SHOW_CURSOR = "\x1b[?25h"


class InterruptedBySignal(BaseException):
    """Somebody asked to stop; `code` is what the command ends in.

    No KeyboardInterrupt: the library below would swallow it, and with it the code and the word that we leave.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = exit_code(number)


def exit_code(number: int) -> int:
    """130 after Ctrl-C, 143 after anything else: a terminal that is closed counts as a request to end."""
    return 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


def listen() -> None:
    """From now on signals end the command in order. One that was started to outlive its terminal (nohup) does.

    Whoever starts us may keep signals to himself, as Ray's workers do with Ctrl-C; that is not meant for us.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for number in SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    raise InterruptedBySignal(number)


class StopRequest:
    """Whether somebody asked to stop, and the exit code that this ends in."""

    def __init__(self, grace: float, way_on: str = WITH_RESUME, what: str = "this round") -> None:
        self.code = 0
        self._grace = grace
        self._way_on = way_on
        self._what = what

    def __call__(self) -> bool:
        return self.code != 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The first signal: a time limit begins. The second: now."""
        if self.code:
            self._leave(f"stopped at once: {self._way_on}")
        self.code = exit_code(number)
        if not self._grace:
            self.time_is_up(number, frame)
        signal.setitimer(signal.ITIMER_REAL, self._grace)
        tell(f"stopping after {self._what}, or in {self._grace:g} s without it; once more to stop at once")

    def time_is_up(self, number: int, frame: FrameType | None) -> None:
        self._leave(f"the round did not end within {self._grace:g} s and is dropped: {self._way_on}")

    def _leave(self, text: str) -> NoReturn:
        # Everything on disk is whole at any time, here and in whatever we started: there is nothing to wait for.
        tell((SHOW_CURSOR if sys.stderr.isatty() else "") + text)
        end_descendants()
        os._exit(self.code)


@contextmanager
def stop_request(grace: float, way_on: str = WITH_RESUME, what: str = "this round") -> Iterator[StopRequest]:
    """Listen for signals while runs are under way."""
    request = StopRequest(grace, way_on, what)
    listening = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request.receive) for number in listening}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, request.time_is_up)
    try:
        yield request
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def tell(text: str) -> None:
    """A line to whoever listens, past all buffers: a handler may interrupt somebody who is writing to them.

    Nobody is waited for: a pipe that is full, because its reader sleeps, would keep us from stopping.
    """
    with suppress(OSError, ValueError):
        stderr = sys.stderr.fileno()
        if select.select([], [stderr], [], 0)[1]:
            os.write(stderr, f"{text}\n".encode())
