"""A command in a process of its own. It may be killed at any time: on disk everything is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

from fedmosaic_cli.machine import PARENT_PID_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_STDERR_BYTES = 1 << 16


class JobProcess(Protocol):
    """A command under way, here or on another machine.

    `code` is what it ended in, None as long as it has not; `said` the end of what it said; `host` the machine, "" for
    this one and None as long as there is no room for it on any.
    """

    exit_code: int | None
    stderr_tail: bytes
    host: str | None
    pid: int | None

    def poll(self) -> None:
        """Take in how it goes now."""

    def send_signal(self, signum: int) -> None:
        """Pass a signal on to it."""


class JobLauncher(Protocol):
    """Where commands are made."""

    def start(self, args: Sequence[str]) -> JobProcess:
        """Start what one would type behind `fedmosaic`."""


class LocalLauncher:
    """On this machine, as our own children."""

    def start(self, args: Sequence[str]) -> JobProcess:
        return LocalProcess(args)


class LocalProcess:
    """A child of this process. It has a session of its own, so that Ctrl-C reaches it once, through us, and it dies if
    we do (the thread that starts it, to be exact)."""

    host: str | None = ""

    def __init__(
        self, args: Sequence[str], working_dir: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.exit_code: int | None = None
        self.stderr_tail = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedmosaic_cli", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=working_dir,
            env={**os.environ, **(env or {}), PARENT_PID_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
        self.pid: int | None = self._process.pid
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)

    def poll(self) -> None:
        """Whether it has ended, and what it has said by then; only the end is kept."""
        self.exit_code = self._process.poll()
        pipe = self._process.stderr
        if pipe is not None and not pipe.closed:
            self.stderr_tail = (self.stderr_tail + (pipe.read() or b""))[-MAX_STDERR_BYTES:]
            if self.exit_code is not None:
                pipe.close()

    def send_signal(self, signum: int) -> None:
        self._process.send_signal(signum)
