"""Cores, memory and processes of this machine."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# From malloc.h: the largest free block kept at the end of the heap, the padding of each request to the system, and the
# number of blocks that may be mapped one by one.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
MAX_INT32 = 2**31 - 1
PAGE_BYTES = 4096
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
PARENT_PID_VARIABLE = "FEDMOSAIC_PARENT"
"""Environment variable with the PID of the process whose death ends this one."""
TOP_PAD_BYTES = 64 * 2**20
TUNABLES_VARIABLE, TUNABLES = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"
RESTARTED_VARIABLE = "FEDMOSAIC_RESTARTED"
"""Environment variable of a process that was started again, with the user's value of GLIBC_TUNABLES or ""."""
STARTUP_GC_THRESHOLDS = (100_000, 10, 10)
"""Thresholds of Python's garbage collector while modules load."""
USUAL_GC_THRESHOLDS = gc.get_threshold()
"""The thresholds of this version of Python."""


def num_available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tune_malloc() -> bool:
    """Make glibc keep freed memory; return False with any other C library.

    A training step frees its activations and the next step allocates the same sizes again. By default glibc returns
    large blocks to the system in between, and every returned page costs a page fault.
    """
    libc = find_glibc()
    if libc is None:
        return False
    options = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: MAX_INT32, M_TOP_PAD: TOP_PAD_BYTES}
    accepted = [libc.mallopt(option, value) for option, value in options.items()]
    return all(accepted)


def return_free_memory() -> None:
    """Return freed memory to the system, if the C library is glibc."""
    libc = find_glibc()
    if libc is not None:
        libc.malloc_trim(0)


def find_glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc."""
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def restart_without_malloc_caches(commands: Collection[str]) -> None:
    """Start this process again without glibc's cache of small blocks per thread, if it runs one of these commands.

    For the alignment of tensors, glibc cuts a few bytes off each block. The cache gives these pieces to small objects,
    which then separate the large blocks around them. Freed blocks cannot be merged, and later steps get new memory.
    glibc reads this option only when a process starts.

    Does nothing if the user has set the option, or if the process is not the command alone, e.g. with a profiler. The
    second process restores the user's environment, because the option is not meant for the processes that it starts.
    """
    if RESTARTED_VARIABLE in os.environ:
        restore_tunables()
        return
    words, arguments = sys.orig_argv[1:], sys.argv[1:]
    program = words[: len(words) - len(arguments)]
    is_module = program in (["-m", "fedmosaic_cli"], ["-u", "-m", "fedmosaic_cli"])
    is_script = [os.path.basename(word) for word in program] == ["fedmosaic"]  # noqa: PTH119 - pathlib loads slowly
    if not ((is_module or is_script) and arguments and arguments[0] in commands):
        return
    own = os.environ.get(TUNABLES_VARIABLE, "")
    if TUNABLES.partition("=")[0] in own or find_glibc() is None:
        return
    environment = {**os.environ, TUNABLES_VARIABLE: f"{own}:{TUNABLES}" if own else TUNABLES, RESTARTED_VARIABLE: own}
    with suppress(OSError):  # the command runs with the caches, and may need more memory
        os.execve(sys.executable, [sys.executable, *words], environment)


def restore_tunables() -> None:
    """Restore the environment from before the restart. glibc has read the option."""
    own = os.environ.pop(RESTARTED_VARIABLE)
    os.environ.pop(TUNABLES_VARIABLE, None)
    if own:
        os.environ[TUNABLES_VARIABLE] = own


def collect_rarely() -> None:
    """Search for garbage rarely, until `collect_as_usual`.

    Loading torch and this program creates about a million objects that stay. With the usual thresholds a fifth of the
    time is spent on looking at them again and again.
    """
    gc.set_threshold(*STARTUP_GC_THRESHOLDS)


def collect_as_usual() -> None:
    """End `collect_rarely`, and exclude all existing objects from garbage collection. Otherwise do nothing."""
    if gc.get_threshold() == STARTUP_GC_THRESHOLDS:
        gc.freeze()
        gc.set_threshold(*USUAL_GC_THRESHOLDS)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when the parent that started it as a job dies (Linux only).

    SIGKILL is safe for fedmosaic because its files are complete on disk at any time. Other programs get a signal that
    lets them shut down.
    """
    parent = os.environ.pop(PARENT_PID_VARIABLE, "")
    if not parent.isdigit() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != int(parent):  # the parent died before the request
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Stay the ancestor of processes whose parent dies, so that `kill_descendants` finds them (Linux only)."""
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else lambda *_: None
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def kill_descendants() -> int:
    """Kill all processes that this process started, directly or indirectly, and return how many still ran."""
    import psutil

    num_running = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                num_running += 1
                process.kill()
    return num_running
