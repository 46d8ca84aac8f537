"""Flower's programs as children of ours: silent towards the world, marked, and gone when we are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from fedmosaic_cli.federation.flower.supervised import ASK, KILL, MARK, ROOM
from fedmosaic_cli.machine import PARENT
from fedmosaic_cli.storage import files, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
GRACE_SECONDS = 6.0
LISTEN_SECONDS = 0.1
MOST_LINES, MOST_BYTES = 200, 1 << 20
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
EXIT_CODE = re.compile(r"Exit Code: (\d+)")


def environment(room: Path) -> dict[str, str]:
    """What Flower's programs are told: nothing leaves the machine but what we send, and all of them carry our mark."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    no_proxy = ",".join([*LOOPBACK, *filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")])])
    own = {"PATH": path, "NO_PROXY": no_proxy, "no_proxy": no_proxy, "FLWR_HOME": str(room / "flwr"), MARK: str(room)}
    return {**os.environ, **SILENT, **POLLING, **own}


class Child:
    """A program of Flower's that runs as long as we do, and the end of what it said.

    When the thread that started it ends, however that happens, it is killed, or asked to end if it `takes_leave`. What
    it says goes to a file: writing to a pipe that nobody reads any more, it could not take its leave.
    """

    def __init__(
        self,
        command: Sequence[str],
        room: Path,
        takes_leave: bool = False,
        hear: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._hear = hear
        self._output = room / "output"
        files.remove(self._output)
        variables = {**environment(room), ROOM: str(room), PARENT: str(os.getpid())}
        del variables[MARK]
        handle = syscalls.extend(self._output)
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fedmosaic_cli.federation.flower.supervised",
                    ASK if takes_leave else KILL,
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=variables,
                start_new_session=True,
            )
        finally:
            os.close(handle)
        self._listener = Thread(target=self._listen, name="listener", daemon=True)
        self._listener.start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def said(self, words: str) -> bool:
        """Whether any of its last lines holds these words."""
        return any(words in line for line in list(self._lines))

    def last_words(self) -> str:
        """Why it ended, in one line, as far as it said so."""
        self._listener.join(timeout=1)
        return telling_line(list(self._lines)) or f"it ended with code {self.process.poll()} and said nothing"

    def exit_code(self) -> int | None:
        """The code by which Flower itself knows this end, if it named one."""
        self._listener.join(timeout=1)
        codes = [match[1] for line in self._lines if (match := EXIT_CODE.search(line))]
        return int(codes[-1]) if codes else None

    def _listen(self) -> None:
        """Take in line by line what it says, until it ends. The file is emptied when it has grown."""
        with self._output.open("rb") as file:
            ended = False
            while not ended:
                ended = not self.alive
                for said in file:
                    line = COLOUR.sub("", said.decode(errors="replace")).rstrip()
                    self._lines.append(line)
                    self._hear(line)
                if file.tell() > MOST_BYTES:
                    empty(self._output)
                    file.seek(0)
                time.sleep(LISTEN_SECONDS)


def empty(path: Path) -> None:
    """Drop what a file holds that others write to the end of."""
    handle = syscalls.extend(path)
    try:
        syscalls.empty(handle)
    finally:
        os.close(handle)


def telling_line(lines: list[str]) -> str:
    """What Flower said of its end, without its advice; else the last line that says anything."""
    said = [line.strip() for line in lines]
    starts = [place for place, line in enumerate(said) if EXIT_CODE.search(line)]
    if starts:
        told = said[starts[-1] + 1 :]
        end = next((place for place, line in enumerate(told) if line.startswith("For more information")), len(told))
        return "; ".join(line.rstrip(".") for line in told[:end] if line)
    return next((line for line in reversed(said) if line), "")


def marked(room: Path) -> list[int]:
    """All living processes that somebody started from this room, at whatever remove."""
    mark = f"{MARK}={room}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_all(room: Path, grace: float = GRACE_SECONDS) -> None:
    """End all processes of a room: they are asked to, and then made to."""
    deadline = time.monotonic() + grace
    asked: set[int] = set()
    while (running := marked(room)) and time.monotonic() < deadline:
        send(signal.SIGTERM, [number for number in running if number not in asked])
        asked |= set(running)
        time.sleep(0.05)
    while running := marked(room):
        send(signal.SIGKILL, running)
        time.sleep(0.02)


def send(number: signal.Signals, processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
