"""The clock of a tool's process: it runs a round when the benchmark asks for one and prints what the round took.

The protocol: the benchmark writes a line to the standard input for each round, and the process responds with a line
[CPU seconds, wall seconds] on the standard output. All that the tool prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RoundClock:
    """Measures rounds. Create it before the tool prints anything.

    Args:
        cpu_seconds: Returns the CPU time so far.
    """

    def __init__(self, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._cpu_seconds = cpu_seconds
        self._samples = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._started: tuple[float, float] | None = None

    def start(self) -> None:
        """Wait until a round is requested, then start the clock."""
        if not sys.stdin.readline():
            os._exit(1)  # the benchmark has ended
        self._started = self._cpu_seconds(), time.perf_counter()

    def stop(self) -> None:
        """Stop the clock and report the round."""
        if self._started is None:
            raise RuntimeError("stop() without start()")
        cpu, wall = self._started
        self._started = None
        self._samples.write(json.dumps([self._cpu_seconds() - cpu, time.perf_counter() - wall]) + "\n")
        self._samples.flush()

    def next_round(self) -> None:
        """Stop the clock of the previous round, if any, and start that of the next."""
        if self._started is not None:
            self.stop()
        self.start()
