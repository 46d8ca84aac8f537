"""A command in a process of its own. It may be killed at any time: on disk everything is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

from fedmosaic_cli.machine import PARENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MOST_BYTES = 1 << 16


class Process(Protocol):
    """A command under way, here or on another machine.

    `code` is what it ended in, None as long as it has not; `said` the end of what it said; `host` the machine, "" for
    this one and None as long as there is no room for it on any.
    """

    code: int | None
    said: bytes
    host: str | None
    pid: int | None

    def look(self) -> None:
        """Take in how it goes now."""

    def tell(self, number: int) -> None:
        """Pass a signal on to it."""


class Pool(Protocol):
    """Where commands are made."""

    def start(self, words: Sequence[str]) -> Process:
        """Start what one would type behind `fedmosaic`."""


class Here:
    """On this machine, as our own children."""

    def start(self, words: Sequence[str]) -> Process:
        return Child(words)


class Child:
    """A child of this process. It has a session of its own, so that Ctrl-C reaches it once, through us, and it dies if
    we do (the thread that starts it, to be exact)."""

    host: str | None = ""

    def __init__(
        self, words: Sequence[str], directory: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.code: int | None = None
        self.said = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedmosaic_cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={**os.environ, **(variables or {}), PARENT: str(os.getpid())},
            start_new_session=True,
        )
        self.pid: int | None = self._process.pid
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)

    def look(self) -> None:
        """Whether it has ended, and what it has said by then; only the end is kept."""
        self.code = self._process.poll()
        pipe = self._process.stderr
        if pipe is not None and not pipe.closed:
            self.said = (self.said + (pipe.read() or b""))[-MOST_BYTES:]
            if self.code is not None:
                pipe.close()

    def tell(self, number: int) -> None:
        self._process.send_signal(number)
