"""Flower's programs as child processes that report nothing to Flower's servers and end with this process.

`python -m fedmosaic_cli.federation.flower.flower_processes kill flower-superlink ...` becomes that program, which the
kernel kills when its parent dies. With `terminate` instead of `kill`, a supervisor stays in between and terminates the
program once. When a process with several threads ends, the kernel may signal its child once per thread. Flower exits at
once on a second SIGTERM, so the supervisor forwards only the first.

Flower's programs find each other in their PATH.
"""

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
from threading import Thread
from typing import TYPE_CHECKING

import psutil

from fedmosaic_cli.machine import PARENT_PID_VARIABLE, die_with_parent
from fedmosaic_cli.storage import files, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import FrameType

KILL_MODE, TERMINATE_MODE = "kill", "terminate"
SUPERVISOR_RUNTIME_DIR_VARIABLE = "FEDMOSAIC_SUPERVISOR_RUNTIME_DIR"
"""Environment variable with the runtime directory. This module's process reads it before it becomes the program."""
RUNTIME_DIR_VARIABLE = "FEDMOSAIC_RUNTIME_DIR"
"""Environment variable with the runtime directory of a program and its descendants. Our Flower apps read it, and
`terminate_all` finds processes by it."""
QUIET_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
TERMINATE_GRACE_SECONDS = 6.0
OUTPUT_POLL_SECONDS = 0.1
MAX_OUTPUT_LINES, MAX_OUTPUT_BYTES = 200, 1 << 20
ANSI_COLOUR_PATTERN = re.compile(r"\x1b\[[0-9;]*m")
EXIT_CODE_PATTERN = re.compile(r"Exit Code: (\d+)")


def flower_environment(runtime_dir: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: no telemetry, and the runtime directory for descendants."""
    no_proxy = ",".join([*LOOPBACK_HOSTS, *filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")])])
    return {
        **os.environ,
        **QUIET_ENVIRONMENT,
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "FLWR_HOME": str(runtime_dir / "flwr"),
        RUNTIME_DIR_VARIABLE: str(runtime_dir),
    }


def supervised_command(mode: str, command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "fedmosaic_cli.federation.flower.flower_processes", mode, *command]


class FlowerProcess:
    """A running Flower program and the last lines of its output.

    The program ends with the thread that started it, however that thread ends: it is killed, or terminated if
    `graceful`. Its output goes to a file, because a program that writes to a closed pipe cannot shut down gracefully.
    """

    def __init__(
        self,
        command: Sequence[str],
        runtime_dir: Path,
        graceful: bool = False,
        on_line: Callable[[str], None] = lambda line: None,
        output_file: str = "output",
    ) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._on_line = on_line
        self._output_path = runtime_dir / output_file
        files.remove_path(self._output_path)
        variables = flower_environment(runtime_dir)
        variables[SUPERVISOR_RUNTIME_DIR_VARIABLE] = variables.pop(RUNTIME_DIR_VARIABLE)
        variables[PARENT_PID_VARIABLE] = str(os.getpid())
        handle = syscalls.open_append(self._output_path)
        try:
            self.process = subprocess.Popen(
                supervised_command(TERMINATE_MODE if graceful else KILL_MODE, command),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=variables,
                start_new_session=True,
            )
        finally:
            os.close(handle)
        self._reader_thread = Thread(target=self._read_output, name="flower-output", daemon=True)
        self._reader_thread.start()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def has_output(self, text: str) -> bool:
        """Return whether one of the last lines contains a text."""
        return any(text in line for line in list(self._lines))

    def exit_reason(self) -> str:
        """Return in one line why the ended program ended, as far as its output says so."""
        self._reader_thread.join(timeout=1)
        return exit_message(list(self._lines)) or f"it ended with code {self.process.poll()} without output"

    def exit_code(self) -> int | None:
        """Return the exit code that Flower printed, or None if it printed none."""
        self._reader_thread.join(timeout=1)
        codes = [match[1] for line in self._lines if (match := EXIT_CODE_PATTERN.search(line))]
        return int(codes[-1]) if codes else None

    def _read_output(self) -> None:
        """Read lines until the program ends. Truncate the file when it is large."""
        with self._output_path.open("rb") as file:
            ended = False
            while not ended:
                ended = not self.is_alive
                for raw_line in file:
                    line = ANSI_COLOUR_PATTERN.sub("", raw_line.decode(errors="replace")).rstrip()
                    self._lines.append(line)
                    self._on_line(line)
                if file.tell() > MAX_OUTPUT_BYTES:
                    handle = syscalls.open_append(self._output_path)
                    try:
                        syscalls.truncate(handle)
                    finally:
                        os.close(handle)
                    file.seek(0)
                time.sleep(OUTPUT_POLL_SECONDS)


def exit_message(lines: list[str]) -> str:
    """Return what Flower printed below its exit code, without its advice; else the last line that is not empty."""
    stripped = [line.strip() for line in lines]
    starts = [position for position, line in enumerate(stripped) if EXIT_CODE_PATTERN.search(line)]
    if not starts:
        return next((line for line in reversed(stripped) if line), "")
    message = stripped[starts[-1] + 1 :]
    end = next((at for at, line in enumerate(message) if line.startswith("For more information")), len(message))
    return "; ".join(line.rstrip(".") for line in message[:end] if line)


def runtime_dir_processes(runtime_dir: Path) -> list[psutil.Process]:
    """Return all living processes of this runtime directory, including distant descendants."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(RUNTIME_DIR_VARIABLE) == str(runtime_dir):
                found.append(process)
    return found


def terminate_all(runtime_dir: Path, grace_seconds: float = TERMINATE_GRACE_SECONDS) -> None:
    """Terminate all processes of a runtime directory, and kill those that are still alive after the grace period."""
    deadline = time.monotonic() + grace_seconds
    terminated: set[psutil.Process] = set()
    while running := set(runtime_dir_processes(runtime_dir)):
        is_expired = time.monotonic() >= deadline
        for process in running if is_expired else running - terminated:
            with suppress(psutil.Error):
                process.kill() if is_expired else process.terminate()
        terminated |= running
        time.sleep(0.02 if is_expired else 0.05)


class Supervisor:
    """Runs a program and forwards only the first SIGTERM to it."""

    def __init__(self) -> None:
        self._is_stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._on_sigterm)
        die_with_parent(signal.SIGTERM)

    def run(self, command: list[str]) -> int:
        """Run the program and return its exit code."""
        if self._is_stopping:
            return 0
        environment = {**os.environ, PARENT_PID_VARIABLE: str(os.getpid())}
        self._process = subprocess.Popen(supervised_command(KILL_MODE, command), env=environment)
        if self._is_stopping:
            self._process.terminate()
        return self._process.wait()

    def _on_sigterm(self, signal_number: int, frame: FrameType | None) -> None:
        if not self._is_stopping and self._process is not None:
            self._process.terminate()
        self._is_stopping = True


def main(mode: str, command: list[str]) -> None:
    """Replace this process by the program, or supervise it."""
    if mode == TERMINATE_MODE:
        raise SystemExit(Supervisor().run(command))
    os.environ[RUNTIME_DIR_VARIABLE] = os.environ.pop(SUPERVISOR_RUNTIME_DIR_VARIABLE)
    die_with_parent()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
