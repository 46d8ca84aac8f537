"""fedmosaic commands as processes with a marker in their environment, by which their descendants are found."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.federation.flower.federation import wait

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

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Wait until stderr contains a text."""
        wait(lambda: text in self.stderr or self.process.poll() is not None, seconds, pause=0.05)
        assert text in self.stderr, self.stderr

    def wait(self, seconds: float = 180) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
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

    def require_no_descendants(self, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while (descendants := self.descendants()) and time.monotonic() < until:
            time.sleep(0.2)
        assert not descendants


def is_listening(port: int) -> bool:
    """Return whether a process listens at a port of this machine."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
