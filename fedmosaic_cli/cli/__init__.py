"""The command line. Commands parse, call one function below, and show what it yields."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedmosaic_cli.cli.interrupt import InterruptedBySignal, listen, tell


def main() -> None:
    """The console script."""
    listen()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        from fedmosaic_cli.cli.app import app

        app(prog_name="fedmosaic")
    except InterruptedBySignal as request:
        tell("stopped: nothing was begun")
        sys.exit(request.code)
