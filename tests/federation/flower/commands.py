"""Our commands as processes that carry a mark, so that whatever they start can be found."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.federation.flower.federation import command_of, wait

MARKER = "FEDMOSAIC_TEST_MARK"


class Command:
    """`fedmosaic ...` under way, and what it has said on stderr so far."""

    def __init__(self, *arguments: str, cwd: Path, mark: str = "", program: tuple[str, ...] = ()) -> None:
        self.mark = mark or secrets.token_hex(8)
        self.process = subprocess.Popen(
            [sys.executable, *(program or ("-m", "fedmosaic_cli")), *arguments],
            cwd=cwd,
            env={**os.environ, MARKER: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, words: str, seconds: float = 120) -> None:
        """Wait until it has said something."""
        wait(lambda: words in self.said or self.process.poll() is not None, seconds, pause=0.05)
        assert words in self.said, self.said

    def ended(self, seconds: float = 180) -> int:
        """The code that it ends with."""
        code = self.process.wait(seconds)
        self._listener.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def left(self) -> list[str]:
        """The command lines of everything that was started by it, or by what it started, and is still there."""
        mark = f"{MARKER}={self.mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"{entry.name} {command_of(int(entry.name))}")
            except OSError:
                continue
        return found

    def nothing_is_left(self, seconds: float = 10) -> None:
        until = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.2)
        assert not left


def listening(port: int) -> bool:
    """Whether anybody listens at a port of this machine."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
