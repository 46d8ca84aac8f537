"""fedmosaic commands as processes with a marker in their environment, by which their descendants are found."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import HANG_SECONDS, wait_until

MARKER = "FEDMOSAIC_TEST_MARK"


class Command:
    """A running `fedmosaic ...` command and its stderr so far."""

    def __init__(self, *arguments: str, cwd: Path, marker: str = "", program: tuple[str, ...] = ()) -> None:
        self.marker = marker or secrets.token_hex(8)
        self.process = subprocess.Popen(
            [sys.executable, *(program or ("-m", "fedmosaic_cli")), *arguments],
            cwd=cwd,
            env={**os.environ, MARKER: self.marker},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        """Wait until stderr contains a text."""
        wait_until(lambda: text in self.stderr or self.process.poll() is not None)
        assert text in self.stderr, self.stderr

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def descendants(self) -> list[str]:
        """Return pid and command line of all living processes that the command started, directly or not."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARKER) == self.marker:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found

    def require_no_descendants(self) -> None:
        """Wait until no descendant is left. Some of them end after the command."""
        wait_until(lambda: not self.descendants())


def is_listening(port: int) -> bool:
    """Return whether a process listens at a port of this machine."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
