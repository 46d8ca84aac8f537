"""fedmosaic in processes of its own, which can be killed at any time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.conftest import EVALUATE, PARTITION, RUN

ROUNDS = 20
TRAIN = (
    *("train", "--shards", "shards", "--rounds", str(ROUNDS), "--resume", "--set", "train.checkpoint_every=1"),
    *("--set", "train.local_steps=20", "--set", "methods.fedmosaic.warmup_rounds=1"),
)
PIPELINE = (PARTITION, TRAIN, (*EVALUATE, "-q"))


def start(arguments: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """A command in the background, set apart so that whatever it starts can be found."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    process = start(arguments, folder)
    _, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, "", errors)


def results(folder: Path) -> dict[str, bytes]:
    """What must be the same however often a run was interrupted. Pictures know when they were drawn."""
    kept = ["shards/*.npz", "shards/*.csv", *(f"{RUN}/{name}" for name in ("rounds.jsonl", "summary.json", "models/*"))]
    files = [path for pattern in (*kept, f"{RUN}/evaluation.json") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def orphans(leader: int, patience: float = 3.0) -> list[str]:
    """What a command started, and left behind; `uname`, which Python asks for the platform, ends by itself."""
    end = time.monotonic() + patience
    while (found := session_of(leader)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def session_of(leader: int) -> list[str]:
    """The processes that a command has started, and that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader and int(entry.name) != leader:
                    found.append(entry.name)
            except ProcessLookupError:
                continue
    return found
