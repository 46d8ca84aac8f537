"""What this process may use of the machine, and how it holds on to memory."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

# From malloc.h: the largest block at the end of the heap that is kept, what is fetched beyond need, and how many
# blocks may be fetched one by one.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
MAX_INT32 = 2**31 - 1
PAGE_BYTES = 4096
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
PARENT_PID_VARIABLE = "FEDMOSAIC_PARENT"
"""The variable that tells a process whose death is to be its own."""
TOP_PAD_BYTES = 64 * 2**20


def num_available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory_bytes() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tune_malloc() -> bool:
    """Have the allocator keep what is freed; whether it could be told to, which is so with glibc alone.

    A training step frees its activations and the next one wants the same again. By itself glibc hands large blocks back
    to the system in between, and every page that returns costs a fault.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: MAX_INT32, M_TOP_PAD: TOP_PAD_BYTES}
    accepted = [libc.mallopt(option, value) for option, value in options.items()]  # type: ignore[union-attr]
    return all(accepted)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """If somebody started this process as a job, have it die when he does, however that happens: on disk everything is
    whole at any time. Linux alone can be asked for that. Another signal leaves a program that is not ours time to take
    its leave."""
    parent = os.environ.pop(PARENT_PID_VARIABLE, "")
    if not parent.isdigit() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != int(parent):  # it was too late to ask
        os.kill(os.getpid(), signal.SIGKILL)


def kill_descendants() -> None:
    """Kill whatever was started below this process, and below that, where the system tells of it (Linux)."""
    from pathlib import Path

    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # gone meanwhile
            # The name of the program stands in brackets before its state and its parent, and may hold anything.
            parents[int(status.parent.name)] = int(status.read_text(errors="replace").rpartition(")")[2].split()[1])
    level = {os.getpid()}
    while level:
        level = {process for process, parent in parents.items() if parent in level}
        for process in level:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
