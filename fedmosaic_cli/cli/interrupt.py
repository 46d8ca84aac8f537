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

from fedmosaic_cli.machine import kill_descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
RESUME_HINT = "continue with --resume and the same options"
SHOW_CURSOR = "\x1b[?25h"


class InterruptedBySignal(BaseException):
    """Somebody asked to stop; `code` is what the command ends in.

    No KeyboardInterrupt: the library below would swallow it, and with it the code and the word that we leave.
    """

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.exit_code = signal_exit_code(signum)


def signal_exit_code(signum: int) -> int:
    """130 after Ctrl-C, 143 after anything else: a terminal that is closed counts as a request to end."""
    return 128 + (signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)


def install_signal_handlers() -> None:
    """From now on signals end the command in order. One that was started to outlive its terminal (nohup) does.

    Whoever starts us may keep signals to himself, as Ray's workers do with Ctrl-C; that is not meant for us.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    for number in STOP_SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, raise_interrupted)


def raise_interrupted(signum: int, frame: FrameType | None) -> NoReturn:
    raise InterruptedBySignal(signum)


class StopRequest:
    """Whether somebody asked to stop, and the exit code that this ends in."""

    def __init__(
        self, stop_timeout_seconds: float, resume_hint: str = RESUME_HINT, current_step: str = "this round"
    ) -> None:
        self.exit_code = 0
        self._stop_timeout_seconds = stop_timeout_seconds
        self._resume_hint = resume_hint
        self._current_step = current_step

    def __call__(self) -> bool:
        return self.exit_code != 0

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """The first signal: a time limit begins. The second: now."""
        if self.exit_code:
            self._exit_now(f"stopped immediately: {self._resume_hint}")
        self.exit_code = signal_exit_code(signum)
        if not self._stop_timeout_seconds:
            self.on_timeout(signum, frame)
        signal.setitimer(signal.ITIMER_REAL, self._stop_timeout_seconds)
        write_stderr_unbuffered(
            f"stopping after {self._current_step}, or without it after {self._stop_timeout_seconds:g} s; "
            "repeat the signal to stop immediately"
        )

    def on_timeout(self, signum: int, frame: FrameType | None) -> None:
        self._exit_now(
            f"the round did not end within {self._stop_timeout_seconds:g} s and is dropped: {self._resume_hint}"
        )

    def _exit_now(self, text: str) -> NoReturn:
        # Everything on disk is whole at any time, here and in whatever we started: there is nothing to wait for.
        write_stderr_unbuffered((SHOW_CURSOR if sys.stderr.isatty() else "") + text)
        kill_descendants()
        os._exit(self.exit_code)


@contextmanager
def catch_stop_signals(
    stop_timeout_seconds: float, resume_hint: str = RESUME_HINT, current_step: str = "this round"
) -> Iterator[StopRequest]:
    """Listen for signals while runs are under way."""
    request = StopRequest(stop_timeout_seconds, resume_hint, current_step)
    listening = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request.on_signal) for number in listening}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, request.on_timeout)
    try:
        yield request
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def write_stderr_unbuffered(text: str) -> None:
    """A line to whoever listens, past all buffers: a handler may interrupt somebody who is writing to them.

    Nobody is waited for: a pipe that is full, because its reader sleeps, would keep us from stopping.
    """
    with suppress(OSError, ValueError):
        stderr = sys.stderr.fileno()
        if select.select([], [stderr], [], 0)[1]:
            os.write(stderr, f"{text}\n".encode())
