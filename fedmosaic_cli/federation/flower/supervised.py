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

from fedmosaic_cli.machine import PARENT, end_with_parent

if TYPE_CHECKING:
    from types import FrameType

KILL, ASK = "kill", "ask"
ROOM, MARK = "FEDMOSAIC_ROOM", "FEDMOSAIC_FLOWER"
"""The variables that carry the room: to this process, and to the program and all its descendants."""


def become(command: list[str]) -> None:
    """Run a program in the place of this process, once it is known whose death is to be its own."""
    os.environ[MARK] = os.environ.pop(ROOM)
    end_with_parent()
    os.execvp(command[0], command)


class Guardian:
    """Runs a program, and passes on once what may be heard often."""

    def __init__(self) -> None:
        self._asked = False
        self._program: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._hear)
        end_with_parent(signal.SIGTERM)

    def run(self, command: list[str]) -> int:
        """The code in which the program ended."""
        if self._asked:
            return 0
        itself = [sys.executable, "-m", "fedmosaic_cli.federation.flower.supervised", KILL, *command]
        self._program = subprocess.Popen(itself, env={**os.environ, PARENT: str(os.getpid())})
        if self._asked:
            self._program.terminate()
        return self._program.wait()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._asked and self._program is not None:
            self._program.terminate()
        self._asked = True


if __name__ == "__main__":
    if sys.argv[1] == KILL:
        become(sys.argv[2:])
    raise SystemExit(Guardian().run(sys.argv[2:]))
