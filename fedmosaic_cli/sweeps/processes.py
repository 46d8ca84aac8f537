"""`fedmosaic` commands in child processes. A child may be killed at any time: its files on disk stay consistent."""

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
    """A started command on this or another machine.

    Attributes:
        exit_code: None until the command ends; negative if a signal ended it.
        stderr_tail: The last bytes that the command wrote to stderr.
        host: The machine's name; "" for this machine, None while the command waits for resources.
        pid: The process id on that machine, if known.
    """

    exit_code: int | None
    stderr_tail: bytes
    host: str | None
    pid: int | None

    def poll(self) -> None:
        """Update the attributes without blocking."""

    def send_signal(self, signum: int) -> None:
        """Send a signal to the command."""


class JobLauncher(Protocol):
    """Starts commands."""

    def start(self, args: Sequence[str]) -> JobProcess:
        """Start `fedmosaic` with these arguments."""


class LocalProcess:
    """A child of this process.

    It runs in its own session, so Ctrl-C reaches it only through `send_signal`. It dies with the thread that starts it.
    """

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
        self.exit_code = self._process.poll()
        pipe = self._process.stderr
        if pipe is not None and not pipe.closed:
            self.stderr_tail = (self.stderr_tail + (pipe.read() or b""))[-MAX_STDERR_BYTES:]
            if self.exit_code is not None:
                pipe.close()

    def send_signal(self, signum: int) -> None:
        self._process.send_signal(signum)


class LocalLauncher:
    """Starts commands as children of this process."""

    def start(self, args: Sequence[str]) -> JobProcess:
        return LocalProcess(args)
