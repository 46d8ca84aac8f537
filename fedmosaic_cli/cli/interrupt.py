"""Handling of stop signals. A command stops at once and removes its temporary files; a run stops after its round.

This module is imported first, so that signals during the import of other modules are handled.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from fedmosaic_cli.machine import kill_descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
RESUME_HINT = "repeat the command to continue"
RESEND_SECONDS = 0.05
SHOW_CURSOR = "\x1b[?25h"
CLEAR_LINE, CLEAR_LINE_ABOVE = "\r\x1b[2K", "\x1b[1A\x1b[2K"


class InterruptedBySignal(BaseException):
    """Raised when a stop signal arrives.

    It is not a KeyboardInterrupt because Typer would catch that and choose its own message and exit code.
    """

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum
        self.exit_code = signal_exit_code(signum)


def signal_exit_code(signum: int) -> int:
    """Return 130 after SIGINT, and 143 after SIGTERM or the SIGHUP of a closed terminal."""
    return 128 + (signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)


def install_signal_handlers() -> None:
    """Make stop signals raise `InterruptedBySignal`.

    Ignored signals stay ignored (nohup). Signals that the parent has blocked are unblocked: Ray's workers block SIGINT.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    for number in STOP_SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, raise_interrupted)
    sys.unraisablehook = resend_ignored_signal


def resend_ignored_signal(ignored: sys.UnraisableHookArgs) -> None:
    """Send a signal again if Python ignored its exception, as it does in destructors and weak-reference callbacks."""
    error = ignored.exc_value
    if not isinstance(error, InterruptedBySignal):
        sys.__unraisablehook__(ignored)
        return
    timer = threading.Timer(RESEND_SECONDS, os.kill, (os.getpid(), error.signum))
    timer.daemon = True
    timer.start()


def raise_interrupted(signum: int, frame: FrameType | None) -> NoReturn:
    raise InterruptedBySignal(signum)


class StopRequest:
    """Whether a stop signal has arrived (call it), and the exit code for it."""

    def __init__(
        self, stop_timeout_seconds: float, resume_hint: str = RESUME_HINT, current_step: str = "this round"
    ) -> None:
        self.exit_code = 0
        self.num_live_lines = 0
        """Lines of a progress display on the terminal; messages are written in its place, and it continues below."""
        self._stop_timeout_seconds = stop_timeout_seconds
        self._resume_hint = resume_hint
        self._current_step = current_step

    def __call__(self) -> bool:
        return self.exit_code != 0

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Start the stop timeout on the first signal; exit immediately on the second."""
        if self.exit_code:
            self._exit_now(f"stopped immediately: {self._resume_hint}")
        self.exit_code = signal_exit_code(signum)
        if not self._stop_timeout_seconds:
            self.on_timeout(signum, frame)
        signal.setitimer(signal.ITIMER_REAL, self._stop_timeout_seconds)
        self._write(
            f"stopping after {self._current_step}, at most {self._stop_timeout_seconds:g} s; "
            "a second signal stops at once",
            num_blank_lines=max(0, self.num_live_lines - 1),
        )

    def on_timeout(self, signum: int, frame: FrameType | None) -> None:
        self._exit_now(
            f"the round did not finish within {self._stop_timeout_seconds:g} s and is discarded: {self._resume_hint}"
        )

    def _exit_now(self, text: str) -> NoReturn:
        # Files on disk are consistent at any time, also those of child processes, so no cleanup is needed.
        self._write((SHOW_CURSOR if sys.stderr.isatty() else "") + text)
        kill_descendants()
        os._exit(self.exit_code)

    def _write(self, text: str, num_blank_lines: int = 0) -> None:
        """Write a line to stderr; on a terminal in place of the progress display and of the echoed `^C`.

        Args:
            text: The line.
            num_blank_lines: The display clears as many lines above the cursor before it is shown again.
        """
        clear = ""
        if sys.stderr.isatty():
            clear = CLEAR_LINE + CLEAR_LINE_ABOVE * max(0, self.num_live_lines - 1)
        write_stderr_unbuffered(clear + text + "\n" * num_blank_lines)


@contextmanager
def catch_stop_signals(
    stop_timeout_seconds: float, resume_hint: str = RESUME_HINT, current_step: str = "this round"
) -> Iterator[StopRequest]:
    """Record stop signals instead of raising while runs execute.

    Args:
        stop_timeout_seconds: Time for the current step to finish before the process exits.
        resume_hint: How to continue, for the messages.
        current_step: What finishes before the stop, for the messages.
    """
    request = StopRequest(stop_timeout_seconds, resume_hint, current_step)
    signals = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, request.on_signal) for number in signals}
    handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, request.on_timeout)
    try:
        yield request
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def write_stderr_unbuffered(text: str) -> None:
    """Write a line to stderr from a signal handler.

    It bypasses the buffers, as the handler may interrupt a write to them, and never blocks on a full pipe.
    """
    with suppress(OSError, ValueError):
        stderr = sys.stderr.fileno()
        if select.select([], [stderr], [], 0)[1]:
            os.write(stderr, f"{text}\n".encode())
