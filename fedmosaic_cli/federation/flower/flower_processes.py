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

from fedmosaic_cli.federation.flower.supervised import KILL_MODE, MARKER_VARIABLE, RUNTIME_DIR_VARIABLE, TERMINATE_MODE
from fedmosaic_cli.machine import PARENT_PID_VARIABLE
from fedmosaic_cli.storage import files, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

QUIET_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
POLLING_ENVIRONMENT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
TERMINATE_GRACE_SECONDS = 6.0
OUTPUT_POLL_SECONDS = 0.1
MAX_OUTPUT_LINES, MAX_OUTPUT_BYTES = 200, 1 << 20
ANSI_COLOUR_PATTERN = re.compile(r"\x1b\[[0-9;]*m")
EXIT_CODE_PATTERN = re.compile(r"Exit Code: (\d+)")


def flower_environment(runtime_dir: Path) -> dict[str, str]:
    """What Flower's programs are told: nothing leaves the machine but what we send, and all of them carry our mark."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    no_proxy = ",".join([*LOOPBACK_HOSTS, *filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")])])
    own = {
        "PATH": path,
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "FLWR_HOME": str(runtime_dir / "flwr"),
        MARKER_VARIABLE: str(runtime_dir),
    }
    return {**os.environ, **QUIET_ENVIRONMENT, **POLLING_ENVIRONMENT, **own}


class FlowerProcess:
    """A program of Flower's that runs as long as we do, and the end of what it said.

    When the thread that started it ends, however that happens, it is killed, or asked to end if it `takes_leave`. What
    it says goes to a file: writing to a pipe that nobody reads any more, it could not take its leave.
    """

    def __init__(
        self,
        command: Sequence[str],
        runtime_dir: Path,
        graceful: bool = False,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._on_line = on_line
        self._output_path = runtime_dir / "output"
        files.remove_path(self._output_path)
        variables = {
            **flower_environment(runtime_dir),
            RUNTIME_DIR_VARIABLE: str(runtime_dir),
            PARENT_PID_VARIABLE: str(os.getpid()),
        }
        del variables[MARKER_VARIABLE]
        handle = syscalls.open_append(self._output_path)
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fedmosaic_cli.federation.flower.supervised",
                    TERMINATE_MODE if graceful else KILL_MODE,
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
        self._reader_thread = Thread(target=self._read_output, name="listener", daemon=True)
        self._reader_thread.start()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def has_output(self, text: str) -> bool:
        """Whether any of its last lines holds these words."""
        return any(text in line for line in list(self._lines))

    def exit_reason(self) -> str:
        """Why it ended, in one line, as far as it said so."""
        self._reader_thread.join(timeout=1)
        return exit_message(list(self._lines)) or f"it ended with code {self.process.poll()} and said nothing"

    def exit_code(self) -> int | None:
        """The code by which Flower itself knows this end, if it named one."""
        self._reader_thread.join(timeout=1)
        codes = [match[1] for line in self._lines if (match := EXIT_CODE_PATTERN.search(line))]
        return int(codes[-1]) if codes else None

    def _read_output(self) -> None:
        """Take in line by line what it says, until it ends. The file is emptied when it has grown."""
        with self._output_path.open("rb") as file:
            ended = False
            while not ended:
                ended = not self.is_alive
                for said in file:
                    line = ANSI_COLOUR_PATTERN.sub("", said.decode(errors="replace")).rstrip()
                    self._lines.append(line)
                    self._on_line(line)
                if file.tell() > MAX_OUTPUT_BYTES:
                    truncate_file(self._output_path)
                    file.seek(0)
                time.sleep(OUTPUT_POLL_SECONDS)


def truncate_file(path: Path) -> None:
    """Drop what a file holds that others write to the end of."""
    handle = syscalls.open_append(path)
    try:
        syscalls.truncate(handle)
    finally:
        os.close(handle)


def exit_message(lines: list[str]) -> str:
    """What Flower said of its end, without its advice; else the last line that says anything."""
    said = [line.strip() for line in lines]
    starts = [place for place, line in enumerate(said) if EXIT_CODE_PATTERN.search(line)]
    if starts:
        told = said[starts[-1] + 1 :]
        end = next((place for place, line in enumerate(told) if line.startswith("For more information")), len(told))
        return "; ".join(line.rstrip(".") for line in told[:end] if line)
    return next((line for line in reversed(said) if line), "")


def marked_processes(runtime_dir: Path) -> list[int]:
    """All living processes that somebody started from this room, at whatever remove."""
    mark = f"{MARKER_VARIABLE}={runtime_dir}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def terminate_all(runtime_dir: Path, grace_seconds: float = TERMINATE_GRACE_SECONDS) -> None:
    """End all processes of a room: they are asked to, and then made to."""
    deadline = time.monotonic() + grace_seconds
    asked: set[int] = set()
    while (running := marked_processes(runtime_dir)) and time.monotonic() < deadline:
        signal_processes(signal.SIGTERM, [number for number in running if number not in asked])
        asked |= set(running)
        time.sleep(0.05)
    while running := marked_processes(runtime_dir):
        signal_processes(signal.SIGKILL, running)
        time.sleep(0.02)


def signal_processes(signal_number: signal.Signals, pids: list[int]) -> None:
    for process in pids:
        with suppress(ProcessLookupError):
            os.kill(process, signal_number)
