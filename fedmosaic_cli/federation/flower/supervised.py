"""`python -m fedmosaic_cli.federation.flower.supervised kill flower-superlink ...` is that program, but it is killed when we die.

With `ask` in the place of `kill` it is asked to end, once, and has time to take its leave. A process with threads dies
thread by thread, and its children are told of each; Flower takes the second word for an order to leave at once. So
somebody stands between, who hears all of them and says it once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from fedmosaic_cli.machine import PARENT_PID_VARIABLE, die_with_parent

if TYPE_CHECKING:
    from types import FrameType

KILL_MODE, TERMINATE_MODE = "kill", "ask"
RUNTIME_DIR_VARIABLE, MARKER_VARIABLE = "FEDMOSAIC_ROOM", "FEDMOSAIC_FLOWER"
"""The variables that carry the room: to this process, and to the program and all its descendants."""


def exec_with_parent(command: list[str]) -> None:
    """Run a program in the place of this process, once it is known whose death is to be its own."""
    os.environ[MARKER_VARIABLE] = os.environ.pop(RUNTIME_DIR_VARIABLE)
    die_with_parent()
    os.execvp(command[0], command)


class Supervisor:
    """Runs a program, and passes on once what may be heard often."""

    def __init__(self) -> None:
        self._is_stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._on_sigterm)
        die_with_parent(signal.SIGTERM)

    def run(self, command: list[str]) -> int:
        """The code in which the program ended."""
        if self._is_stopping:
            return 0
        itself = [sys.executable, "-m", "fedmosaic_cli.federation.flower.supervised", KILL_MODE, *command]
        self._process = subprocess.Popen(itself, env={**os.environ, PARENT_PID_VARIABLE: str(os.getpid())})
        if self._is_stopping:
            self._process.terminate()
        return self._process.wait()

    def _on_sigterm(self, signal_number: int, frame: FrameType | None) -> None:
        if not self._is_stopping and self._process is not None:
            self._process.terminate()
        self._is_stopping = True


if __name__ == "__main__":
    if sys.argv[1] == KILL_MODE:
        exec_with_parent(sys.argv[2:])
    raise SystemExit(Supervisor().run(sys.argv[2:]))
