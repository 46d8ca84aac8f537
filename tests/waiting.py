"""Waiting for events in other processes and threads, for as long as the machine needs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 900.0
"""Limit of every wait. It ends a test that hangs; no result depends on it."""
POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait until a condition holds, but not after the end of the process that is to make it true.

    Args:
        condition: Called repeatedly. Once true, it must stay true until the test continues.
        process: The process that the condition depends on.
    """
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert process is None or process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline, f"nothing happened within {HANG_SECONDS:g} s"
        time.sleep(POLL_SECONDS)


def read_outputs(process: subprocess.Popen[Any]) -> tuple[str, str]:
    """Wait for the end of a process and return what it wrote to stdout and stderr."""
    return process.communicate(timeout=HANG_SECONDS)
