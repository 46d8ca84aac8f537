"""fedmosaic in separate processes, which can be killed at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.faults.conftest import EVALUATE, PARTITION, RUN
from tests.waiting import wait_until

ROUNDS = 20
TRAIN = (
    *("train", "--shards", "shards", "--rounds", str(ROUNDS), "--resume", "--set", "train.checkpoint_every=1"),
    *("--set", "train.local_steps=20", "--set", "methods.fedmosaic.warmup_rounds=1"),
    *("--name", "shards", "--tag", ""),
)
PIPELINE = (PARTITION, TRAIN, (*EVALUATE, "-q"))


def start(arguments: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """Start a command in a new session, so that its child processes can be found."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    process = start(arguments, folder)
    _, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, "", errors)


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that must not depend on interruptions. Plots contain their creation time."""
    kept = ["shards/*.npz", "shards/*.csv", *(f"{RUN}/{name}" for name in ("rounds.jsonl", "summary.json", "models/*"))]
    files = [path for pattern in (*kept, f"{RUN}/evaluation.json") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def pause(process: subprocess.Popen[str]) -> None:
    """Stop a process until `resume`, unless it has ended."""
    process.send_signal(signal.SIGSTOP)
    with suppress(ChildProcessError):  # it has ended, and `poll` has collected its exit code
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def resume(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)


def require_no_orphans(leader: int) -> None:
    """Wait until no process of a command is left. Short-lived ones such as `uname` may end after it."""
    wait_until(lambda: not session_of(leader))


def session_of(leader: int) -> list[str]:
    """Return the running processes of a session, except its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader and int(entry.name) != leader:
                    found.append(entry.name)
            except ProcessLookupError:
                continue
    return found
