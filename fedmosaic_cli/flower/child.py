"""`python -m fedmosaic_cli.flower.child SIGTERM flower-supernode ...` is that program, and hears of our death."""

from __future__ import annotations

import os
import signal
import sys

from fedmosaic_cli.machine import end_with_parent


def become(farewell: str, command: list[str]) -> None:
    """Run a program in the place of this process, once it is known whose death it is to hear of."""
    end_with_parent(signal.Signals[farewell])
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1], sys.argv[2:])
